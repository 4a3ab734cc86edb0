package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"keyframe/statebackend"
)

// place is a state key, taken apart.
type place struct {
	statebackend.Parsed
	key string
}

// scope is where the same state lies in another partition.
func (p place) scope(partition int) statebackend.Scope {
	return statebackend.Scope{Group: p.Group, Topic: p.Topic, Partition: partition, Operator: p.Operator}
}

// identity is an element without its partition.
type identity struct {
	stateID
	typedKey, member string
}

// places finds elements outside their key group, and the same key in two
// partitions. A key has one key group, so of two partitions that hold it at
// least one is wrong: only misplaced elements need be remembered, and a
// healthy job costs no memory.
type places struct {
	req       Request
	found     *findings
	most      int
	states    int
	elements  uint64
	bytes     int
	misplaced []misplaced
	first     map[identity]int // the partition in which a misplaced one was first seen
	left      uint64           // misplaced elements that are not remembered
	unsure    []misplaced      // in their place if their state has no windows
	windows   map[stateID]struct{}
}

type misplaced struct {
	place
	group    int
	typedKey string
	kind     string // of the key that holds it; "" when it is the key
	member   []byte
}

// misplacedBytes bounds the names that are remembered, beside their number.
const misplacedBytes = 16 << 20

// take checks one element: a whole key when member is nil.
func (p *places) take(at place, typedKey, kind string, member []byte) {
	p.elements++
	_, group, err := p.req.Rule.GroupOfKey(typedKey)
	if err != nil {
		p.found.add(CodeUntyped, Warning, described(at, member))
		return
	}
	if group == at.Partition {
		return
	}
	p.found.add(CodeKeyGroup, Error, described(at, member)+fmt.Sprintf(" (belongs to p:%d)", group))
	if size := len(at.key) + 2*len(typedKey) + 2*len(member); len(p.misplaced) < p.most && p.bytes+size <= misplacedBytes {
		p.bytes += size
		m := misplaced{place: at, group: group, typedKey: strings.Clone(typedKey), kind: kind}
		if member != nil {
			m.member = append([]byte{}, member...)
		}
		p.misplaced = append(p.misplaced, m)
		p.twice(m)
		return
	}
	p.left++
}

// twice finds an element that is misplaced in two partitions.
func (p *places) twice(m misplaced) {
	id := identity{stateOf(m.Parsed), m.typedKey, string(m.member)}
	if first, seen := p.first[id]; seen && first != m.Partition {
		p.found.add(CodeDuplicate, Error, described(m.place, m.member)+fmt.Sprintf(" (also in p:%d)", first))
		return
	}
	p.first[id] = m.Partition
}

// duplicates asks whether what is misplaced also lies where it belongs.
func (p *places) duplicates(ctx context.Context, store Store) error {
	p.decide()
	asks := make([]statebackend.HoldsAsk, len(p.misplaced))
	for i, m := range p.misplaced {
		asks[i] = statebackend.HoldsAsk{Key: p.home(m), Type: m.kind, Member: m.member}
	}
	if len(asks) == 0 {
		return nil
	}
	held, err := store.Holds(ctx, asks)
	if err != nil {
		return err
	}
	for i, m := range p.misplaced {
		if held[i] {
			p.found.add(CodeDuplicate, Error, described(m.place, m.member)+fmt.Sprintf(" (also in p:%d)", m.group))
		}
	}
	if p.left > 0 {
		p.found.put(CodeBounded, Info, fmt.Sprintf("%s: the same key in two partitions was looked for among the first %d misplaced elements only", CodeDuplicate, len(p.misplaced)), "", p.left)
	}
	return nil
}

// home is the key that would hold a misplaced element in its own partition.
func (p *places) home(m misplaced) string {
	job, scope := p.req.Job, m.scope(m.group)
	switch {
	case m.Kind == statebackend.KindWindowDue:
		return job.WindowDueKey(scope, m.Name)
	case m.member == nil:
		return job.KeyedKey(scope, m.Name, m.typedKey)
	case m.Shard >= 0:
		return job.ShardKey(scope, m.Name, m.Shard)
	}
	return job.StateKey(scope, m.Name)
}

// described names an element for people.
func described(at place, member []byte) string {
	if member == nil {
		return at.key
	}
	return at.key + " " + strconv.Quote(string(member))
}

// window takes a field or member of a window state apart: what comes before
// the last two U+0001 is the typed key. A typed key may hold such bytes too.
func window(member string) (typedKey string, ok bool) {
	end := strings.LastIndexByte(member, '\x01')
	if end < 0 || !isDigits(member[end+1:]) {
		return "", false
	}
	start := strings.LastIndexByte(member[:end], '\x01')
	if start < 0 || !isDigits(member[start+1:end]) {
		return "", false
	}
	return member[:start], true
}

// element checks a field or member, which may be a window's. One that is in
// its place only when it isn't a window waits until it is known whether its
// state has windows.
func (p *places) element(at place, member []byte) {
	kind := "hash"
	if at.Kind == statebackend.KindWindowDue {
		kind = "zset"
		if len(p.windows) < p.states {
			p.windows[windowsOf(at)] = struct{}{}
		}
	}
	typed, ok := window(string(member))
	if !ok {
		p.take(at, string(member), kind, member)
		return
	}
	_, group, err := p.req.Rule.GroupOfKey(typed)
	_, whole, wholeErr := p.req.Rule.GroupOfKey(string(member))
	unsure := kind == "hash" && err == nil && group != at.Partition && wholeErr == nil && whole == at.Partition
	if size := len(at.key) + len(typed) + len(member); unsure && len(p.unsure) < p.most && p.bytes+size <= misplacedBytes {
		p.bytes += size
		p.unsure = append(p.unsure, misplaced{place: at, typedKey: typed, kind: kind, member: append([]byte{}, member...)})
		return
	}
	p.take(at, typed, kind, member)
}

// windowsOf names a state by its hash and by its due times alike.
func windowsOf(at place) stateID {
	id := stateOf(at.Parsed)
	id.kind = statebackend.KindState
	return id
}

// decide judges what waited.
func (p *places) decide() {
	for _, m := range p.unsure {
		if _, has := p.windows[windowsOf(m.place)]; has {
			p.take(m.place, m.typedKey, m.kind, m.member)
		} else {
			p.elements++ // in its place
		}
	}
	p.unsure = nil
}

func isDigits(s string) bool {
	s = strings.TrimPrefix(s, "-")
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
