package statebackend

import (
	"strconv"
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
	m, ok := findMarker(rest)
	if !ok {
		return Parsed{}, false
	}
	p := Parsed{Kind: m.kind, Partition: m.partition, Shard: -1}
	p.Group, p.Topic, ok = strings.Cut(rest[:m.start], ":topic:")
	if !ok {
		return Parsed{}, false
	}
	if known.split(&p, rest[m.end:]) || guess(&p, rest[m.end:]) {
		return p, true
	}
	return Parsed{}, false
}

// Classify says in which section of a checkpoint an indexed key goes.
// Everything that isn't plainly operator state is keyed state.
func Classify(job Job, key []byte) snapshot.Section {
	rest, ok := underGroup(job, key)
	if !ok {
		return snapshot.SectionKeyed
	}
	m, ok := findMarker(rest)
	if ok && m.kind == KindOperator && strings.Contains(rest[:m.start], ":topic:") {
		return snapshot.SectionOperator
	}
	return snapshot.SectionKeyed
}

// underGroup gives what follows {root}:cg:.
func underGroup(job Job, key []byte) (string, bool) {
	rest, ok := job.underRoot(key)
	if !ok || len(rest) < len("cg:") || string(rest[:len("cg:")]) != "cg:" {
		return "", false
	}
	return string(rest[len("cg:"):]), true
}

type marker struct {
	start, end int // of ":p:{digits}:{kind}:"
	kind       KeyKind
	partition  int
}

var markerKinds = []KeyKind{KindState, KindWindowDue, KindOperator}

// findMarker finds the first ":p:{digits}:{kind}:". Digits are as we write
// them: no sign, no leading zero, within an int32 (a partition has no more).
func findMarker(s string) (marker, bool) {
	for at := 0; ; {
		i := strings.Index(s[at:], ":p:")
		if i < 0 {
			return marker{}, false
		}
		start := at + i
		at = start + 1
		digits, tail, ok := strings.Cut(s[start+len(":p:"):], ":")
		if !ok {
			return marker{}, false
		}
		n, ok := partitionNumber(digits)
		if !ok {
			continue
		}
		for _, k := range markerKinds {
			if strings.HasPrefix(tail, string(k)+":") {
				end := len(s) - len(tail) + len(k) + 1
				return marker{start: start, end: end, kind: k, partition: n}, true
			}
		}
	}
}

func partitionNumber(s string) (int, bool) {
	if s == "" || (s[0] == '0' && len(s) > 1) {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	return int(n), err == nil
}

// split tries the known states, longest first: only prefixes that end where a
// colon follows (or the key ends) can be one.
func (k Known) split(p *Parsed, rest string) bool {
	for end := min(len(rest), k.longest); end > 0; end-- {
		if end < len(rest) && rest[end] != ':' {
			continue
		}
		s, ok := k.byJoined[rest[:end]]
		if ok && p.tail(rest[end:]) {
			p.Operator, p.Name = s.Operator, s.Name
			return true
		}
	}
	return false
}

// tail takes what follows operator and name: nothing, a shard or a typed key.
// Only keyed state has more than nothing.
func (p *Parsed) tail(s string) bool {
	if s == "" {
		return true
	}
	if p.Kind != KindState {
		return false
	}
	s = s[1:] // the colon
	if digits, ok := strings.CutPrefix(s, "shard:"); ok {
		n, ok := partitionNumber(digits)
		if ok {
			p.Shard = n
		}
		return ok
	}
	if !isTypedKey(s) {
		return false
	}
	p.TypedKey = s
	return true
}

func isTypedKey(s string) bool {
	return len(s) >= 2 && s[1] == ':' && strings.IndexByte("snjt", s[0]) >= 0
}

// guess reads the operator up to the first colon and the name up to the next
// one, after which a shard or a typed key must follow. Keys of windows and of
// operator state have nothing after the name, so all of the rest is the name.
func guess(p *Parsed, rest string) bool {
	op, rest, ok := strings.Cut(rest, ":")
	if !ok {
		return false
	}
	name, tail := rest, ""
	if p.Kind == KindState {
		if i := strings.IndexByte(rest, ':'); i >= 0 {
			name, tail = rest[:i], rest[i:]
		}
	}
	if !p.tail(tail) {
		return false
	}
	p.Operator, p.Name, p.Guessed = op, name, true
	return true
}
