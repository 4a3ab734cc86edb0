package doctor

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

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
	with, without uint64
	names         []string // with an expiry
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
		f.without++
		return
	}
	f.with++
	if len(f.names) < s.where {
		f.names = append(f.names, name)
	}
}

func (s *sisters) finish() {
	for id, f := range s.byState {
		if f.with == 0 || f.without == 0 {
			continue
		}
		what := fmt.Sprintf("%d keys of state %s expire, and %d have no expiry", f.with, readable(id.String()), f.without)
		s.found.put(CodeExpiry, Warning, what, "", f.with)
		for _, name := range f.names {
			s.found.put(CodeExpiry, Warning, what, name, 0)
		}
	}
	if s.left > 0 {
		s.found.put(CodeBounded, Info, fmt.Sprintf("%s: keys of more than %d states were not compared", CodeExpiry, s.most), "", s.left)
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

// hotWrites tells of keys that were written much: while they were watched, and
// while the newest checkpoint was taken.
func (e *exam) hotWrites(a statebackend.Activity) {
	what := fmt.Sprintf("keys with %d elements or more written while they were watched, by the tracking of writes", e.limits.HotWrites)
	for _, k := range a.Keys {
		if k.Elements >= e.limits.HotWrites {
			e.found.put(CodeHotKey, Info, what, k.Name, 1)
		}
	}
	if e.req.Last == nil {
		return
	}
	what = fmt.Sprintf("keys that were written faster than checkpoint %d could read them", e.req.Last.ID)
	for _, k := range e.req.Last.Hot {
		e.found.put(CodeHotKey, Warning, what, k.Key, 1)
	}
}

// idle tells of a job that nobody writes: its input waits and no consumer
// takes it, or none of its keys was used for long.
func (e *exam) idle(a statebackend.Activity) {
	if e.state == 0 || a.By == statebackend.ByTracking && a.Writes {
		return
	}
	judged := "whether anybody writes could not be seen"
	switch {
	case a.By == statebackend.ByTracking:
		judged = "none of its keys was written while watched, by the tracking of writes"
	case a.By == statebackend.ByServer && !a.Writes:
		judged = "the server executed no write while watched, by its own count"
	case a.By == statebackend.ByServer:
		judged = "others write to the server"
	}
	var waiting []string
	moved := false
	for _, s := range a.Sources {
		moved = moved || s.Moved
		if s.Unread > 0 {
			waiting = append(waiting, fmt.Sprintf("%s (group %s)", s.Stream, s.Group))
		}
	}
	if len(waiting) > 0 && !moved {
		what := fmt.Sprintf("input waits and no consumer took any while watched; %s", judged)
		for _, w := range waiting {
			e.found.put(CodeIdle, Warning, what, w, 1)
		}
	}
	if e.untouched >= e.limits.IdleAfter {
		e.found.say(CodeIdle, Warning, e.req.Job.Root(), "no key of the job was read or written for %s or longer, by OBJECT IDLETIME; %s", e.untouched.Round(time.Second), judged)
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
