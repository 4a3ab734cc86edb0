package flights

import (
	"context"
	"fmt"
	"math"
	"slices"

	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Report is what Check found.
type Report struct {
	Records     int      `json:"records"`     // that the positions say were processed
	Complete    bool     `json:"complete"`    // these are all records
	Airports    int      `json:"airports"`    // with at least one of them
	Checks      int      `json:"checks"`      // comparisons made
	Differences []string `json:"differences"` // one line each; empty when all is right
}

// OK reports whether everything that was compared is right. It may be so in
// the middle of the source: see Complete.
func (r Report) OK() bool { return r.Checks > 0 && len(r.Differences) == 0 }

func (r *Report) compare(what string, got, want any) {
	r.Checks++
	if got != want {
		r.Differences = append(r.Differences, fmt.Sprintf("%s is %v, want %v", what, got, want))
	}
}

// CheckOptions say what Check looks at; as in Options, zeros are defaults.
type CheckOptions struct {
	Store       statebackend.Store
	Job         statebackend.Job
	Rule        keygroups.Rule
	Parallelism int
	Partitions  int
	Threshold   int
}

// Check counts the file again, in another way than the job does (plain maps,
// all at once), up to the positions in the store, and compares every number
// with what the store holds; the index too, so that nothing more may be there.
// The job must not run meanwhile. The error is for what could not be read;
// what is wrong is in the report.
func Check(ctx context.Context, o CheckOptions) (Report, error) {
	if o.Partitions == 0 {
		o.Partitions = DefaultPartitions
	}
	if o.Threshold == 0 {
		o.Threshold = DefaultThreshold
	}
	c := checker{CheckOptions: o, offsets: map[int]int{}, names: map[string]bool{}}
	var err error
	if c.records, err = Records(); err != nil {
		return c.report, err
	}
	if c.keyed, err = openKeyed(o.Store, o.Job, o.Rule); err != nil {
		return c.report, err
	}
	for _, step := range []func(context.Context) error{c.readOperatorState, c.checkAirports, c.checkIndex} {
		if err := step(ctx); err != nil {
			return c.report, fmt.Errorf("check job %q: %w", o.Job.Name, err)
		}
	}
	return c.report, nil
}

type checker struct {
	CheckOptions
	records []Record
	keyed   keyed
	offsets map[int]int     // by partition
	names   map[string]bool // keyed state keys that must be there
	report  Report
}

// counted is what the file says of one airport.
type counted struct {
	delays []int // in the order of the file
	index  []int // of these flights
	late   int
	to     map[string]int
}

// count goes through the processed part of the file.
func (c *checker) count() map[string]*counted {
	all := map[string]*counted{}
	for i, r := range c.records {
		if i/c.Partitions >= c.offsets[i%c.Partitions] {
			continue // not read yet
		}
		a := all[r.Origin]
		if a == nil {
			a = &counted{to: map[string]int{}}
			all[r.Origin] = a
		}
		a.delays, a.index = append(a.delays, r.Delay), append(a.index, i)
		a.to[r.Destination]++
		if r.Delay > c.Threshold {
			a.late++
		}
		c.report.Records++
	}
	c.report.Complete = c.report.Records == len(c.records)
	c.report.Airports = len(all)
	return all
}

func (c *checker) checkAirports(ctx context.Context) error {
	for airport, want := range c.count() {
		key := statebackend.StringKey(airport)
		if err := c.checkStats(ctx, airport, key, want); err != nil {
			return err
		}
		if err := c.checkDestinations(ctx, airport, key, want); err != nil {
			return err
		}
		if err := c.checkLast(ctx, airport, key, want); err != nil {
			return err
		}
		if err := c.expectKeys(key); err != nil {
			return err
		}
	}
	slices.Sort(c.report.Differences) // maps have no order
	return nil
}

func (c *checker) checkStats(ctx context.Context, airport string, key statebackend.Key, want *counted) error {
	got, there, err := c.keyed.stats.Lookup(ctx, key)
	if err != nil {
		return err
	}
	sum := 0
	for _, d := range want.delays {
		sum += d
	}
	c.report.compare(airport+": value there", there, true)
	c.report.compare(airport+": count", got.Count, len(want.delays))
	c.report.compare(airport+": total delay", got.Total, sum)
	c.report.compare(airport+": late", got.Late, want.late)
	mean := float64(sum) / float64(len(want.delays))
	if math.Abs(got.Mean-mean) <= 1e-9 {
		mean = got.Mean
	}
	c.report.compare(airport+": mean delay", got.Mean, mean)
	return nil
}

// checkDestinations compares the map and the set.
func (c *checker) checkDestinations(ctx context.Context, airport string, key statebackend.Key, want *counted) error {
	routes, err := c.keyed.routes.Entries(ctx, key)
	if err != nil {
		return err
	}
	seen, err := c.keyed.seen.Get(ctx, key)
	if err != nil {
		return err
	}
	c.report.compare(airport+": number of routes", len(routes), len(want.to))
	c.report.compare(airport+": number of destinations seen", len(seen), len(want.to))
	for _, r := range routes {
		c.report.compare(airport+": flights to "+r.Key, r.Value, want.to[r.Key])
	}
	for _, s := range seen {
		c.report.compare(airport+": seen "+s+" in the file", want.to[s] > 0, true)
	}
	return nil
}

func (c *checker) checkLast(ctx context.Context, airport string, key statebackend.Key, want *counted) error {
	last, err := c.keyed.last.Get(ctx, key)
	if err != nil {
		return err
	}
	from := max(0, len(want.delays)-lastDelays)
	c.report.compare(airport+": number of last delays", len(last), len(want.delays)-from)
	for i := range min(len(last), len(want.delays)-from) {
		c.report.compare(fmt.Sprintf("%s: last delay %d", airport, i), last[i],
			Delay{Index: want.index[from+i], Delay: want.delays[from+i]})
	}
	return nil
}

// expectKeys notes the state keys of an airport, by the layout.
func (c *checker) expectKeys(key statebackend.Key) error {
	_, group, err := c.Rule.GroupOfKey(string(key))
	if err != nil {
		return err
	}
	at := statebackend.Scope{Group: Group, Topic: Topic, Partition: group, Operator: Operator}
	c.names[c.Job.StateKey(at, Stats)] = true
	for _, name := range []string{Routes, Last, Seen} {
		c.names[c.Job.KeyedKey(at, name, string(key))] = true
	}
	return nil
}

// checkIndex makes sure that the index names the airports' keys and no other
// keyed state.
func (c *checker) checkIndex(ctx context.Context) error {
	found := 0
	err := c.Store.Each(ctx, c.Job.Index(), snapshot.TypeSet, func(e snapshot.Element) error {
		if statebackend.Classify(c.Job, e.Value) == snapshot.SectionOperator {
			return nil
		}
		found++
		c.report.compare(fmt.Sprintf("state key %q belongs to an airport", e.Value), c.names[string(e.Value)], true)
		return nil
	})
	if err != nil {
		return err
	}
	c.report.compare("number of keyed state keys", found, len(c.names))
	return nil
}
