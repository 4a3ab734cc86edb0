package statebackend

import (
	"bytes"
	"math"
	"strings"

	"keyframe/snapshot"
)

// KeyKind says what a key of the layout holds.
type KeyKind string

// The kinds of keys that lie under {root}:cg:.
const (
	KindState     KeyKind = "state"
	KindWindowDue KeyKind = "windowDue"
	KindOperator  KeyKind = "opstate"
)

// Parsed is a state key taken apart.
type Parsed struct {
	Kind      KeyKind
	Group     string
	Topic     string
	Partition int // the key group; the subtask for operator state
	Operator  string
	Name      string
	TypedKey  string // of map, list and set states; "" otherwise
	Shard     int    // of a sharded value state; -1 otherwise
	// Guessed is set when no known state fits: names may hold colons, so
	// operator and name are then only the likeliest reading.
	Guessed bool
}

// StateName is an operator with one of its states.
type StateName struct {
	Operator string
	Name     string
}

// Known are the states that a job is known to have (its job file, descriptors,
// registered operator states): what its keys can be split by for certain. The
// zero Known knows nothing.
type Known struct {
	byJoined map[string]StateName
	longest  int
}

// NewKnown builds a Known. When two states give the same joined name (x:y + z
// and x + y:z), their keys are the same bytes and belong to the first.
func NewKnown(states ...StateName) Known {
	k := Known{byJoined: make(map[string]StateName, len(states))}
	for _, s := range states {
		joined := s.Operator + ":" + s.Name
		if _, taken := k.byJoined[joined]; taken {
			continue
		}
		k.byJoined[joined] = s
		k.longest = max(k.longest, len(joined))
	}
	return k
}

// ParseKey takes a state key apart; false when it isn't one of the layout.
// After {root}:cg:{group}:topic:{topic} the first ":p:{digits}:" that is
// followed by a kind decides; what comes then is split by the longest known
// state that fits, or by a guess. Any bytes are allowed.
func ParseKey(job Job, key []byte, known Known) (Parsed, bool) {
	rest, ok := underGroup(job, key)
	if !ok {
		return Parsed{}, false
	}
	p, ok := takeApart(rest, known)
	if !ok {
		return Parsed{}, false
	}
	return p.parsed(string(rest)), true
}

// StateOf is what ParseKey says of a key's operator, state and partition when
// no state is known, without a copy: the slices lie in key.
func StateOf(job Job, key []byte) (operator, name []byte, partition int, ok bool) {
	rest, ok := underGroup(job, key)
	if !ok {
		return nil, nil, 0, false
	}
	p, ok := takeApart(rest, Known{})
	return p.operator, p.name, p.partition, ok
}

// Classify says in which section of a checkpoint an indexed key goes.
// Everything that isn't plainly operator state is keyed state.
func Classify(job Job, key []byte) snapshot.Section {
	rest, ok := underGroup(job, key)
	if !ok {
		return snapshot.SectionKeyed
	}
	m, ok := findMarker(rest)
	if ok && m.kind == KindOperator && bytes.Contains(rest[:m.start], topicMark) {
		return snapshot.SectionOperator
	}
	return snapshot.SectionKeyed
}

// What stands in a key before its topic and before its partition.
var (
	topicMark     = []byte(":topic:")
	partitionMark = []byte(":p:")
)

// underGroup gives what follows {root}:cg:.
func underGroup(job Job, key []byte) ([]byte, bool) {
	rest, ok := job.underRoot(key)
	if !ok || len(rest) < len("cg:") || string(rest[:len("cg:")]) != "cg:" {
		return nil, false
	}
	return rest[len("cg:"):], true
}

// parts are a Parsed whose strings still lie in the key: keys are looked at by
// the million, and most of them need not be kept.
type parts struct {
	marker
	group, topic   []byte
	operator, name []byte
	typedKey       []byte
	shard          int
	guessed        bool
}

// takeApart takes what underGroup gives apart.
func takeApart(rest []byte, known Known) (parts, bool) {
	m, ok := findMarker(rest)
	if !ok {
		return parts{}, false
	}
	p := parts{marker: m, shard: -1}
	p.group, p.topic, ok = bytes.Cut(rest[:m.start], topicMark)
	if !ok {
		return parts{}, false
	}
	return p, known.split(&p, rest[m.end:]) || p.guess(rest[m.end:])
}

// parsed makes strings of the parts, all within s, which is what they were
// taken from.
func (p *parts) parsed(s string) Parsed {
	topic, name := len(p.group)+len(topicMark), p.end+len(p.operator)+1
	return Parsed{
		Kind: p.kind, Group: s[:len(p.group)], Topic: s[topic : topic+len(p.topic)], Partition: p.partition,
		Operator: s[p.end : p.end+len(p.operator)], Name: s[name : name+len(p.name)],
		TypedKey: s[len(s)-len(p.typedKey):], Shard: p.shard, Guessed: p.guessed,
	}
}

type marker struct {
	start, end int // of ":p:{digits}:{kind}:"
	kind       KeyKind
	partition  int
}

var markerKinds = []KeyKind{KindState, KindWindowDue, KindOperator}

// findMarker finds the first ":p:{digits}:{kind}:". Digits are as we write
// them: no sign, no leading zero, within an int32 (a partition has no more).
func findMarker(s []byte) (marker, bool) {
	for at := 0; ; {
		i := bytes.Index(s[at:], partitionMark)
		if i < 0 {
			return marker{}, false
		}
		start := at + i
		at = start + 1
		rest := s[start+len(partitionMark):]
		colon := bytes.IndexByte(rest, ':')
		if colon < 0 {
			return marker{}, false
		}
		n, ok := partitionNumber(rest[:colon])
		if !ok {
			continue
		}
		tail := rest[colon+1:]
		for _, k := range markerKinds {
			if len(tail) > len(k) && tail[len(k)] == ':' && string(tail[:len(k)]) == string(k) {
				end := len(s) - len(tail) + len(k) + 1
				return marker{start: start, end: end, kind: k, partition: n}, true
			}
		}
	}
}

func partitionNumber(s []byte) (int, bool) {
	if len(s) == 0 || len(s) > len("2147483647") || (s[0] == '0' && len(s) > 1) {
		return 0, false
	}
	n := int64(0)
	for _, d := range s {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = 10*n + int64(d-'0')
	}
	return int(n), n <= math.MaxInt32
}

// split tries the known states, longest first: only prefixes that end where a
// colon follows (or the key ends) can be one.
func (k Known) split(p *parts, rest []byte) bool {
	for end := min(len(rest), k.longest); end > 0; end-- {
		if end < len(rest) && rest[end] != ':' {
			continue
		}
		s, ok := k.byJoined[string(rest[:end])]
		if ok && p.tail(rest[end:]) {
			p.operator, p.name = rest[:len(s.Operator)], rest[len(s.Operator)+1:end]
			return true
		}
	}
	return false
}

// tail takes what follows operator and name: nothing, a shard or a typed key.
// Only keyed state has more than nothing.
func (p *parts) tail(s []byte) bool {
	if len(s) == 0 {
		return true
	}
	if p.kind != KindState {
		return false
	}
	s = s[1:] // the colon
	if len(s) >= len(shardMark) && string(s[:len(shardMark)]) == shardMark {
		n, ok := partitionNumber(s[len(shardMark):])
		if ok {
			p.shard = n
		}
		return ok
	}
	if !isTypedKey(s) {
		return false
	}
	p.typedKey = s
	return true
}

const shardMark = "shard:"

func isTypedKey[T string | []byte](s T) bool {
	return len(s) >= 2 && s[1] == ':' && strings.IndexByte("snjt", s[0]) >= 0
}

// guess reads the operator up to the first colon and the name up to the next
// one, after which a shard or a typed key must follow. Keys of windows and of
// operator state have nothing after the name, so all of the rest is the name.
func (p *parts) guess(rest []byte) bool {
	colon := bytes.IndexByte(rest, ':')
	if colon < 0 {
		return false
	}
	op, name := rest[:colon], rest[colon+1:]
	var tail []byte
	if p.kind == KindState {
		if i := bytes.IndexByte(name, ':'); i >= 0 {
			name, tail = name[:i], name[i:]
		}
	}
	if !p.tail(tail) {
		return false
	}
	p.operator, p.name, p.guessed = op, name, true
	return true
}
