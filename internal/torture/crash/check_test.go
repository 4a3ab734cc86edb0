package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// check looks at everything after a restart.
func (r *rig) check(o operation) {
	r.t.Helper()
	now := readLive(r.t, r.c)
	r.stateIs(o, now)
	require.False(r.t, r.marked(), "the mark of a restore")
	require.Equal(r.t, r.was.foreign, now.foreign, "keys of others")
	require.GreaterOrEqual(r.t, now.epoch, r.epoch, "the epoch")
	r.epoch = now.epoch
	history := r.history()
	r.contents(o, history, now)
	r.listed(history)
	r.verified(history)
	r.clean()
}

// stateIs demands that the live state is the one before, or the one that the
// operation puts in place, to the byte.
func (r *rig) stateIs(o operation, now live) {
	r.t.Helper()
	before := r.was.content.differences(now.content)
	switch {
	case len(before) == 0:
	case o.rescales && now.epoch > r.was.epoch:
		r.rescaled(now)
	case o.restores && now.epoch > r.was.epoch:
		require.Empty(r.t, r.truth[r.target].differences(now.content), "the live state after a restore of checkpoint %d", r.target)
	default:
		require.Empty(r.t, before, "the live state before and after")
	}
}

// rescaled is I4: nothing is lost, added or altered.
func (r *rig) rescaled(now live) {
	r.t.Helper()
	require.Empty(r.t, r.was.content.without(":opstate:").differences(now.content.without(":opstate:")), "keyed state after a rescale")
	p := get[api.Job](r.daemon, path("")).Parallelism
	var list []string
	for i := range p {
		part, err := r.c.LRange(r.t.Context(), operatorKey(i, operatorList), 0, -1).Result()
		require.NoError(r.t, err)
		list = append(list, part...)
		union, err := r.c.LRange(r.t.Context(), operatorKey(i, "seen"), 0, -1).Result()
		require.NoError(r.t, err)
		require.Equal(r.t, []string{`"u0"`, `"u1"`, `"u2"`}, union, "the union of subtask %d of %d", i, p)
		rules, err := r.c.HGetAll(r.t.Context(), operatorKey(i, "rules")).Result()
		require.NoError(r.t, err)
		require.Equal(r.t, map[string]string{`"late"`: "15", `"very late"`: "60.0"}, rules, "the broadcast of subtask %d of %d", i, p)
	}
	want := []string{}
	for i := range 11 {
		want = append(want, fmt.Sprintf(`"p%d"`, i))
	}
	require.ElementsMatch(r.t, want, list, "the list state at parallelism %d", p)
}

// listed is I1, I6 and I10 of a history.
func (r *rig) listed(history []snapshot.Checkpoint) {
	r.t.Helper()
	last, there := snapshot.ID(0), map[snapshot.ID]bool{}
	for _, cp := range history {
		require.Greater(r.t, cp.ID, last, "ids in the list")
		last = cp.ID
		require.Contains(r.t, []snapshot.State{snapshot.StateCompleted, snapshot.StateFailed}, cp.State)
		require.False(r.t, r.completed[cp.ID] && cp.State != snapshot.StateCompleted, "checkpoint %d was completed", cp.ID)
		there[cp.ID] = true
	}
	for id := range r.completed {
		newer := 0
		for other := range r.truth {
			if other > id {
				newer++ // or was when that one went
			}
		}
		require.True(r.t, there[id] || newer >= keep || id == r.deleted, "checkpoint %d is gone", id)
		if !there[id] {
			delete(r.completed, id)
		}
	}
	require.GreaterOrEqual(r.t, last, r.newest, "the newest id")
	r.newest = last
}

// contents reads every completed checkpoint out of a copy of the store file and
// holds it to what the state was when it was taken.
func (r *rig) contents(o operation, history []snapshot.Checkpoint, now live) {
	r.t.Helper()
	for _, cp := range history {
		if cp.State != snapshot.StateCompleted {
			continue
		}
		switch want := r.was.content; {
		case r.truth[cp.ID] != nil:
		case cp.Trigger == snapshot.TriggerImport:
			r.know(cp.ID, r.truth[r.target])
		case cp.Trigger == snapshot.TriggerRescale:
			require.True(r.t, o.rescales && now.epoch > r.was.epoch, "checkpoint %d of a rescale that didn't happen", cp.ID)
			r.know(cp.ID, now.content)
		default:
			r.know(cp.ID, want)
		}
	}
	r.withCopy(r.store, func(db *bolt.DB) {
		for _, cp := range history {
			if cp.State == snapshot.StateCompleted {
				require.Empty(r.t, r.truth[cp.ID].differences(reading(r, db, cp.ID)), "checkpoint %d (%s)", cp.ID, cp.Trigger)
			}
		}
	})
}

// withCopy opens a copy of a store file, so that nothing of the running process
// is trusted, and checks it whole. The file must be at rest.
func (r *rig) withCopy(file string, fn func(db *bolt.DB)) {
	r.t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(r.t, err)
	copied := filepath.Join(r.t.TempDir(), "looked-at.db")
	require.NoError(r.t, os.WriteFile(copied, data, 0o600))
	db, err := bolt.Open(r.t.Context(), copied, bolt.Options{})
	require.NoError(r.t, err)
	problems, err := db.Check(r.t.Context())
	require.NoError(r.t, err)
	require.Empty(r.t, problems)
	fn(db)
	require.NoError(r.t, db.Close())
	require.NoError(r.t, os.Remove(copied))
}

func reading(r *rig, db *bolt.DB, id snapshot.ID) content {
	m, err := db.Manifest(r.t.Context(), job.Name, id)
	require.NoError(r.t, err)
	var rec snapshot.Recorder
	require.NoError(r.t, snapshot.Walk(r.t.Context(), db, m, &rec), "checkpoint %d", id)
	return recorded(&rec)
}

// verified has the coordinator verify the newest completed checkpoint and the
// store.
func (r *rig) verified(history []snapshot.Checkpoint) {
	r.t.Helper()
	for _, cp := range slices.Backward(history) {
		if cp.State == snapshot.StateCompleted {
			op := r.follow(post[api.Operation](r.daemon, path("/checkpoints/%d/verify", cp.ID), nil))
			require.True(r.t, op.Verify.OK, "checkpoint %d: %v", cp.ID, op.Verify.Problems)
			break
		}
	}
	found := post[api.StoreCheck](r.daemon, "/store/verify", nil)
	require.True(r.t, found.OK, "store verify: %v", found.Problems)
}

// clean demands that nothing is left over, in Redis and on the disk. Parts of
// copies are removed when they are an hour old, so they are made so old.
func (r *rig) clean() {
	r.t.Helper()
	r.until("cleaning", func() (string, bool) {
		left := readLive(r.t, r.c).left
		return fmt.Sprint(left), len(left) == 0
	})
	parts := 0
	for _, p := range r.leftovers() {
		if r.copies != "" && strings.HasPrefix(p, r.copies) {
			old := time.Now().Add(-2 * time.Hour)
			require.NoError(r.t, os.Chtimes(p, old, old))
			parts++
		}
	}
	if parts > 0 {
		r.churn()
		r.take() // has the directory looked at
		r.rest()
	}
	require.Empty(r.t, r.leftovers(), "files that are left over")
}
