package monkey

import (
	"slices"
	"sort"
	"strconv"

	"keyframe/internal/torture/witness"
)

// positions are how far each partition has been read.
type positions [parts]int

// behind says where p is behind o, "" when nowhere.
func (p positions) behind(o positions) string {
	for q := range p {
		if p[q] < o[q] {
			return "partition " + strconv.Itoa(q) + " is at " + strconv.Itoa(p[q]) + ", and was at " + strconv.Itoa(o[q])
		}
	}
	return ""
}

// least is the smaller of the two, partition by partition.
func (p positions) least(o positions) positions {
	for q := range p {
		p[q] = min(p[q], o[q])
	}
	return p
}

// model counts the flights again.
type model struct {
	parts []*partition
}

// expected is the keyed state that belongs to positions, and all names that
// must then be in the index.
func (m *model) expected(at positions) (keys map[string]witness.Entry, index map[string]bool) {
	c := &counting{hashes: map[string]map[string]int{},
		keys: map[string]witness.Entry{}, index: map[string]bool{}}
	for q, pos := range at {
		if pos > 0 {
			c.partition(m.parts[q], pos)
		}
	}
	for name, fields := range c.hashes {
		e := witness.Entry{Type: "hash"}
		for f, n := range fields {
			e.Elements = append(e.Elements, witness.HashText(f, strconv.Itoa(n)))
		}
		sort.Strings(e.Elements)
		c.keys[name] = e
	}
	return c.keys, c.index
}

// counting is a count under way.
type counting struct {
	hashes map[string]map[string]int
	keys   map[string]witness.Entry
	index  map[string]bool
}

func (c *counting) add(name, field string, n int) {
	if c.hashes[name] == nil {
		c.hashes[name] = map[string]int{}
	}
	c.hashes[name][field] += n
}

func (c *counting) partition(p *partition, pos int) {
	laps, rest := pos/len(p.records), pos%len(p.records)
	dests := map[string]map[string]bool{}
	for i, f := range p.records {
		times := laps
		if i < rest {
			times++
		}
		if times == 0 {
			continue
		}
		n := p.names(f.Origin)
		c.add(n.daily, "s:"+f.Origin+" "+f.day(), times)
		c.add(n.delay, "s:"+f.Origin, times*f.Delay)
		c.add(n.to, strconv.Quote(f.Destination), times)
		c.add(arrivals(f.Destination), "s:"+f.Destination, times)
		c.index[arrivals(f.Destination)] = true
		if dests[f.Origin] == nil {
			dests[f.Origin] = map[string]bool{}
		}
		dests[f.Origin][f.Destination] = true
	}
	for origin, there := range dests {
		c.airport(p, origin, there, laps, rest)
	}
	c.windows(p, pos)
	c.add(positionKey(p.number), positionField, pos)
	c.index[positionKey(p.number)] = true
}

// airport is what isn't a count: the last delays, the destinations, the last
// departure.
func (c *counting) airport(p *partition, origin string, dests map[string]bool, laps, rest int) {
	n := p.names(origin)
	for _, name := range n.all() {
		c.index[name] = true
	}
	set := witness.Entry{Type: "set"}
	for d := range dests {
		set.Elements = append(set.Elements, witness.StringText(strconv.Quote(d)))
	}
	sort.Strings(set.Elements)
	c.keys[n.dest] = set
	of := p.of[origin]
	inLap, _ := slices.BinarySearch(of, rest)
	total := laps*len(of) + inLap
	list := witness.Entry{Type: "list"}
	for k := max(0, total-lastMost); k < total; k++ {
		list.Elements = append(list.Elements, witness.StringText(strconv.Itoa(p.records[of[k%len(of)]].Delay)))
	}
	c.keys[n.last] = list
	newest := (total-1)/len(of)*len(p.records) + of[(total-1)%len(of)]
	c.keys[n.seen] = witness.Entry{Type: "string", ExpireAt: farAway + int64(newest), Elements: []string{witness.StringText(p.at(newest).Date)}}
}

// windows are those of the newest two buckets.
func (c *counting) windows(p *partition, pos int) {
	newest := (pos - 1) / windowSize
	due := map[string]map[string]int{}
	for i := max(0, (newest-1)*windowSize); i < pos; i++ {
		origin := p.at(i).Origin
		n, bucket := p.names(origin), i/windowSize
		c.add(n.win, window(origin, bucket), 1)
		if due[n.due] == nil {
			due[n.due] = map[string]int{}
		}
		due[n.due][window(origin, bucket)] = (bucket + 1) * windowSize
	}
	for name, members := range due {
		e := witness.Entry{Type: "zset"}
		for member, score := range members {
			e.Elements = append(e.Elements, witness.ScoreText(float64(score), member))
		}
		sort.Strings(e.Elements)
		c.keys[name] = e
	}
}

// marks are the items that the first partition's worker has added to the list
// of the operator until a position.
func marks(pos int) []string {
	var out []string
	for i := markEvery; i < pos; i += markEvery {
		out = append(out, markItem(i))
	}
	return out
}
