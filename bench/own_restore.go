package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
)

// purgeTime bounds the removal of a scratch copy, which goes on when the run is
// interrupted.
const purgeTime = 5 * time.Minute

// randomID is for names that nothing else has.
func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// restore puts a checkpoint beside its job, under a name that no other job has:
// staged, proved and flipped as every restore is. Whatever becomes of it,
// everything under that name is removed; left says why that failed.
func (v *visit) restore(ctx context.Context, db *bolt.DB, m *snapshot.Manifest) (err, left error) {
	spec := v.spec
	spec.Name = scratchName + randomID()
	fmt.Fprintf(v.log, "restore into scratch job %q under %q, and remove it\n", spec.Name, spec.Prefix)
	defer func() { left = v.purge(ctx, spec.Key()) }()
	e := &restore.Executor{Store: db, Journal: db.Journal(), Backend: v.backend, Now: time.Now, NewID: randomID}
	var steps phases
	began := time.Now()
	res, err := e.Run(ctx, restore.Request{Job: spec, Checkpoint: m.Checkpoint.ID, From: v.spec.Name, As: true, Recovery: true}, steps.enter)
	if err != nil {
		return fmt.Errorf("restore beside the job: %w", err), nil
	}
	took := time.Since(began)
	steps.enter("", 0, 0, 0)
	if got, want := res.Keys+res.Expired+res.Foreign, m.Checkpoint.Keys; got < want {
		return fault.New(fault.Problems, "please report it", "%d keys came back of %d", got, want), nil
	}
	v.samples.restored, v.samples.restoreNote = took.Seconds(), fmt.Sprintf("%d keys; %s", res.Keys, &steps)
	return nil, nil
}

// purge removes the scratch copy, also when the run is interrupted.
func (v *visit) purge(ctx context.Context, job statebackend.Job) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), purgeTime)
	defer cancel()
	if _, err := v.backend.Purge(late, job); err != nil {
		return fault.Wrap(err, fault.Failed, "remove every key that begins with "+job.Root()+":", "remove scratch job %q", job.Name)
	}
	return nil
}

// ownPeak is this process's largest resident size so far in MiB, 0 where the
// system doesn't tell it.
func ownPeak() (float64, error) {
	const status = "/proc/self/status"
	if _, err := os.Stat(status); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	kib, err := procField(status, "VmHWM")
	return float64(kib) / 1024, err
}
