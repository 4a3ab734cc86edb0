package bolt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func (f *fixture) edit(fn func(tx *bbolt.Tx) error) {
	f.t.Helper()
	require.NoError(f.t, f.db.file.Update(fn))
}

// lostManifests are the ways in which a checkpoint's chunks become unknown.
var lostManifests = map[string]func(h history, id snapshot.ID) error{
	"damaged": func(h history, id snapshot.ID) error {
		b := bytes.Clone(h.manifests.Get(idKey(id)))
		b[len(b)-3] ^= 1
		return h.manifests.Put(idKey(id), b)
	},
	"of another": func(h history, id snapshot.ID) error {
		m, err := snapshot.DecodeManifest(h.manifests.Get(idKey(id)))
		if err != nil {
			return err
		}
		m.Checkpoint.ID += 7
		m.Attempt = m.Checkpoint.ID
		b, err := snapshot.EncodeManifest(m)
		if err != nil {
			return err
		}
		return h.manifests.Put(idKey(id), b)
	},
	"gone": func(h history, id snapshot.ID) error { return h.manifests.Delete(idKey(id)) },
	"gone with its row": func(h history, id snapshot.ID) error {
		if err := h.rows.Put(idKey(id), []byte("{")); err != nil {
			return err
		}
		return h.manifests.Delete(idKey(id))
	},
}

func (f *fixture) lose(job string, id snapshot.ID, how func(history, snapshot.ID) error) {
	f.t.Helper()
	f.edit(func(tx *bbolt.Tx) error {
		h, _, err := openHistory(tx, job)
		if err != nil {
			return err
		}
		return how(h, id)
	})
}

func (f *fixture) chunks() int {
	f.t.Helper()
	st, err := f.db.Stats(context.Background())
	require.NoError(f.t, err)
	return st.Chunks
}

// TestACheckpointWithoutManifestCanBeDeleted has two of them, each of which
// shares chunks with a sound one. Chunks go only when all are known.
func TestACheckpointWithoutManifestCanBeDeleted(t *testing.T) {
	ctx := context.Background()
	for name, how := range lostManifests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			shared := storetest.Keys("shared", 300)
			storetest.MustTake(t, f.db, storetest.Attempt("flights"), shared)
			kept := f.chunks()
			storetest.MustTake(t, f.db, storetest.Attempt("flights"), shared)
			storetest.MustTake(t, f.db, storetest.Attempt("trains"), storetest.Keys("own", 300))
			all := f.chunks()
			f.lose("flights", 2, how)
			f.lose("trains", 1, how)

			require.NoError(t, f.db.Delete(ctx, "trains", 1))
			require.ErrorIs(t, f.db.Delete(ctx, "trains", 1), snapshot.ErrNoCheckpoint)
			require.Equal(t, all, f.chunks(), "the other one may count on any of them")
			f.reopen()
			require.Equal(t, all, f.chunks())
			mustSay(t, f.db, "have more references than the manifests that can be read")

			require.NoError(t, f.db.Delete(ctx, "flights", 2))
			require.Equal(t, kept, f.chunks())
			storetest.MustHold(t, f.db, "flights", 1, shared)
			storetest.MustBeClean(t, f.db)
			storetest.MustBeClean(t, f.reopen())
			require.NoError(t, f.db.Delete(ctx, "flights", 1))
			require.Zero(t, f.chunks())
		})
	}
}

func mustSay(t *testing.T, db *DB, says string) {
	t.Helper()
	problems, err := db.Check(context.Background())
	require.NoError(t, err)
	require.LessOrEqual(t, len(problems), 3, "not one for each chunk: %v", problems)
	var all []string
	for _, p := range problems {
		all = append(all, p.String())
	}
	require.Contains(t, strings.Join(all, "\n"), says)
}

// TestARecountLeavesAnAttemptsChunks deletes the damaged checkpoint while an
// attempt counts on its chunks, which no manifest names then.
func TestARecountLeavesAnAttemptsChunks(t *testing.T) {
	ctx := context.Background()
	f := newFixture(t)
	keys, a := storetest.Keys("s", 300), storetest.Attempt("flights")
	storetest.MustTake(t, f.db, a, keys)
	f.lose("flights", 1, lostManifests["damaged"])
	w, err := f.db.Begin(ctx, a)
	require.NoError(t, err)
	defer w.Abort()
	sum, err := storetest.Encode(ctx, w, keys)
	require.NoError(t, err)
	require.Zero(t, w.StoredBytes())
	require.NoError(t, f.db.Delete(ctx, "flights", 1))
	storetest.MustBeClean(t, f.db)
	require.NoError(t, w.Commit(ctx, storetest.ManifestOf(a, w.ID(), sum)))
	storetest.MustHold(t, f.db, "flights", 2, keys)
}

// TestAManifestOfANewerVersionStays: it is no damage.
func TestAManifestOfANewerVersionStays(t *testing.T) {
	f := newFixture(t)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 100))
	f.lose("flights", 1, func(h history, id snapshot.ID) error {
		return h.manifests.Put(idKey(id), newerManifest(h.manifests.Get(idKey(id))))
	})
	before := f.chunks()
	err := f.db.Delete(context.Background(), "flights", 1)
	require.ErrorIs(t, err, snapshot.ErrNewerFormat)
	require.ErrorContains(t, err, "upgrade")
	require.Equal(t, before, f.chunks())
}

// newerManifest is a manifest with the version of a later format, and the
// checksum over it (FORMAT.md).
func newerManifest(b []byte) []byte {
	const head, body = 12, 12 + sha256.Size
	b = bytes.Clone(b)
	b[4]++
	sum := sha256.Sum256(append(bytes.Clone(b[:head]), b[body:]...))
	copy(b[head:], sum[:])
	return b
}

// TestCountsThatAreTooLowAreRaised at the start, before anything is swept: a
// checkpoint must not lose its chunks by a damaged count.
func TestCountsThatAreTooLowAreRaised(t *testing.T) {
	f := newFixture(t)
	keys := storetest.Keys("s", 300)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
	for i, refs := range []uint32{0, 1} {
		e := f.entry(m.Chunks[i].ID)
		e.refs = refs
		f.putEntry(m.Chunks[i].ID, e)
	}
	f.reopen()
	storetest.MustBeClean(t, f.db)
	storetest.MustHold(t, f.db, "flights", 1, keys)
}

// TestAnIndexEntryThatIsLost is stored again by the next checkpoint, with the
// count of all that name it: deleting one leaves the others whole.
func TestAnIndexEntryThatIsLost(t *testing.T) {
	ctx := context.Background()
	for name, lose := range map[string]func(index *bbolt.Bucket, id []byte) error{
		"gone": func(index *bbolt.Bucket, id []byte) error { return index.Delete(id) },
		"cut":  func(index *bbolt.Bucket, id []byte) error { return index.Put(id, []byte("12345")) },
	} {
		f := newFixture(t)
		keys := storetest.Keys("s", 300)
		m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
		id := m.Chunks[1].ID
		f.edit(func(tx *bbolt.Tx) error { return lose(tx.Bucket(bucketIndex), id[:]) })
		f.reopen()
		storetest.MustTake(t, f.db, storetest.Attempt("flights"), keys)
		require.Equal(t, uint32(2), f.entry(id).refs, name)
		storetest.MustHold(t, f.db, "flights", 1, keys)
		require.NoError(t, f.db.Delete(ctx, "flights", 1))
		storetest.MustHold(t, f.db, "flights", 2, keys)
	}
}

// TestABadIndexEntryDoesNotKeepACheckpoint from being deleted.
func TestABadIndexEntryDoesNotKeepACheckpoint(t *testing.T) {
	f := newFixture(t)
	m := storetest.MustTake(t, f.db, storetest.Attempt("flights"), storetest.Keys("s", 300))
	id := m.Chunks[0].ID
	f.edit(func(tx *bbolt.Tx) error { return tx.Bucket(bucketIndex).Put(id[:], []byte("12345")) })
	require.NoError(t, f.db.Delete(context.Background(), "flights", 1))
	mustSay(t, f.db, "index entry of 5 bytes")
}
