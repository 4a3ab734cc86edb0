package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"keyframe/coordinator/cut"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// ownSamples are what a visit measured.
type ownSamples struct {
	full, over   []snapshot.Checkpoint
	took, next   []float64 // s, of the full checkpoint and of the one right after
	verify       []float64 // s
	dump         []float64 // s
	dumped       []float64 // MiB
	notOver      string    // why the one right after was a full one
	fromHeader   bool      // dumps are timed from their first byte
	peak         float64   // MiB, before the restore
	restored     float64   // s; 0 when there was none
	restoreNote  string
	restoreError error
}

// measure takes the pairs, and with Write the restore at the end of the last.
// refused is why there was no restore: the other figures stand.
func (v *visit) measure(ctx context.Context) (refused, err error) {
	for n := range v.Pairs {
		fmt.Fprintf(v.log, "pair %d of %d\n", n+1, v.Pairs)
		if err := v.pair(ctx, n); err != nil {
			return nil, err
		}
	}
	return v.samples.restoreError, nil
}

// pair takes a full checkpoint into a new store file, one right after it, reads
// the first back, and has redis-cli dump the server.
func (v *visit) pair(ctx context.Context, n int) (err error) {
	path := filepath.Join(v.dir, strconv.Itoa(n)+".db")
	db, err := v.openStore(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(), os.Remove(path)) }()
	full, took, err := v.take(ctx, db, nil)
	if err != nil {
		return err
	}
	s := &v.samples
	s.full, s.took = append(s.full, *full.Checkpoint), append(s.took, took.Seconds())
	m := full.Manifest
	last := m
	over, took, err := v.take(ctx, db, full.Base)
	if err != nil {
		return fmt.Errorf("the checkpoint right after: %w", err)
	}
	if s.notOver = over.Full.Text; over.Full.Code == cut.FullNone {
		s.over, s.next = append(s.over, *over.Checkpoint), append(s.next, took.Seconds())
		last = over.Manifest
	}
	if err := v.verify(ctx, db, m, last); err != nil {
		return err
	}
	if err := v.baseline(ctx, n); err != nil {
		return err
	}
	if n < v.Pairs-1 {
		return nil
	}
	return v.finish(ctx, db, last)
}

// finish comes after the last pair, while its store is there.
func (v *visit) finish(ctx context.Context, db *bolt.DB, last *snapshot.Manifest) (err error) {
	if v.samples.peak, err = ownPeak(); err != nil || !v.Write {
		return err
	}
	v.r.Subject.Wrote = true
	refused, left := v.restore(ctx, db, last)
	if ctx.Err() != nil {
		return cmp.Or(left, context.Cause(ctx)) // what could not be removed is told whatever else happened
	}
	v.samples.restoreError = errors.Join(refused, left)
	return nil
}

// attemptsMeanwhile is room for the ids of a coordinator that goes on with the
// job: a state isn't checkpointed under an id below its newest attempt.
const attemptsMeanwhile = 1_000_000

// take makes one checkpoint that leaves no trace on the server.
func (v *visit) take(ctx context.Context, db *bolt.DB, base *cut.Base) (cut.Outcome, time.Duration, error) {
	t := cut.Taker{Store: db, Backend: unwritten{v.backend}, Now: time.Now}
	req := cut.Request{
		Job: v.spec, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Grade: snapshot.GradeAuto,
		Incarnation: v.seen.Record.Incarnation, RunID: v.seen.Server.RunID, Epoch: v.seen.Record.Epoch, Indexed: v.seen.Indexed,
		After: v.seen.Record.Attempt + attemptsMeanwhile, Base: base,
	}
	if base != nil {
		req.Parent = base.Manifest.Checkpoint.ID
	}
	began := time.Now()
	out, err := t.Take(ctx, req)
	return out, time.Since(began), err
}

// verify reads the full checkpoint and, untimed, the newest as a verification
// does: checksums, counts and digests.
func (v *visit) verify(ctx context.Context, db *bolt.DB, full, newest *snapshot.Manifest) error {
	began := time.Now()
	err := snapshot.Walk(ctx, db, full, &counting{})
	v.samples.verify = append(v.samples.verify, time.Since(began).Seconds())
	if err == nil && newest != full {
		err = snapshot.Walk(ctx, db, newest, &counting{})
	}
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

// baseline has redis-cli dump the server, while that is possible.
func (v *visit) baseline(ctx context.Context, n int) error {
	if v.noCLI != "" {
		return nil
	}
	path := filepath.Join(v.dir, strconv.Itoa(n)+".rdb")
	took, head, err := v.cli.dump(ctx, path)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		v.noCLI = err.Error()
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, "", "the dump of redis-cli")
	}
	if !v.tells.SyncKnown || v.tells.SyncDelay > 0 {
		took -= head
		v.samples.fromHeader = true
	}
	v.samples.dump, v.samples.dumped = append(v.samples.dump, took.Seconds()), append(v.samples.dumped, mebibytes(info.Size()))
	return os.Remove(path)
}
