package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyframe/coordinator/schedule"
	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Validate checks everything that can be checked without a connection,
// including the files and environment variables of secrets and certificates.
// The error is a *fault.Error of code config whose cause is all Problems.
func (f File) Validate() error { return f.problems().fault("configuration") }

// Validate checks a job whose defaults are filled (WithDefaults). The error is
// a *fault.Error of code config whose cause is all Problems.
func (j Job) Validate() error { return j.problems("").fault("job " + text(j.Name)) }

func (f File) problems() Problems {
	var l list
	f.Redis.check(&l, "redis")
	if !f.Drill.Beside() {
		f.Drill.Redis.check(&l, "drill.redis")
	}
	f.Store.check(&l)
	f.API.check(&l)
	f.Alarms.check(&l)
	oneOf(&l, "log.level", f.Log.Level, "trace", "debug", "info", "warn", "error")
	if ttl := f.Lease.TTL; ttl < leastLease || ttl > mostLease {
		l.add("lease.ttl", ttl.String(), "give 1s to 10m, such as 15s: it is renewed three times in that time")
	}
	for i, j := range f.Jobs {
		l.all = append(l.all, j.problems("jobs["+strconv.Itoa(i)+"]")...)
	}
	f.checkTwins(&l)
	f.checkTracking(&l)
	return l.all
}

// checkTracking refuses jobs that insist on what redis.tracking switches off:
// each of their checkpoints would fail.
func (f File) checkTracking(l *list) {
	if f.Redis.Tracking != TrackOff {
		return
	}
	for i, j := range f.Jobs {
		if j.Checkpoint.Grade == snapshot.GradePrecopy {
			l.add(fmt.Sprintf("jobs[%d].checkpoint.grade", i), string(j.Checkpoint.Grade),
				"it follows writes, and redis.tracking is off: set redis.tracking to auto, or the grade to paused")
		}
	}
}

// leastCompactAbove keeps a compaction from being due again after itself: a
// compacted file is larger than what is live by the bookkeeping and about 12 %.
const leastCompactAbove = 1.5

func (s Store) check(l *list) {
	if s.Path == "" {
		l.add("store.path", text(s.Path), "give the path of the checkpoint store's file, such as keyframe.db")
	} else {
		s.checkPlace(l)
	}
	// So that NaN is refused too.
	if s.CompactAbove != 0 && !(s.CompactAbove >= leastCompactAbove && s.CompactAbove <= math.MaxFloat64) {
		l.add("store.compactAbove", strconv.FormatFloat(s.CompactAbove, 'g', -1, 64), "give 0 for never, or a ratio of at least %g, such as 2.0", leastCompactAbove)
	}
	oneOf(l, "store.onDamage", s.OnDamage, DamageSalvage, DamageRefuse)
	s.checkCopies(l)
	s.CheckCopies.check(l)
}

// checkCopies looks at the paths, and at what is there: a directory may be away
// for a while.
func (s Store) checkCopies(l *list) {
	seen := map[string]int{}
	for i, c := range s.Copies {
		field := fmt.Sprintf("store.copies[%d].path", i)
		if c.Path == "" {
			l.add(field, text(c.Path), "give a directory that exists, best on another disk")
			continue
		}
		path := filepath.Clean(c.Path)
		if first, ok := seen[path]; ok {
			l.add(field, text(c.Path), "is the directory of store.copies[%d] too: name each once", first)
			continue
		}
		seen[path] = i
		checkDir(l, field, path)
	}
}

// checkTwins finds jobs that can't be told apart: by name, which is how
// commands name them, or by where their state lies (prefix a with name b:c is
// the same place as prefix a:b with name c).
func (f File) checkTwins(l *list) {
	byName, byRoot := map[string]int{}, map[string]int{}
	for i, j := range f.Jobs {
		field := fmt.Sprintf("jobs[%d].name", i)
		if j.Name == "" {
			continue
		}
		if first, ok := byName[j.Name]; ok {
			l.add(field, text(j.Name), "jobs[%d] has the same name: give each job its own", first)
			continue
		}
		byName[j.Name] = i
		root := j.Key().Root()
		if first, ok := byRoot[root]; ok {
			l.add(field, text(j.Name), "its state would lie under %q, as that of jobs[%d] %q does: change the prefix or the name of one",
				root, first, f.Jobs[first].Name)
			continue
		}
		byRoot[root] = i
	}
}

// problems checks one job; at is its path, "" for a job on its own.
func (j Job) problems(at string) Problems {
	var l list
	if j.Name == "" {
		l.add(join(at, "name"), text(j.Name), "give the job a name")
	}
	if j.Prefix == "" {
		l.add(join(at, "prefix"), text(j.Prefix), "give the beginning of the job's keys, such as streaming:runtime, or leave the field out")
	}
	j.checkParallelism(&l, at)
	kg := join(at, "keyGroups")
	oneOf(&l, kg+".hash", j.KeyGroups.Hash, keygroups.HashJava, keygroups.HashFlink)
	oneOf(&l, kg+".keyType", j.KeyGroups.KeyType, keygroups.KeyString, keygroups.KeyInt, keygroups.KeyLong)
	oneOf(&l, kg+".ranges", j.KeyGroups.Ranges, keygroups.RangesLeading, keygroups.RangesFlink)
	oneOf(&l, join(at, "operatorState.split"), j.OperatorState.Split, rescale.SplitEach, rescale.SplitEven)
	j.Checkpoint.check(&l, join(at, "checkpoint"))
	checkSchedule(&l, join(at, "drill.schedule"), j.Drill.Schedule)
	if j.Retention.Keep < 1 {
		l.add(join(at, "retention.keep"), strconv.Itoa(j.Retention.Keep), "keep at least 1: without a checkpoint nothing can be restored")
	}
	atLeast(&l, join(at, "retention.maxAge"), j.Retention.MaxAge, 0, "0 for no limit, or a duration such as 168h")
	oneOf(&l, join(at, "recovery.onStateLoss"), j.Recovery.OnStateLoss, LossRestore, LossHold)
	j.checkSources(&l, join(at, "sources"))
	return l.all
}

func (j Job) checkParallelism(l *list, at string) {
	p, g := j.Parallelism, j.MaxParallelism
	const most = keygroups.MaxMaxParallelism
	switch {
	case p < 1:
		l.add(join(at, "parallelism"), strconv.Itoa(p), "give at least 1 subtask")
	case p > most:
		l.add(join(at, "parallelism"), strconv.Itoa(p), "give at most %d", most)
	}
	switch {
	case g == 0 && (p < 1 || p > most): // it was to follow from the parallelism
	case g < 1:
		l.add(join(at, "maxParallelism"), strconv.Itoa(g), "give at least 1 key group, or leave the field out")
	case g > most:
		l.add(join(at, "maxParallelism"), strconv.Itoa(g), "give at most %d", most)
	case p > g && p <= most:
		l.add(join(at, "parallelism"), strconv.Itoa(p),
			"it is above maxParallelism %d: lower it to at most %d, or raise maxParallelism if the job has no state yet", g, g)
	}
}

// Grades are the grades that a job whose state is in Redis may ask for; the
// in-process store's own snapshot is no choice there, and the others of the
// vocabulary are not there yet.
var Grades = []snapshot.Grade{snapshot.GradeAuto, snapshot.GradePrecopy, snapshot.GradePaused}

// minReadRate is the least bound of reading: below it one long value would
// take longer than any timeout.
const minReadRate Rate = 64 << 10

// checkSchedule refuses a schedule that can't run; "" is none.
func checkSchedule(l *list, field, spec string) {
	if spec == "" {
		return
	}
	var refused *schedule.Error
	if _, err := schedule.Parse(spec); errors.As(err, &refused) {
		l.add(field, text(spec), "%s: %s", refused.Problem, refused.Remedy)
	}
}

// mostMisses bounds how far ahead the schedule is computed.
const mostMisses = 100

func (c Checkpoint) check(l *list, at string) {
	checkSchedule(l, at+".schedule", c.Schedule)
	atLeast(l, at+".minPause", c.MinPause, 0, "0 for none, or a duration such as 5s")
	atLeast(l, at+".timeout", c.Timeout, time.Millisecond, "a duration such as 5m")
	atLeast(l, at+".maxPause", c.MaxPause, time.Millisecond, "a duration such as 30s")
	// What can only fail at each checkpoint is better refused at once.
	oneOf(l, at+".grade", c.Grade, Grades...)
	atLeast(l, at+".maxStall", c.MaxStall, time.Millisecond, "a duration such as 50ms")
	oneOf(l, at+".onStall", c.OnStall, statebackend.StallWait, statebackend.StallFail)
	if c.MaxReadRate < 0 || c.MaxReadRate > 0 && c.MaxReadRate < minReadRate {
		l.add(at+".maxReadRate", c.MaxReadRate.String(), "give 0 for no bound, or at least %s", minReadRate)
	}
	c.Shrink.check(l, at+".shrink")
	if n := c.Misses(); n < 0 || n > mostMisses {
		l.add(at+".tolerableMisses", strconv.Itoa(n), "give 0 to %d", mostMisses)
	}
	if n := c.SelfCheck(); n < 0 {
		l.add(at+".selfCheckEvery", strconv.Itoa(n), "give 0 for never, or a number of checkpoints such as %d", DefaultSelfCheck)
	}
}

func (j Job) checkSources(l *list, at string) {
	seen := map[Source]int{}
	for i, s := range j.Sources {
		field := fmt.Sprintf("%s[%d]", at, i)
		if s.Topic == "" {
			l.add(field+".topic", text(s.Topic), "give the topic of the streams stream:topic:{topic}:p:{n}")
		}
		if s.Group == "" {
			l.add(field+".group", text(s.Group), "give the job's consumer group")
		}
		if first, ok := seen[s]; ok && s.Topic != "" && s.Group != "" {
			l.add(field, "", "sources[%d] is the same topic %q and group %q: remove one", first, s.Topic, s.Group)
			continue
		}
		seen[s] = i
	}
}

// oneOf checks a value of a closed list.
func oneOf[T ~string](l *list, field string, v T, known ...T) {
	if slices.Contains(known, v) {
		return
	}
	var all []string
	for _, k := range known {
		all = append(all, string(k))
	}
	l.add(field, text(v), "want one of %s", strings.Join(all, ", "))
}

func atLeast(l *list, field string, d Duration, least time.Duration, want string) {
	switch {
	case d < 0:
		l.add(field, d.String(), "it is negative: give %s", want)
	case time.Duration(d) < least:
		l.add(field, d.String(), "it is less than %s: give %s", least, want)
	}
}
