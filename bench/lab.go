package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/cut"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
	"keyframe/statebackend/redis/track"
)

// incarnation of the bench's job.
const incarnation = "0123456789abcdef"

// lab is a server that holds one dataset, and our side on it.
type lab struct {
	Options
	data     dataset
	server   *server
	backend  *redis.Backend
	spec     config.Job
	commands string // the file that builds the dataset
	digest   string // of the server's data once it was built
	stores   int    // how many store files were made
}

// stateGroups runs the groups that need a state, dataset by dataset.
func stateGroups(ctx context.Context, o Options, r *Report) error {
	grown := map[string]float64{} // stall by dataset, in ms
	for _, name := range Datasets {
		if !o.wantsData(name) {
			continue
		}
		if err := stateGroup(ctx, o, r, name, grown); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if o.wants("stall") {
		grownStall(r, grown)
	}
	return nil
}

func stateGroup(ctx context.Context, o Options, r *Report, name string, stalls map[string]float64) (err error) {
	if !o.wants("checkpoint") && !o.wants("restore") && !o.wants("memory") && !o.wants("stall") {
		return nil
	}
	l, err := newLab(ctx, o, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for _, g := range []struct {
		name string
		on   bool // for this dataset
		run  func(context.Context, *Report) error
	}{
		{"checkpoint", name != "D1x8", l.checkpoints},
		{"restore", name != "D1x8", l.restores},
		{"memory", true, l.memory},
		{"checkpoint", name == "D1" || name == "D2", l.increments}, // it changes the state, so after what compares it
		{"stall", name != "D3", func(ctx context.Context, r *Report) error { return l.stall(ctx, r, stalls) }},
	} {
		if !g.on || !o.wants(g.name) {
			continue
		}
		fmt.Fprintf(o.verbose, "%s: %s\n", name, g.name)
		if err := g.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
	}
	return nil
}

func newLab(ctx context.Context, o Options, name string) (l *lab, err error) {
	l = &lab{Options: o}
	if l.data, err = newDataset(name, o.Scale); err != nil {
		return nil, err
	}
	l.spec = config.Job{
		Name: job.Name, Prefix: job.Prefix, Parallelism: 4, MaxParallelism: maxParallelism,
		Checkpoint: config.Checkpoint{Timeout: config.Duration(15 * time.Minute), MaxPause: config.Duration(2 * time.Minute)},
	}.WithDefaults()
	if l.server, err = startServer(ctx, o.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.backend, err = redis.Open(ctx, redis.Config{URL: l.server.url()}); err != nil {
		return nil, err
	}
	l.commands = filepath.Join(o.Dir, name+".resp")
	if err := l.data.writeFile(l.commands); err != nil {
		return nil, err
	}
	if err := l.server.cli(ctx, l.commands, "--pipe"); err != nil {
		return nil, fmt.Errorf("build the dataset: %w", err)
	}
	if l.digest, err = l.server.digest(ctx); err != nil {
		return nil, err
	}
	return l, l.adopt(ctx)
}

func (l *lab) close() error {
	var err error
	if l.backend != nil {
		err = l.backend.Close()
	}
	if l.commands != "" {
		err = errors.Join(err, os.Remove(l.commands))
	}
	return errors.Join(err, l.server.stop())
}

// adopt writes the job's record, as the coordinator does before its first
// checkpoint.
func (l *lab) adopt(ctx context.Context) error {
	rule := l.spec.Rule()
	ranges, err := rule.Assign(l.spec.Parallelism)
	if err != nil {
		return err
	}
	// A coordinator that was measured may have led the job to its end.
	if err := l.server.client.Del(ctx, job.Lease()).Err(); err != nil {
		return fmt.Errorf("end an earlier lease: %w", err)
	}
	_, err = l.backend.Adopt(ctx, job, incarnation, statebackend.Assignment{
		MaxParallelism: maxParallelism, Parallelism: l.spec.Parallelism, Hash: rule.Hash, Ranges: ranges})
	return err
}

// open makes a new store file: in one that has the chunks already a second
// checkpoint of the same state would store nothing.
func (l *lab) open(ctx context.Context) (db *bolt.DB, remove func() error, err error) {
	l.stores++
	path := filepath.Join(l.Dir, l.data.name+"-"+strconv.Itoa(l.stores)+".db")
	db, err = bolt.Open(ctx, path, bolt.Options{})
	if err != nil {
		return nil, nil, err
	}
	return db, func() error { return errors.Join(db.Close(), os.Remove(path)) }, nil
}

// ready makes the server one that a coordinator has been following for a while:
// the job has its record, and the tracker of its writes is attached. Where it
// can't be, the cuts say so.
func (l *lab) ready(ctx context.Context) error {
	if err := l.adopt(ctx); err != nil {
		return err
	}
	err := l.backend.AwaitTracking(ctx)
	if errors.Is(err, track.ErrDenied) {
		return nil
	}
	return err
}

// take makes one durable checkpoint, a full one when base is nil, and checks
// that it is whole.
func (l *lab) take(ctx context.Context, db snapshot.Store, grade snapshot.Grade, base *cut.Base) (cut.Outcome, time.Duration, error) {
	t := cut.Taker{Store: db, Backend: l.backend, Now: time.Now}
	req := cut.Request{
		Job: l.spec, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Grade: grade, Incarnation: incarnation}
	if base != nil {
		c := base.Manifest.Checkpoint
		req.Base, req.Parent, req.Epoch = base, c.ID, c.Epoch
	}
	began := time.Now()
	out, err := t.Take(ctx, req)
	took := time.Since(began)
	if err == nil {
		err = out.RecordErr
	}
	if err != nil {
		return out, 0, err
	}
	keys, elements := l.data.size()
	if c := out.Checkpoint; c.Keys != uint64(keys) || c.Elements != uint64(elements) {
		return out, 0, fmt.Errorf("checkpoint of %s has %d keys and %d elements, want %d and %d", l.data.name, c.Keys, c.Elements, keys, elements)
	}
	return out, took, nil
}

// takeNew makes a full checkpoint in a new store, which goes again.
func (l *lab) takeNew(ctx context.Context, grade snapshot.Grade) (c snapshot.Checkpoint, took time.Duration, err error) {
	db, remove, err := l.open(ctx)
	if err != nil {
		return c, 0, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	out, took, err := l.take(ctx, db, grade, nil)
	if err != nil {
		return c, 0, err
	}
	return *out.Checkpoint, took, nil
}
