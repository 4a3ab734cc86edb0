// Package doctor examines a job's state and the server it lies in, and tells
// everything that is wrong with them: what, where, why it matters and what to
// do. It reads only.
//
// [Examine] listens to a [statebackend.Inspector] in one pass and keeps
// counters and a bounded number of examples, whatever the size of the state.
// Where a bound was reached a finding of code [CodeBounded] says so.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Severity says how bad a finding is.
type Severity string

// The severities. Errors and warnings make the command exit with 3.
const (
	Error   Severity = "error"   // state is wrong or lost, or can't be checkpointed or restored
	Warning Severity = "warning" // it may come to that
	Info    Severity = "info"    // worth knowing, nothing is wrong
)

// rank puts the worst first.
func (s Severity) rank() int {
	switch s {
	case Error:
		return 0
	case Warning:
		return 1
	}
	return 2
}

// Code names a kind of finding.
type Code string

// The closed list of codes.
const (
	CodeUnindexed       Code = "unindexed-key"    // a key under the job's root that the index lacks
	CodeMissing         Code = "missing-key"      // an indexed name without a key
	CodeForeignName     Code = "foreign-name"     // an indexed name that isn't under the job's root
	CodeStaged          Code = "staged-key"       // left by a restore that is over
	CodeScratch         Code = "scratch-key"      // left by a drill that is over
	CodeSchemaMissing   Code = "schema-missing"   // an indexed key without an entry in the registry
	CodeSchemaMalformed Code = "schema-malformed" // an entry that isn't type name|version
	CodeSchemaStale     Code = "schema-stale"     // an entry of a key that is neither there nor in the index
	CodeKeyGroup        Code = "key-group"        // an element in a partition that isn't its key group
	CodeDuplicate       Code = "duplicate-key"    // the same key in two partitions
	CodeShard           Code = "shard"            // a field in a shard that its hash doesn't name
	CodeUntyped         Code = "untyped-key"      // an element whose key has no key group
	CodeUnparsed        Code = "unparsed-key"     // a key whose names can't be told apart
	CodeKeyType         Code = "key-type"         // a key of a Redis type that no state has there
	CodeExpiry          Code = "odd-expiry"       // an expiry where sisters have none
	CodeBigKey          Code = "big-key"
	CodeHotKey          Code = "hot-key"
	CodeIdle            Code = "idle-job" // nobody writes
	CodeNoState         Code = "no-state"
	CodeMarked          Code = "restore-in-progress"
	CodeBookkeeping     Code = "bookkeeping" // the job's own keys are damaged
	CodeEviction        Code = "eviction-policy"
	CodeEvicted         Code = "evicted-keys"
	CodePersistence     Code = "persistence"
	CodeMaxMemory       Code = "maxmemory"
	CodeRights          Code = "rights"
	CodeRole            Code = "server-role" // a replica, or a node of a cluster
	CodeVersion         Code = "server-version"
	CodeFieldExpiry     Code = "field-expiry" // fields with an expiry of their own
	CodeUntold          Code = "untold"       // what could not be found out
	CodeBounded         Code = "bounded"      // more was found than is remembered
)

// Finding is one thing that is wrong.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity" enum:"error,warning,info"`
	What     string   `json:"what" doc:"what is wrong"`
	Where    []string `json:"where" doc:"keys or settings, at most a few of them; quoted when they can't be printed"`
	Count    uint64   `json:"count" doc:"how many there are in all"`
	Why      string   `json:"why" doc:"why it matters"`
	Remedy   string   `json:"remedy" doc:"what to do"`
}

// Report is what an examination found.
type Report struct {
	Job        string    `json:"job"`
	Server     string    `json:"server"`
	At         time.Time `json:"at"`
	DurationMs int64     `json:"durationMs"`
	Keys       uint64    `json:"keys" doc:"keys under the job's root, bookkeeping too"`
	Indexed    uint64    `json:"indexed" doc:"names in the index"`
	Elements   uint64    `json:"elements" doc:"elements whose key group was checked"`
	Errors     int       `json:"errors"`
	Warnings   int       `json:"warnings"`
	Findings   []Finding `json:"findings"`
	NotLooked  []string  `json:"notLookedAt" doc:"what was not looked at, each with the reason"`
}

// OK reports that there is neither an error nor a warning.
func (r Report) OK() bool { return r.Errors+r.Warnings == 0 }

// Request says what to examine.
type Request struct {
	Job     statebackend.Job
	Rule    keygroups.Rule
	Sources []statebackend.SourceRef
	// Last is the newest completed checkpoint, nil for none: it tells which
	// keys were hot.
	Last        *snapshot.Checkpoint
	MaxReadRate int64 // bytes per second, 0 for no bound
	Watch       time.Duration
	Limits      Limits
	// Scratch are scratch jobs beside the state that no drill owns.
	Scratch []Scratch
}

// Scratch is a scratch job of a drill.
type Scratch struct {
	Root string // all its keys begin with it and a colon
	Keys uint64
}

// Limits are the thresholds and bounds; zero ones get their defaults.
type Limits struct {
	Where     int           // places that a finding names; 10
	BigBytes  int64         // from which size on a key is big; 64 MiB
	IdleAfter time.Duration // how long nobody may touch any key; 1h
	IdleWatch time.Duration // how long a job must be watched without a write to be called idle; 3s
	HotFreq   int           // from which OBJECT FREQ on a key is hot; 200
	HotWrites int           // elements of a key written while it is watched; 10000
	Full      float64       // part of maxmemory, or of the machine, that is too much; 0.85
	// Bounds of what is remembered until the end.
	Misplaced int // elements that lie in a wrong partition, for the search for duplicates; 4096
	States    int // operator and state names; 10000
	Sample    int // fields of sharded states that have few of them; 65536
}

// or fills in the defaults.
func (l Limits) or() Limits {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.Where, 10)
	set(&l.HotFreq, 200)
	set(&l.HotWrites, 10000)
	set(&l.Misplaced, 4096)
	set(&l.States, 10000)
	set(&l.Sample, 1<<16)
	if l.BigBytes == 0 {
		l.BigBytes = 64 << 20
	}
	if l.IdleAfter == 0 {
		l.IdleAfter = time.Hour
	}
	if l.IdleWatch == 0 {
		l.IdleWatch = 3 * time.Second
	}
	if l.Full == 0 {
		l.Full = 0.85
	}
	return l
}

// Store is what an examination needs of a state store.
type Store interface {
	statebackend.Inspector
	Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error)
	Server() string
}

// Examine looks at everything and reports all that is wrong. Errors are those
// of [statebackend.Inspector]: then nothing was found out.
func Examine(ctx context.Context, store Store, req Request) (Report, error) {
	began := time.Now()
	if err := req.Rule.Validate(req.Rule.MaxParallelism); err != nil {
		return Report{}, fmt.Errorf("doctor of job %q: %w", req.Job.Root(), err)
	}
	e := newExam(req)
	if err := e.look(ctx, store); err != nil {
		return Report{}, fmt.Errorf("doctor of job %q: %w", req.Job.Root(), err)
	}
	seen, err := store.Inspect(ctx, statebackend.InspectRequest{
		Job: req.Job, Sources: req.Sources, MaxReadRate: req.MaxReadRate, Watch: req.Watch,
	}, e)
	if err != nil {
		return Report{}, fmt.Errorf("doctor of job %q: %w", req.Job.Root(), err)
	}
	if err := e.places.duplicates(ctx, store); err != nil {
		return Report{}, fmt.Errorf("doctor of job %q: look for keys in two partitions: %w", req.Job.Root(), err)
	}
	e.finish(seen)
	for _, s := range req.Scratch {
		e.found.put(CodeScratch, Warning, textOf[CodeScratch].what, s.Root+":*", s.Keys)
	}
	r := Report{
		Job: req.Job.Name, Server: store.Server(), At: began.UTC(),
		Keys: e.keys, Indexed: e.indexed, Elements: e.places.elements, Findings: e.found.sorted(),
		NotLooked: append([]string{}, e.unlooked...),
	}
	for _, f := range r.Findings {
		switch f.Severity {
		case Error:
			r.Errors++
		case Warning:
			r.Warnings++
		}
	}
	r.DurationMs = time.Since(began).Milliseconds()
	return r, nil
}

// findings collects what is found, one finding for each code and severity.
type findings struct {
	most  int
	root  string // of the job, for remedies
	byKey map[findingKey]*Finding
}

type findingKey struct {
	code     Code
	severity Severity
	what     string
}

// add counts one more place of a finding. The text is that of its code.
func (f *findings) add(code Code, severity Severity, where string) {
	f.put(code, severity, textOf[code].what, where, 1)
}

// say is add with words of its own for what is wrong.
func (f *findings) say(code Code, severity Severity, where, format string, args ...any) {
	f.put(code, severity, fmt.Sprintf(format, args...), where, 1)
}

// put counts n more places, one of them where, and gives the finding.
func (f *findings) put(code Code, severity Severity, what, where string, n uint64) *Finding {
	k := findingKey{code, severity, what}
	x := f.byKey[k]
	if x == nil {
		t := textOf[code]
		x = &Finding{Code: code, Severity: severity, What: what, Why: t.why, Remedy: strings.ReplaceAll(t.remedy, "{root}", f.root), Where: []string{}}
		f.byKey[k] = x
	}
	x.Count += n
	if where == "" {
		return x
	}
	where = readable(where)
	for _, known := range x.Where {
		if known == where {
			return x
		}
	}
	if len(x.Where) < f.most {
		x.Where = append(x.Where, where)
	}
	return x
}

// drop forgets the findings of some codes.
func (f *findings) drop(codes ...Code) {
	maps.DeleteFunc(f.byKey, func(k findingKey, _ *Finding) bool { return slices.Contains(codes, k.code) })
}

// sorted gives the worst first.
func (f *findings) sorted() []Finding {
	all := make([]Finding, 0, len(f.byKey))
	for _, x := range f.byKey {
		if x.Code != CodeBigKey && x.Code != CodeHotKey { // the largest stand first there
			sort.Strings(x.Where)
		}
		all = append(all, *x)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		switch {
		case a.Severity != b.Severity:
			return a.Severity.rank() < b.Severity.rank()
		case a.Code != b.Code:
			return a.Code < b.Code
		}
		return a.What < b.What
	})
	return all
}

// longestPlace is how many bytes of a name a finding shows.
const longestPlace = 300

// readable is a name as it is, or quoted when JSON or a terminal would garble
// it, and cut when it is very long.
func readable(name string) string {
	tail := ""
	if len(name) > longestPlace {
		tail = fmt.Sprintf("… (%d bytes)", len(name))
		name = name[:longestPlace]
	}
	for _, r := range name {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(name) + tail
		}
	}
	return name + tail
}
