package doctor

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"keyframe/statebackend"
)

// sisters compares the expiries of the keys of one state.
type sisters struct {
	found   *findings
	most    int
	where   int
	byState map[stateID]*family
	left    uint64
}

type family struct {
	with, without side
}

// side are the keys of a state that expire, or that don't.
type side struct {
	n     uint64
	names []string // some of them
}

func (s *side) take(name string, most int) {
	if s.n++; len(s.names) < most {
		s.names = append(s.names, name)
	}
}

func (s *sisters) take(p statebackend.Parsed, k statebackend.KeyFacts, name string) {
	id := stateOf(p)
	f := s.byState[id]
	if f == nil {
		if len(s.byState) >= s.most {
			s.left++
			return
		}
		f = &family{}
		s.byState[id] = f
	}
	if k.ExpireAt == 0 {
		f.without.take(name, s.where)
		return
	}
	f.with.take(name, s.where)
}

// fewAre is what part of a family is few enough to be the odd ones for certain.
const fewAre = 4

// What to do about sisters of which some expire.
const (
	adviseForever = "if nobody meant it, take the expiry away from these: PERSIST KEY; if the state is meant to expire, give the others one"
	adviseExpire  = "if the state is meant to expire, give these the expiry that their sisters have: PEXPIREAT KEY MILLISECONDS (PEXPIRETIME shows a sister's); " +
		"if it is not, take the expiry away from the others: PERSIST KEY"
	adviseUnclear = "which of them are odd can't be told by their numbers: if the state is not meant to expire, PERSIST those that do; if it is, give the others an expiry with PEXPIREAT"
	whyForever    = "the others go when their time has come; these stay for ever, and take memory after nobody needs them"
)

func (s *sisters) finish() {
	for id, f := range s.byState {
		if f.with.n > 0 && f.without.n > 0 {
			s.tell(id, f)
		}
	}
	if s.left > 0 {
		s.found.put(CodeBounded, Info, fmt.Sprintf("%s: keys of more than %d states were not compared", CodeExpiry, s.most), "", s.left)
	}
}

// tell names the smaller side, which is the odd one where it is small.
func (s *sisters) tell(id stateID, f *family) {
	state := readable(id.String())
	what := fmt.Sprintf("%d keys of state %s expire, and %d have no expiry", f.with.n, state, f.without.n)
	odd, advice, why := f.with, adviseForever, ""
	if f.without.n < f.with.n {
		what = fmt.Sprintf("%d keys of state %s have no expiry, and %d expire", f.without.n, state, f.with.n)
		odd, advice, why = f.without, adviseExpire, whyForever
	}
	if odd.n*fewAre > f.with.n+f.without.n {
		advice, why = adviseUnclear, ""
	}
	x := s.found.put(CodeExpiry, Warning, what, "", odd.n)
	if x.Remedy = advice; why != "" {
		x.Why = why
	}
	for _, name := range odd.names {
		s.found.put(CodeExpiry, Warning, what, name, 0)
	}
}

// topKeys keeps the few names with the greatest figures, and counts all.
type topKeys struct {
	most int
	n    uint64
	top  []topKey
}

type topKey struct {
	name   string
	figure int64
}

func (t *topKeys) take(name string, figure int64) {
	if slices.ContainsFunc(t.top, func(k topKey) bool { return k.name == name }) {
		return
	}
	t.n++
	t.top = append(t.top, topKey{name, figure})
	sort.SliceStable(t.top, func(i, j int) bool { return t.top[i].figure > t.top[j].figure })
	t.top = t.top[:min(len(t.top), t.most)]
}

// tell makes a finding of them, with the figure behind each name.
func (t *topKeys) tell(f *findings, code Code, severity Severity, what, figure string) {
	for i, k := range t.top {
		n := uint64(1)
		if i == 0 {
			n = t.n - uint64(len(t.top)) + 1 // those that aren't kept
		}
		f.put(code, severity, what, k.name+fmt.Sprintf(figure, k.figure), n)
	}
}

// server judges the server.
func (e *exam) server(s statebackend.ServerFacts) {
	e.memory(s)
	e.rights(s)
	if d := s.Durable; d != nil {
		switch {
		case d.Fault != "":
			e.found.say(CodePersistence, Error, "INFO persistence", "the server can't write its data: %s", d.Fault)
		case !d.Known:
			e.found.say(CodePersistence, Info, "CONFIG GET save", "the append-only file is off, and whether there are save points isn't told")
		case !d.AOF && !d.Saves:
			e.found.say(CodePersistence, Warning, "appendonly, save", "the server keeps nothing on disk: the append-only file is off and there are no save points")
		}
	}
	if s.Role != "" && s.Role != "master" {
		e.found.say(CodeRole, Error, "INFO replication", "the server is a replica (role %s)", s.Role)
	}
	if s.Cluster {
		e.found.say(CodeRole, Error, "INFO server", "the server is a node of a cluster: keys on other nodes are not seen")
	}
	if s.FieldExpires > 0 {
		e.found.put(CodeFieldExpiry, Warning, "hashes of this database have fields with an expiry of their own", "INFO keyspace", s.FieldExpires)
	}
	switch {
	case s.Version == "":
	case older(s.Version, 6, 2):
		e.found.say(CodeVersion, Error, "redis_version", "the server's version is %s: checkpoints need CLIENT PAUSE WRITE (6.2)", s.Version)
	case older(s.Version, 7, 0):
		e.found.say(CodeVersion, Warning, "redis_version", "the server's version is %s: expiries are read to a few milliseconds only, and writes can't be tracked by fields", s.Version)
	}
}

// memory judges eviction and room.
func (e *exam) memory(s statebackend.ServerFacts) {
	switch {
	case s.MaxMemory == 0:
	case strings.HasPrefix(s.Policy, "allkeys-"):
		e.found.say(CodeEviction, Error, "maxmemory-policy", "maxmemory-policy is %s with maxmemory %d: the server may evict any key", s.Policy, s.MaxMemory)
	case strings.HasPrefix(s.Policy, "volatile-") && e.expiring > 0:
		e.found.say(CodeEviction, Warning, "maxmemory-policy", "maxmemory-policy is %s with maxmemory %d, and keys of the job's state have an expiry: the server may evict them", s.Policy, s.MaxMemory)
	}
	if s.Evicted > 0 {
		e.found.put(CodeEvicted, Warning, "the server has evicted keys since it was started", "INFO stats: evicted_keys", s.Evicted)
	}
	limit, name := s.MaxMemory, "maxmemory"
	if limit == 0 {
		limit, name = s.SystemMemory, "the machine's memory (there is no maxmemory)"
	}
	if limit > 0 && float64(s.UsedMemory) > e.limits.Full*float64(limit) {
		e.found.say(CodeMaxMemory, Warning, "maxmemory", "%d bytes are used of %d, which is %s", s.UsedMemory, limit, name)
	}
}

func (e *exam) rights(s statebackend.ServerFacts) {
	for _, r := range []struct {
		lacks    []string
		severity Severity
		what     string
	}{
		{s.Rights.Cut, Error, "the user lacks rights without which there is no checkpoint"},
		{s.Rights.Restore, Error, "the user lacks rights without which nothing can be restored"},
		{s.Rights.Precopy, Warning, "the user lacks rights without which writers are held while all of the state is read (grade paused)"},
	} {
		for _, right := range r.lacks {
			e.found.put(CodeRights, r.severity, r.what, right, 1)
		}
	}
	if s.Tracking != "" {
		e.found.say(CodeRights, Warning, "+psync +replconf", "writes can't be tracked by fields, so checkpoints read more and hold writers longer: %s", s.Tracking)
	}
}

// older compares the first two numbers of a version; false when it has none.
func older(version string, major, minor int) bool {
	var a, b int
	if n, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil || n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}
