package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"keyframe/keygroups"
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
	elements  uint64
	bytes     int
	misplaced []misplaced
	first     map[identity]int // the partition in which a misplaced one was first seen
	left      uint64           // misplaced elements that are not remembered
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

// typedKeyOf is the typed key of a field or member: all of it or, of a window,
// what comes before the last two U+0001. A typed key may hold such bytes too,
// so the reading that fits the partition counts; when none does, that of a
// window where it looks like one.
func typedKeyOf(rule keygroups.Rule, partition int, member string) string {
	end := strings.LastIndexByte(member, '\x01')
	if end < 0 || !isDigits(member[end+1:]) {
		return member
	}
	start := strings.LastIndexByte(member[:end], '\x01')
	if start < 0 || !isDigits(member[start+1:end]) {
		return member
	}
	if _, group, err := rule.GroupOfKey(member); err == nil && group == partition {
		return member
	}
	return member[:start]
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
