package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func firstChunk(tx *bbolt.Tx) (id []byte, e entry) {
	k, v := tx.Bucket(bucketIndex).Cursor().First()
	return bytes.Clone(k), entry{binary.BigEndian.Uint64(v), binary.BigEndian.Uint32(v[8:]), binary.BigEndian.Uint32(v[12:])}
}

func flights(tx *bbolt.Tx) *bbolt.Bucket { return tx.Bucket(bucketJobs).Bucket([]byte("flights")) }

func editRow(change func(c *snapshot.Checkpoint)) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		h, _, err := openHistory(tx, "flights")
		if err != nil {
			return err
		}
		c, _, err := h.row(1)
		if err != nil {
			return err
		}
		change(&c)
		return h.putRow(c)
	}
}

// spoiled is one thing that is wrong, and what Check says of it.
type spoiled struct {
	spoil func(tx *bbolt.Tx) error
	says  string
}

var spoiledChunks = map[string]spoiled{
	"a chunk's bytes missing": {func(tx *bbolt.Tx) error {
		_, e := firstChunk(tx)
		return tx.Bucket(bucketChunks).Delete(seqKey(e.seq))
	}, "are missing"},
	"a chunk of another length": {func(tx *bbolt.Tx) error {
		_, e := firstChunk(tx)
		return tx.Bucket(bucketChunks).Put(seqKey(e.seq), []byte("short"))
	}, "it has 5 bytes, the index says"},
	"a chunk of other bytes": {func(tx *bbolt.Tx) error {
		_, e := firstChunk(tx)
		b := bytes.Clone(tx.Bucket(bucketChunks).Get(seqKey(e.seq)))
		b[len(b)/2] ^= 4
		return tx.Bucket(bucketChunks).Put(seqKey(e.seq), b)
	}, "checkpoint 1"},
	"a chunk not in the index": {func(tx *bbolt.Tx) error {
		id, _ := firstChunk(tx)
		return tx.Bucket(bucketIndex).Delete(id)
	}, "it is not in the index"},
	"bytes that nothing names": {func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketChunks).Put(seqKey(9999), []byte("lost"))
	}, "bytes that the index does not name"},
	"a wrong count of references": {func(tx *bbolt.Tx) error {
		id, e := firstChunk(tx)
		e.refs += 4
		return tx.Bucket(bucketIndex).Put(id, e.encode())
	}, "1 manifests name it, the index says 5"},
	"an orphan": {func(tx *bbolt.Tx) error {
		id := snapshot.ChunkID{0xaa}
		if err := tx.Bucket(bucketChunks).Put(seqKey(777), []byte("orphan")); err != nil {
			return err
		}
		return tx.Bucket(bucketIndex).Put(id[:], entry{seq: 777, stored: 6}.encode())
	}, "no manifest names it"},
	"an index entry cut": {func(tx *bbolt.Tx) error {
		id, _ := firstChunk(tx)
		return tx.Bucket(bucketIndex).Put(id, []byte("12345"))
	}, "index entry of 5 bytes"},
	"a key of the index cut": {func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketIndex).Put([]byte("key"), entry{}.encode())
	}, "a key of 3 bytes"},
	"a number given twice": {func(tx *bbolt.Tx) error {
		_, e := firstChunk(tx)
		id := snapshot.ChunkID{0xbb}
		return tx.Bucket(bucketIndex).Put(id[:], entry{seq: e.seq, stored: e.stored}.encode())
	}, "two chunks in the index have it"},
}

var spoiledRows = map[string]spoiled{
	"a completed row without manifest": {func(tx *bbolt.Tx) error {
		return flights(tx).Bucket(bucketManifests).Delete(idKey(1))
	}, "is completed and has none"},
	"a manifest without row": {func(tx *bbolt.Tx) error {
		return flights(tx).Bucket(bucketRows).Delete(idKey(1))
	}, "has no row"},
	"a manifest that can't be read": {func(tx *bbolt.Tx) error {
		b := bytes.Clone(flights(tx).Bucket(bucketManifests).Get(idKey(1)))
		b[len(b)-3] ^= 1
		return flights(tx).Bucket(bucketManifests).Put(idKey(1), b)
	}, "corrupt"},
	"a row that can't be read": {func(tx *bbolt.Tx) error {
		return flights(tx).Bucket(bucketRows).Put(idKey(1), []byte("{"))
	}, "can't be read"},
	"a row of another job":  {editRow(func(c *snapshot.Checkpoint) { c.Keys = 4242 }), "differs from the manifest's checkpoint"},
	"a row with other time": {editRow(func(c *snapshot.Checkpoint) { c.StartedAt = c.StartedAt.AddDate(0, 0, 1) }), "differs"},
	"a row with other sources": {editRow(func(c *snapshot.Checkpoint) { c.Sources[0].LastID = "9-9" }),
		"differs"},
	"in progress for ever": {editRow(func(c *snapshot.Checkpoint) { c.State = snapshot.StateInProgress }), "no one is making it"},
	"failed with manifest": {editRow(func(c *snapshot.Checkpoint) { c.State = snapshot.StateFailed }), "the attempt is failed and has one"},
	"failed, no reason":    {editRow(func(c *snapshot.Checkpoint) { c.State = snapshot.StateFailed }), "has no reason"},
	"no such state":        {editRow(func(c *snapshot.Checkpoint) { c.State = "done" }), `"done" is none`},
	"the counter behind":   {func(tx *bbolt.Tx) error { return flights(tx).Put(keyLast, idKey(0)) }, "it is 0, and there is a checkpoint 1"},
	"the counter cut":      {func(tx *bbolt.Tx) error { return flights(tx).Put(keyLast, []byte("7")) }, "a number has 1 bytes"},
	"a history without rows": {func(tx *bbolt.Tx) error {
		return flights(tx).DeleteBucket(bucketRows)
	}, "lacks a bucket"},
}

// TestCheckFindsWhatIsWrong breaks one relation each.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	for _, table := range []map[string]spoiled{spoiledChunks, spoiledRows} {
		for name, test := range table {
			f := newFixture(t)
			storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 200))
			storetest.MustBeClean(t, f.db)
			require.NoError(t, f.db.file.Update(test.spoil), name)
			problems, err := f.db.Check(context.Background())
			require.NoError(t, err, name)
			var all []string
			for _, p := range problems {
				all = append(all, p.String())
			}
			require.Contains(t, strings.Join(all, "\n"), test.says, name)
		}
	}
}

// TestARowThatCannotBeReadIsAnError (habit: corruption must not look like
// absence) is for each way to read a history.
func TestARowThatCannotBeReadIsAnError(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 20))
	storetest.MustTake(t, f.db, storetest.Attempt("trains"), storetest.Keys("t", 20))
	for name, value := range map[string]string{"cut": `{"job":"fli`, "of another": `{"job":"trains","id":1}`} {
		require.NoError(t, f.db.file.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketJobs).Bucket([]byte("flights")).Bucket(bucketRows).Put(idKey(1), []byte(value))
		}))
		f.reopen()
		_, err := f.db.List(ctx, "flights")
		require.ErrorIs(t, err, snapshot.ErrCorrupt, name)
		require.ErrorContains(t, err, `job "flights" checkpoint 1`, name)
		_, err = f.db.Manifest(ctx, "flights", 1)
		require.ErrorIs(t, err, snapshot.ErrCorrupt, name)
		yes := true
		_, err = f.db.Edit(ctx, "flights", 1, snapshot.Change{Pinned: &yes})
		require.ErrorIs(t, err, snapshot.ErrCorrupt, name)
		storetest.MustHold(t, f.db, "trains", 1, storetest.Keys("t", 20))
	}
	w, err := f.db.Begin(ctx, storetest.Attempt("flights"))
	require.NoError(t, err, "the job can go on")
	w.Abort()
	require.NoError(t, f.db.Delete(ctx, "flights", 1), "and its bad row can be deleted")
	storetest.MustBeClean(t, f.db)
}

// TestIDsGoOnFromTheRows has a counter that is behind.
func TestIDsGoOnFromTheRows(t *testing.T) {
	f := newFixture(t)
	a := storetest.Attempt("flights")
	a.After = 40
	storetest.MustTake(t, f.db, a, storetest.Keys("s", 20))
	require.NoError(t, f.db.file.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketJobs).Bucket([]byte("flights")).Put(keyLast, binary.BigEndian.AppendUint64(nil, 3))
	}))
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 20))
	require.Equal(t, snapshot.ID(42), m.Checkpoint.ID)
	storetest.MustBeClean(t, f.db)
}
