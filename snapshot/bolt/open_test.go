package bolt

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// storeFile makes a store with a checkpoint and gives its bytes.
func storeFile(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keyframe.db")
	db, err := Open(context.Background(), path, Options{})
	require.NoError(t, err)
	storetest.MustTake(t, db, storetest.Attempt("flights"), storetest.Keys("kept", 600))
	storetest.MustTake(t, db, storetest.Attempt("flights"), storetest.Keys("gone", 600))
	require.NoError(t, db.Delete(context.Background(), "flights", 2))
	require.NoError(t, db.Journal().Put(context.Background(), "jobs", "flights", []byte("{}")))
	require.NoError(t, db.Close())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// boltFile makes a bbolt file and gives its bytes.
func boltFile(t *testing.T, fill func(tx *bbolt.Tx) error) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "other.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(fill))
	require.NoError(t, db.Close())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func withFormat(n uint32) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		if err := layDown(tx); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, binary.BigEndian.AppendUint32(nil, n))
	}
}

// refused is a file that is no store of ours or is damaged.
type refused struct {
	content []byte
	is      error
	says    string
}

func foreignFiles(t *testing.T) map[string]refused {
	return map[string]refused{
		"text":             {[]byte("redis: {url: redis://127.0.0.1:6379/0}\n"), nil, "not a Keyframe store"},
		"another database": {append([]byte("SQLite format 3\x00"), make([]byte, 40_000)...), nil, "not a Keyframe store"},
		"bbolt of others": {boltFile(t, others),
			nil, "bbolt file of another program (its buckets: \"members\")"},
		"bbolt of others, cut short": {moreWanted(boltFile(t, others)), nil, "bbolt file of another program"},
		"bbolt with a key like ours": {boltFile(t, func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucketMeta)
			if err != nil {
				return err
			}
			return b.Put(keyMagic, []byte("another program's"))
		}), nil, "another program"},
	}
}

func others(tx *bbolt.Tx) error {
	_, err := tx.CreateBucket([]byte("members"))
	return err
}

// moreWanted has both meta pages of a file say that there were a hundred pages
// more.
func moreWanted(b []byte) []byte {
	for _, meta := range [][]byte{b[pageHeader:], b[os.Getpagesize()+pageHeader:]} {
		binary.NativeEndian.PutUint64(meta[40:], binary.NativeEndian.Uint64(meta[40:])+100)
		h := fnv.New64a()
		_, _ = h.Write(meta[:metaSize-8]) // never fails
		binary.NativeEndian.PutUint64(meta[metaSize-8:], h.Sum64())
	}
	return b
}

func spoiledStores(t *testing.T) map[string]refused {
	good := storeFile(t)
	spoil := func(at int, b ...byte) []byte {
		bad := append([]byte(nil), good...)
		copy(bad[at:], b)
		return bad
	}
	bothMetas := spoil(os.Getpagesize()+60, 0xff)
	bothMetas[60] ^= 0xff
	return map[string]refused{
		"nothing":        {nil, ErrNothing, "it is empty (0 bytes)"},
		"zeros":          {make([]byte, 64<<10), ErrNothing, "meta pages"},
		"one byte":       {good[:1], ErrNothing, "meta pages"},
		"newer format":   {boltFile(t, withFormat(7)), snapshot.ErrNewerFormat, "has format 7, this version reads up to 1"},
		"no format":      {boltFile(t, withFormat(0)), snapshot.ErrCorrupt, "format version"},
		"lost bucket":    {boltFile(t, func(tx *bbolt.Tx) error { _ = layDown(tx); return tx.DeleteBucket(bucketIndex) }), snapshot.ErrCorrupt, "no bucket index"},
		"cut short":      {good[:len(good)/2], snapshot.ErrCorrupt, "cut short"},
		"cut to metas":   {good[:2*os.Getpagesize()], snapshot.ErrCorrupt, "cut short"},
		"both metas bad": {bothMetas, snapshot.ErrCorrupt, "checksum"},
	}
}

// TestFilesThatAreRefusedStayAsTheyAre has one clear error each, and the file
// is the same byte for byte.
func TestFilesThatAreRefusedStayAsTheyAre(t *testing.T) {
	all := foreignFiles(t)
	maps.Copy(all, spoiledStores(t))
	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keyframe.db")
			require.NoError(t, os.WriteFile(path, test.content, 0o600))
			_, err := Open(context.Background(), path, Options{})
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "left as it is")
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			}
			require.Error(t, Probe(path))
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, string(after) == string(test.content), "the file was changed")
			require.Len(t, names(t, filepath.Dir(path)), 1, "something was left beside it")
		})
	}
}

func TestOneTornMetaPageIsGotOver(t *testing.T) {
	good := storeFile(t)
	for at := range 2 {
		bad := append([]byte(nil), good...)
		copy(bad[at*os.Getpagesize()+30:], "torn")
		path := filepath.Join(t.TempDir(), "keyframe.db")
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		db, err := Open(context.Background(), path, Options{})
		require.NoError(t, err, "meta page %d", at)
		// bbolt falls back by one transaction at most: the journal's.
		storetest.MustHold(t, db, "flights", 1, storetest.Keys("kept", 600))
		storetest.MustBeClean(t, db)
		require.NoError(t, db.Close())
	}
}

func TestPathsThatCanHoldNoStore(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	for path, says := range map[string]string{
		dir:                               "it is a folder",
		filepath.Join(dir, "no", "store"): "its folder " + filepath.Join(dir, "no") + " does not exist",
		fifo:                              "no regular file",
		filepath.Join(file, "store"):      "not a directory",
	} {
		_, err := Open(context.Background(), path, Options{})
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, path)
		require.Error(t, Probe(path))
	}
	require.Equal(t, []string{"fifo", "file"}, names(t, dir))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Open(ctx, filepath.Join(dir, "keyframe.db"), Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, names(t, dir), 2)
}

// asNobody prepares a child that has no rights of root, whose copy of the test
// binary it can reach.
func asNobody(t *testing.T, name, dir, path string) *exec.Cmd {
	t.Helper()
	cmd := child(t, name, path)
	if os.Getuid() != 0 {
		return cmd
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	self, err := os.ReadFile(cmd.Path)
	require.NoError(t, err)
	cmd.Path = filepath.Join(dir, "test-binary")
	require.NoError(t, os.WriteFile(cmd.Path, self, 0o755))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

func TestAFileThatMayNotBeWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keyframe.db")
	good := storeFile(t)
	require.NoError(t, os.WriteFile(path, good, 0o444))
	out, err := asNobody(t, "open", dir, path).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "can't be read and written by user")
	locked := filepath.Join(dir, "locked")
	require.NoError(t, os.Mkdir(locked, 0o555))
	out, err = asNobody(t, "open", dir, filepath.Join(locked, "keyframe.db")).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "can't be written by user")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, string(good) == string(after))
}

func TestAFileThatAnotherProcessHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	cmd := child(t, "hold", path)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out := lines(t, cmd)
	require.True(t, out.Scan())
	start := time.Now()
	_, err = Open(context.Background(), path, Options{Timeout: 150 * time.Millisecond})
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "the daemon owns the store file")
	require.ErrorContains(t, err, fmt.Sprintf("process %d (", cmd.Process.Pid))
	require.GreaterOrEqual(t, time.Since(start), 150*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = Open(ctx, path, Options{Timeout: time.Hour})
	require.ErrorIs(t, err, context.Canceled)

	// It lets go while we wait.
	time.AfterFunc(50*time.Millisecond, func() { _ = in.Close() })
	db, err := Open(context.Background(), path, Options{Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	_, err = Open(context.Background(), path, Options{Timeout: 50 * time.Millisecond})
	require.ErrorContains(t, err, fmt.Sprintf("process %d (", os.Getpid()), "also when it is this process")
	storetest.MustBeClean(t, db)
	require.NoError(t, db.Close())
}

func TestTwoWhoMakeTheSameStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyframe.db")
	type opened struct {
		db  *DB
		err error
	}
	all := make(chan opened, 4)
	for range cap(all) {
		go func() {
			db, err := Open(context.Background(), path, Options{Timeout: 300 * time.Millisecond})
			all <- opened{db, err}
		}()
	}
	var winner *DB
	for range cap(all) {
		o := <-all
		if o.err != nil {
			require.ErrorContains(t, o.err, "holds it")
			require.ErrorIs(t, o.err, ErrHeld)
			continue
		}
		require.Nil(t, winner, "two have the store open")
		winner = o.db
	}
	require.NotNil(t, winner)
	storetest.MustBeClean(t, winner)
	require.NoError(t, winner.Close())
	require.Equal(t, []string{"keyframe.db"}, names(t, filepath.Dir(path)))
}

func TestLockHolder(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 11 fe:00:4242 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:00:42420 0 EOF
3: FLOCK  ADVISORY  WRITE 0 fe:00:4242 0 EOF
4: -> FLOCK  ADVISORY  WRITE 13 fe:00:4242 0 EOF
5: FLOCK  ADVISORY  WRITE 1234 00:2e:4242 0 EOF
6: FLOCK  ADVISORY`
	require.Equal(t, 1234, lockHolder(locks, 4242))
	require.Equal(t, 12, lockHolder(locks, 42420))
	require.Zero(t, lockHolder(locks, 424))
	require.Zero(t, lockHolder("", 4242))
}
