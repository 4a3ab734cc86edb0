package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

func scanBytes(t testing.TB, b []byte) *scan {
	t.Helper()
	s, err := scanFile(context.Background(), bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	return s
}

func TestScanAcceptsWhatBboltWrites(t *testing.T) {
	for name, fill := range map[string]func(tx *bbolt.Tx) error{
		"nothing": func(*bbolt.Tx) error { return nil },
		"deep, wide, large": func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte("b"))
			for i := 0; err == nil && i < 5000; i++ {
				err = b.Put(binary.BigEndian.AppendUint32(nil, uint32(i*7919)), make([]byte, i%300))
			}
			for i := 0; err == nil && i < 20; i++ {
				if b, err = b.CreateBucket([]byte("in")); err == nil {
					err = b.Put(make([]byte, 1+i*1000), make([]byte, i*5000))
				}
			}
			return err
		},
	} {
		s := scanBytes(t, boltFile(t, fill)) // without a free list
		require.Empty(t, s.problems, name)
		require.Zero(t, s.leaked, name)
	}
	s := scanBytes(t, storeFile(t))
	require.Empty(t, s.problems)
	require.Zero(t, s.leaked)
	require.ElementsMatch(t, []string{"chunks", "index", "jobs", "journal", "keyframe"}, s.top)
}

// TestScanFindsWhatIsWrong breaks one thing each in a store's pages.
func TestScanFindsWhatIsWrong(t *testing.T) {
	good := storeFile(t)
	m, err := readMeta(bytes.NewReader(good), int64(len(good)))
	require.NoError(t, err)
	e := binary.NativeEndian
	at := func(page uint64) int { return int(page) * int(m.pageSize) }
	root, free := at(m.root), at(m.freelist)
	for name, test := range map[string]struct {
		spoil func(b []byte)
		says  string
	}{
		"another page's number":  {func(b []byte) { e.PutUint64(b[root:], 999) }, "calls itself page 999"},
		"no such page type":      {func(b []byte) { e.PutUint16(b[root+8:], 0x40) }, "has type 0x40"},
		"more elements than fit": {func(b []byte) { e.PutUint16(b[root+10:], 5000) }, "don't fit"},
		"overflow past the end":  {func(b []byte) { e.PutUint32(b[root+12:], 1<<30) }, "reach beyond the file's"},
		"a key outside":          {func(b []byte) { e.PutUint32(b[root+16+8:], 30_000) }, "lies outside the page"},
		"keys that overlap": {func(b []byte) {
			for i := range 2 {
				el := root + 16 + i*16
				e.PutUint32(b[el+4:], 200)
				e.PutUint32(b[el+8:], 2500)
			}
		}, "lies outside the page"},
		"keys out of order":     {func(b []byte) { b[root+16+int(e.Uint32(b[root+20:]))] = 'z' }, "is not greater than the one before"},
		"a bucket without root": {func(b []byte) { b[root+16+12] = 9 }, "a bucket's entry has 9 bytes"},
		"the free list is none": {func(b []byte) { e.PutUint16(b[free+8:], flagLeaf) }, "instead of free list"},
		"too many free pages":   {func(b []byte) { e.PutUint16(b[free+10:], 0xffff); e.PutUint64(b[free+16:], 1<<60) }, "doesn't fit"},
		"a used page is free":   {func(b []byte) { e.PutUint64(b[free+16:], m.root) }, "is free and used"},
		"free twice":            {func(b []byte) { copy(b[free+24:free+32], b[free+16:free+24]) }, "is free twice"},
		"free outside":          {func(b []byte) { e.PutUint64(b[free+16:], 1<<40) }, "is outside the file's"},
	} {
		b := append([]byte(nil), good...)
		test.spoil(b)
		s := scanBytes(t, b)
		require.NotEmpty(t, s.problems, name)
		require.Contains(t, s.problems[0], test.says, name)
		path := filepath.Join(t.TempDir(), "keyframe.db")
		require.NoError(t, os.WriteFile(path, b, 0o600))
		require.ErrorIs(t, Probe(path), snapshot.ErrCorrupt, name)
	}
}

func TestScanCountsLostPages(t *testing.T) {
	b := storeFile(t)
	m, err := readMeta(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	count := b[int64(m.freelist)*m.pageSize+10:]
	n := binary.NativeEndian.Uint16(count)
	require.Greater(t, n, uint16(2))
	binary.NativeEndian.PutUint16(count, n-2)
	s := scanBytes(t, b)
	require.Empty(t, s.problems)
	require.Equal(t, 2, s.leaked)

	path := filepath.Join(t.TempDir(), "keyframe.db")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	require.NoError(t, Probe(path), "lost room is no reason not to start")
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	problems, err := db.Check(context.Background())
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.Equal(t, "file: 2 pages are neither used nor free", problems[0].String())
	require.NoError(t, db.Close())
}

var errDisk = errors.New("the disk can't read this")

// badDisk fails reads that touch one page.
type badDisk struct {
	io.ReaderAt
	from, to int64
}

func (d badDisk) ReadAt(b []byte, at int64) (int, error) {
	if at < d.to && at+int64(len(b)) > d.from {
		return 0, errDisk
	}
	return d.ReaderAt.ReadAt(b, at)
}

func TestScanGivesTheErrorsOfReading(t *testing.T) {
	b := storeFile(t)
	m, err := readMeta(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	for _, page := range []uint64{m.root, m.freelist} {
		from := int64(page) * m.pageSize
		_, err := scanFile(context.Background(), badDisk{bytes.NewReader(b), from, from + m.pageSize}, int64(len(b)))
		require.ErrorIs(t, err, errDisk)
		require.NotErrorIs(t, err, snapshot.ErrCorrupt, "a disk that can't be read proves nothing about the file")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = scanFile(ctx, bytes.NewReader(b), int64(len(b)))
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzScan: any bytes give an error or problems, never a panic.
func FuzzScan(f *testing.F) {
	// Small pages, so that the fuzzer turns over more of them in a second.
	path := filepath.Join(f.TempDir(), "small.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 1024})
	require.NoError(f, err)
	require.NoError(f, db.Update(layDown))
	require.NoError(f, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketChunks).Put(seqKey(7), make([]byte, 2000)) }))
	require.NoError(f, db.Close())
	good, err := os.ReadFile(path)
	require.NoError(f, err)
	good = good[:16<<10]
	require.Empty(f, scanBytes(f, good).problems)
	f.Add(good, uint32(0), []byte{})
	for i := range uint32(40) {
		f.Add(good, i*977, []byte{0xff, byte(i), 0})
	}
	f.Add([]byte{}, uint32(0), []byte{1})
	f.Fuzz(func(t *testing.T, b []byte, at uint32, with []byte) {
		b = append([]byte(nil), b...)
		if len(b) > 0 {
			copy(b[int(at)%len(b):], with)
		}
		s, err := scanFile(context.Background(), bytes.NewReader(b), int64(len(b)))
		if err == nil {
			_ = s.identify() // must not panic
		}
	})
}

// TestAnyDamageIsAnErrorAndNoFall (case 33) overwrites random bytes of a
// store's pages in use. Either Open refuses the file and leaves it alone, or
// the store works and Check, in whose hands the content is, says what is wrong.
func TestAnyDamageIsAnErrorAndNoFall(t *testing.T) {
	good := storeFile(t)
	s := scanBytes(t, good)
	used := []uint64{0, 1}
	for id := uint64(2); id < s.meta.high; id++ {
		if s.used.has(id) {
			used = append(used, id)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	path := filepath.Join(t.TempDir(), "keyframe.db")
	ends := map[string]int{}
	for range 150 {
		bad := append([]byte(nil), good...)
		for range 1 + rng.IntN(3) {
			// Half of them in the header and the elements.
			at := int(used[rng.IntN(len(used))])*int(s.meta.pageSize) + rng.IntN(rng.IntN(2)*4000+96)
			bad[at] ^= byte(1 + rng.IntN(255))
		}
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		ends[damagedEnd(t, path, bad)]++
	}
	t.Log(ends)
	require.Greater(t, ends["refused"], 10)
	require.Greater(t, ends["found"], 5)
}

// damagedEnd opens a damaged store and says how that ended.
func damagedEnd(t *testing.T, path string, content []byte) string {
	t.Helper()
	ctx := context.Background()
	db, err := Open(ctx, path, Options{})
	if err != nil {
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, after))
		return "refused"
	}
	defer func() { require.NoError(t, db.Close()) }()
	problems, err := db.Check(ctx)
	if err != nil || len(problems) > 0 {
		return "found"
	}
	// In a place that no one reads, or in a meta page, which takes the store
	// back by one transaction at most: the journal's.
	storetest.MustHold(t, db, "flights", 1, storetest.Keys("kept", 600))
	return "harmless"
}
