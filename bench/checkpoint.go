package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
)

// The goals, by dataset.
var (
	checkpointLimits = map[string]limits{"D1": {must: 0.90, goal: 0.75}, "D2": {must: 1.15, goal: 0.90}, "D3": {must: 0.95, goal: 0.85}}
	storedLimits     = map[string]limits{"D1": {must: 0.40, goal: 0.30}, "D2": {must: 0.40, goal: 0.30}, "D3": {must: 0.40, goal: 0.38}}
	restoreLimits    = map[string]limits{"D1": {must: 0.50, goal: 0.25}, "D2": {must: 0.50, goal: 0.45}, "D3": {must: 0.50, goal: 0.30}}
)

// checkpoints compares full durable checkpoints, and what they store, with
// the RDB files that redis-cli writes.
// Before it the tracker of writes is attached, as it is in a coordinator that
// runs. What reading costs by itself, with everything thrown away, is measured
// beside: no checkpoint that reads through commands can take less.
func (l *lab) checkpoints(ctx context.Context, r *Report) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	var sizes, reads pairs
	var last snapshot.Checkpoint
	times, err := interleave(l.Pairs,
		func() (float64, error) {
			took, size, err := l.dump(ctx)
			sizes.base = append(sizes.base, mebibytes(size))
			reads.base = append(reads.base, took.Seconds())
			return took.Seconds(), err
		},
		func() (float64, error) {
			c, took, err := l.takeNew(ctx, snapshot.GradeAuto)
			if err != nil {
				return 0, err
			}
			sizes.ours = append(sizes.ours, mebibytes(int64(c.StoredBytes)))
			last = c
			read, err := l.read(ctx)
			reads.ours = append(reads.ours, read.Seconds())
			return took.Seconds(), err
		})
	if err != nil {
		return err
	}
	r.add("checkpoint", Figure{Name: "full durable checkpoint", Data: l.data.name, Unit: "s", Against: "redis-cli --rdb",
		Note: how(last) + "; the tracker was attached before"}.compared(times, checkpointLimits[l.data.name]))
	r.add("checkpoint", Figure{Name: "reading alone", Data: l.data.name, Unit: "s", Against: "redis-cli --rdb",
		Note: "the same cut, thrown away: no encoding, compression or disk"}.compared(reads, limits{}))
	r.add("checkpoint", Figure{Name: "stored bytes", Data: l.data.name, Unit: "MiB", Against: "RDB file"}.
		compared(sizes, storedLimits[l.data.name]))
	return nil
}

// dump has redis-cli write (and sync) an RDB file of the server's data.
func (l *lab) dump(ctx context.Context) (took time.Duration, size int64, err error) {
	path := filepath.Join(l.Dir, "dump.rdb")
	began := time.Now()
	if err := l.server.cli(ctx, "", "--rdb", path); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, fmt.Errorf("RDB file: %w", err)
	}
	return took, info.Size(), os.Remove(path)
}

// read makes a cut that nobody keeps.
func (l *lab) read(ctx context.Context) (time.Duration, error) {
	var gone counting
	began := time.Now()
	_, err := l.backend.Cut(ctx, statebackend.CutRequest{
		Job: job, Grade: snapshot.GradeAuto, Incarnation: incarnation, MaxPause: time.Duration(l.spec.Checkpoint.MaxPause),
	}, &gone)
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("read the state: %w", err)
	}
	if _, elements := l.data.size(); gone.elements < elements {
		return 0, fmt.Errorf("%d elements were read, want %d", gone.elements, elements)
	}
	return took, nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

// restores compares restores into an empty server with the building of the
// same state, index and registry by redis-cli. Each sample's state is compared
// with what was there at first.
func (l *lab) restores(ctx context.Context, r *Report) (err error) {
	db, remove, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := l.ready(ctx); err != nil {
		return err
	}
	out, _, err := l.take(ctx, db, snapshot.GradeAuto, nil)
	if err != nil {
		return err
	}
	c := out.Checkpoint
	var steps phases
	times, err := interleave(l.Pairs,
		func() (float64, error) {
			return l.rebuild(ctx, func() error { return l.server.cli(ctx, l.commands, "--pipe") })
		},
		func() (float64, error) {
			return l.rebuild(ctx, func() (err error) { steps, err = l.restore(ctx, db, c.ID); return err })
		})
	if err != nil {
		return err
	}
	r.add("restore", Figure{Name: "restore", Data: l.data.name, Unit: "s", Against: "redis-cli --pipe, 1 element a command",
		Note: "both into an empty server; the last: " + steps.String()}.compared(times, restoreLimits[l.data.name]))
	return l.adopt(ctx)
}

// rebuild empties the server, times fn, and checks the outcome.
func (l *lab) rebuild(ctx context.Context, fn func() error) (seconds float64, err error) {
	if err := l.server.empty(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := fn(); err != nil {
		return 0, err
	}
	seconds = time.Since(began).Seconds()
	digest, err := l.server.digest(ctx)
	if err == nil && digest != l.digest {
		err = fmt.Errorf("the state is another one: digest %s, at first %s", digest, l.digest)
	}
	return seconds, err
}

func (l *lab) restore(ctx context.Context, db *bolt.DB, id snapshot.ID) (phases, error) {
	var p phases
	ids := 0
	e := &restore.Executor{Store: db, Journal: db.Journal(), Backend: l.backend, Now: time.Now, NewID: func() string {
		ids++
		return fmt.Sprintf("bench%d", ids)
	}}
	_, err := e.Run(ctx, restore.Request{Job: l.spec, Checkpoint: id, Recovery: true}, p.enter)
	p.enter("", 0, 0, 0)
	return p, err
}

// phases tells how long each phase of a restore took.
type phases struct {
	text  []string
	name  string
	since time.Time
}

// enter is a restore's Progress.
func (p *phases) enter(name string, _, _, _ uint64) {
	if name == p.name {
		return
	}
	now := time.Now()
	if p.name != "" {
		p.text = append(p.text, fmt.Sprintf("%s %.2f s", p.name, now.Sub(p.since).Seconds()))
	}
	p.name, p.since = name, now
}

func (p *phases) String() string { return strings.Join(p.text, ", ") }
