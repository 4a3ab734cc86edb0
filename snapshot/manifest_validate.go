package snapshot

import (
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"

	"keyframe/keygroups"
)

// problems collects what is wrong with a manifest: field, then detail.
type problems struct {
	list []Problem
}

func (p *problems) add(field, format string, args ...any) {
	p.list = append(p.list, Problem{What: field, Detail: fmt.Sprintf(format, args...)})
}

// check adds a problem unless ok.
func (p *problems) check(ok bool, field, format string, args ...any) {
	if !ok {
		p.add(field, format, args...)
	}
}

// err names the first problems of m, nil when there are none.
func (p *problems) err(m *Manifest) error {
	if len(p.list) == 0 {
		return nil
	}
	const most = 5
	var all []string
	for _, one := range p.list[:min(most, len(p.list))] {
		all = append(all, one.String())
	}
	if more := len(p.list) - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("manifest of checkpoint %d: %s", m.Checkpoint.ID, strings.Join(all, "; "))
}

// Validate checks that a manifest is in a legal state; the error names the
// first few fields that aren't, with their values. It is called before a
// manifest is written and after it was read. Legal is:
//
//   - format: of this version or an earlier one.
//   - checkpoint: an id from 1 on, a job, kind, trigger and grade of their
//     closed lists (auto is no grade that a cut has), state completed with a
//     time of completion and without a failure, the parent and the attempt
//     not above the id, durations not negative.
//   - identity: server (without user and password), prefix and job.
//   - keyGroups: rules of their closed lists, 1 ≤ parallelism ≤ max
//     parallelism ≤ 32768, the same max parallelism in both places.
//   - ranges: none, or one for each subtask in order, which cover all key
//     groups once.
//   - operatorStates: each operator and name once, a mode of the closed list,
//     handed only for unions, its digest 64 hex digits.
//   - states, groups: each once, groups ascending and below max parallelism;
//     their sums not above the checkpoint's keys, elements and bytes.
//   - sources: each topic, group and partition once; ids of Redis streams.
//   - chunks: sections in order, sizes within the limits, each once; fullBytes
//     is the sum of stored, storedBytes is not above it; there are chunks of
//     keyed or operator state exactly when there are keys or missing ones
//     (with layers there may be such chunks without).
//   - layers: at most MaxLayers, none empty, their chunks as above and each
//     once in base and layers; source chunks in the last only; the
//     checkpoint's layers is 0 or their number with the base. None in format 1.
func (m *Manifest) Validate() error {
	p := m.check()
	return p.err(m)
}

func (m *Manifest) check() *problems {
	p := &problems{}
	p.check(m.Format >= 1 && m.Format <= FormatVersion, "format", "%d: want 1 to %d", m.Format, FormatVersion)
	checkCheckpoint(m.Checkpoint, p)
	p.check(m.Attempt <= m.Checkpoint.ID, "attempt", "%d is above the id %d", m.Attempt, m.Checkpoint.ID)
	p.check(!m.CutAt.IsZero(), "cutAt", "is not set")
	checkIdentity(m.Identity, p)
	checkLayout(m, p)
	checkOperators(m.OperatorStates, p)
	checkStats(m, p)
	checkSources(m.Checkpoint.Sources, p)
	checkChunks(m, p)
	checkTotals(m, p)
	checkLayers(m, p)
	return p
}

func checkCheckpoint(c Checkpoint, p *problems) {
	p.check(c.ID >= 1, "id", "0: want a number from 1 on")
	p.check(c.Job != "", "job", "is empty")
	p.check(c.Kind == KindCheckpoint || c.Kind == KindSavepoint, "kind", "%q: want checkpoint or savepoint", c.Kind)
	switch c.Trigger {
	case TriggerSchedule, TriggerManual, TriggerShutdown, TriggerPreRestore,
		TriggerPreRescale, TriggerRescale, TriggerRekey, TriggerImport:
	default:
		p.add("trigger", "%q is unknown", c.Trigger)
	}
	g, err := ParseGrade(string(c.Grade))
	p.check(err == nil && g != GradeAuto, "grade", "%q: want the grade that the cut had", c.Grade)
	p.check(c.State == StateCompleted, "state", "%q: want %q", c.State, StateCompleted)
	p.check(c.Failure == nil, "failure", "is set on a completed checkpoint")
	p.check(!c.StartedAt.IsZero(), "startedAt", "is not set")
	p.check(c.CompletedAt != nil && !c.CompletedAt.IsZero(), "completedAt", "is not set")
	p.check(c.DurationMs >= 0, "durationMs", "%d is negative", c.DurationMs)
	p.check(c.StallMs >= 0 && !math.IsInf(c.StallMs, 0), "stallMs", "%v: want a number from 0 on", c.StallMs)
	p.check(c.Parent == 0 || c.Parent < c.ID, "parent", "%d is not below the id %d", c.Parent, c.ID)
}

func checkIdentity(id Identity, p *problems) {
	p.check(id.Server != "", "identity.server", "is empty")
	p.check(id.Prefix != "", "identity.prefix", "is empty")
	p.check(id.Job != "", "identity.job", "is empty")
	if u, err := url.Parse(id.Server); err == nil {
		// The value isn't shown: it may hold a password.
		p.check(u.User == nil, "identity.server", "has a user or a password: leave them out")
	}
}

// checkLayout checks key groups, parallelism and ranges.
func checkLayout(m *Manifest, p *problems) {
	r, c := m.KeyGroups, m.Checkpoint
	p.check(r.Hash == keygroups.HashJava || r.Hash == keygroups.HashFlink, "keyGroups.hash", "%q is unknown", r.Hash)
	p.check(r.KeyType == keygroups.KeyString || r.KeyType == keygroups.KeyInt || r.KeyType == keygroups.KeyLong,
		"keyGroups.keyType", "%q is unknown", r.KeyType)
	p.check(r.Ranges == keygroups.RangesLeading || r.Ranges == keygroups.RangesFlink, "keyGroups.ranges", "%q is unknown", r.Ranges)
	p.check(r.MaxParallelism >= 1 && r.MaxParallelism <= keygroups.MaxMaxParallelism,
		"keyGroups.maxParallelism", "%d: want 1 to %d", r.MaxParallelism, keygroups.MaxMaxParallelism)
	p.check(c.MaxParallelism == r.MaxParallelism, "maxParallelism", "%d, but keyGroups has %d", c.MaxParallelism, r.MaxParallelism)
	p.check(c.Parallelism >= 1 && c.Parallelism <= c.MaxParallelism,
		"parallelism", "%d: want 1 to the max parallelism %d", c.Parallelism, c.MaxParallelism)
	if m.Ranges == nil {
		return
	}
	p.check(len(m.Ranges) == c.Parallelism, "ranges", "%d ranges for parallelism %d", len(m.Ranges), c.Parallelism)
	next := 0
	for i, one := range m.Ranges {
		ok := one.Subtask == i && one.Start == next && one.End >= one.Start
		p.check(ok, fmt.Sprintf("ranges[%d]", i), "subtask %d has %d to %d: want subtask %d from %d on",
			one.Subtask, one.Start, one.End, i, next)
		next = one.End + 1
	}
	p.check(next == r.MaxParallelism, "ranges", "end before key group %d: want %d", next, r.MaxParallelism)
}

func checkOperators(all []OperatorState, p *problems) {
	seen := map[[2]string]bool{}
	for i, s := range all {
		field := fmt.Sprintf("operatorStates[%d]", i)
		name := [2]string{s.Operator, s.Name}
		p.check(!seen[name], field, "operator %q, name %q is there twice", s.Operator, s.Name)
		seen[name] = true
		switch s.Mode {
		case ModeList, ModeUnion, ModeBroadcast:
		default:
			p.add(field, "mode %q: want list, union or broadcast", s.Mode)
		}
		if s.Handed == nil {
			continue
		}
		p.check(s.Mode == ModeUnion, field, "a %s has handed: only unions are handed out", s.Mode)
		p.check(s.Handed.Length >= 0, field, "handed length %d is negative", s.Handed.Length)
		sum, err := hex.DecodeString(s.Handed.Digest)
		p.check(err == nil && len(sum) == 32, field, "handed digest %q: want 64 hex digits", s.Handed.Digest)
	}
}

func checkSources(all []Position, p *problems) {
	type name struct {
		topic, group string
		partition    int
	}
	seen := map[name]bool{}
	for i, s := range all {
		field := fmt.Sprintf("sources[%d]", i)
		n := name{s.Topic, s.Group, s.Partition}
		p.check(!seen[n], field, "topic %q, group %q, partition %d is there twice", s.Topic, s.Group, s.Partition)
		seen[n] = true
		p.check(s.Partition >= 0, field, "partition %d is negative", s.Partition)
		p.check(s.Read >= -1, field, "entries read %d: want -1 or more", s.Read)
		p.check(s.LastID == "" || streamID(s.LastID), field, "last delivered id %q: want ms-seq", s.LastID)
	}
}

// streamID reports whether s is an entry id of a Redis stream.
func streamID(s string) bool {
	ms, seq, ok := strings.Cut(s, "-")
	_, err1 := strconv.ParseUint(ms, 10, 64)
	_, err2 := strconv.ParseUint(seq, 10, 64)
	return ok && err1 == nil && err2 == nil
}
