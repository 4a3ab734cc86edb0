package torture

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// keep is the retention in killJobs.
const keep = 5

// settled looks at everything after a restart: nothing is half done. When
// writers held still since was, not one byte may be another, but for a restore
// that was carried through.
func (k *trial) settled(still bool, was live) {
	t, d := k.t, k.d
	t.Helper()
	d.healthy(job.Name)
	d.quiet(job.Name)
	code, out, errout := d.run("store", "verify")
	require.Zero(t, code, "store verify: %s%s", out, errout)
	history := d.history(job.Name)
	k.idsGrow(history)
	k.verified(history)

	k.fleet.hold()
	now := readLive(t, k.c, job)
	k.untouched(now)
	k.fleet.requireNothingLost(t, now.content)
	require.Empty(t, violations(now.content, k.static, k.memory), "the live state")
	d.withStore(func(db *bolt.DB) {
		for _, cp := range history {
			if cp.State == snapshot.StateCompleted && !k.checked[cp.ID] {
				c, _ := reading(t, db, cp.ID)
				require.Empty(t, violations(c, k.static, k.memory), "checkpoint %d", cp.ID)
				k.checked[cp.ID] = true
			}
		}
		if still {
			k.allOrNothing(db, history, was, now)
		}
	})
}

// untouched holds what a coordinator must leave alone, and leave clean.
func (k *trial) untouched(now live) {
	k.t.Helper()
	require.Empty(k.t, now.staged, "staged keys")
	require.Equal(k.t, k.foreign, now.others, "keys that aren't the job's")
	require.NotContains(k.t, now.record, "restore", "the mark of a restore")
}

// allOrNothing is I3 for a restore that was killed: the state is what it was,
// or the checkpoint's.
func (k *trial) allOrNothing(db *bolt.DB, history []snapshot.Checkpoint, was, now live) {
	k.t.Helper()
	if now.epoch == was.epoch {
		require.Empty(k.t, was.differences(now.content, now.now), "the state before and after a restore that was undone")
		k.ends["had changed nothing"]++
		return
	}
	var least []string
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].State != snapshot.StateCompleted {
			continue
		}
		c, _ := reading(k.t, db, history[i].ID)
		diff := c.differences(now.content, now.now)
		if len(diff) == 0 {
			k.ends["were whole"]++
			return
		}
		if least == nil || len(diff) < len(least) {
			least = diff
		}
	}
	require.Fail(k.t, "the state is that of no checkpoint", "the nearest differs in %q", least)
}

// verified verifies every completed checkpoint, one of them by command line.
func (k *trial) verified(history []snapshot.Checkpoint) {
	k.t.Helper()
	var savepoints []snapshot.ID
	for _, cp := range history {
		if cp.State != snapshot.StateCompleted {
			require.Equal(k.t, snapshot.StateFailed, cp.State, "attempt %d of a job at rest", cp.ID)
			continue
		}
		op := k.d.follow(post[api.Operation](k.d, fmt.Sprintf("%s/checkpoints/%d/verify", jobPath(job.Name), cp.ID), nil))
		require.True(k.t, op.Verify.OK, "checkpoint %d: %v", cp.ID, op.Verify.Problems)
		if cp.Kind == snapshot.KindSavepoint {
			savepoints = append(savepoints, cp.ID)
		}
	}
	code, out, errout := k.d.run("checkpoint", "verify", job.Name)
	require.Zero(k.t, code, "checkpoint verify: %s%s", out, errout)
	if len(savepoints) > 3 {
		undo := get[api.Job](k.d, jobPath(job.Name)).Undo
		if id := savepoints[0]; id != undo {
			code, out, errout = k.d.run("checkpoint", "delete", job.Name, id.String(), "--yes")
			require.Zero(k.t, code, "checkpoint delete: %s%s", out, errout)
			delete(k.completed, id)
		}
	}
}

// idsGrow holds a listing to I1, I6 and I10: what was listed as completed stays
// so unless retention may have removed it, ids only grow, and none is given
// twice.
func (k *trial) idsGrow(history []snapshot.Checkpoint) {
	k.t.Helper()
	last := snapshot.ID(0)
	there := map[snapshot.ID]bool{}
	for _, cp := range history {
		require.Greater(k.t, cp.ID, last, "ids in the listing")
		last = cp.ID
		there[cp.ID] = true
		began, known := k.completed[cp.ID]
		switch {
		case known:
			require.Equal(k.t, began, cp.StartedAt, "checkpoint %d is another one now", cp.ID)
			require.Equal(k.t, snapshot.StateCompleted, cp.State, "checkpoint %d", cp.ID)
		case cp.State == snapshot.StateCompleted:
			require.Greater(k.t, cp.ID, k.newest, "the id of a new checkpoint")
			k.completed[cp.ID] = cp.StartedAt
		}
	}
	for id := range k.completed {
		if there[id] {
			continue
		}
		newer := 0
		for _, cp := range history {
			if cp.ID > id && cp.State == snapshot.StateCompleted && cp.Kind == snapshot.KindCheckpoint {
				newer++
			}
		}
		require.GreaterOrEqual(k.t, newer, keep, "checkpoint %d was listed as completed and is gone, with too few newer ones", id)
		delete(k.completed, id)
	}
	require.GreaterOrEqual(k.t, last, k.newest, "the newest id")
	k.newest = last
}

// look restores the newest listed checkpoint (or, without an id, the newest of
// the live state's own past) with the writers held, and compares what is live
// then with what the store file holds.
func (k *trial) look() {
	t, d := k.t, k.d
	t.Helper()
	before := readLive(t, k.c, job)
	newest := d.history(job.Name)
	for newest[len(newest)-1].State != snapshot.StateCompleted {
		newest = newest[:len(newest)-1]
	}
	id := newest[len(newest)-1].ID
	args := []string{"restore", job.Name, "--yes"}
	named := k.rng.IntN(3) > 0
	if named {
		args = append(args, "--checkpoint", id.String())
	}
	if k.rng.IntN(2) == 0 {
		args = append(args, "--no-undo")
	}
	res := must[restore.Result](d, args...)
	if named {
		require.Equal(t, id, res.Checkpoint)
	}
	id = res.Checkpoint
	k.fleet.forget()
	now := readLive(t, k.c, job)
	k.untouched(now)
	require.Greater(t, now.epoch, before.epoch, "the epoch after a restore")
	require.Equal(t, now.epoch, res.Epoch)
	d.quiet(job.Name)
	d.withStore(func(db *bolt.DB) {
		c, _ := reading(t, db, id)
		require.Empty(t, c.differences(now.content, now.now), "checkpoint %d and the live state", id)
		if res.Undo != 0 {
			undo, _ := reading(t, db, res.Undo)
			require.Empty(t, before.differences(undo, now.now), "the undo checkpoint %d", res.Undo)
		}
	})
	require.Empty(t, violations(now.content, k.static, k.memory), "the restored state")
}
