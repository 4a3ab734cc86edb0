package witness

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

// Store is a copy of a store's file. It sees what was committed when the copy
// was made. Not safe for concurrent use.
type Store struct {
	db  *bbolt.DB
	dir string
}

// OpenStore copies a store's file into a folder of its own inside of dir ("" is
// the system's folder for such) and opens the copy. The file may be in use: it
// is copied again while a transaction was committed meanwhile, for 10 seconds
// at most; so stop (SIGSTOP) a coordinator that commits without a rest. The
// file itself is only read, and not locked.
func OpenStore(path, dir string) (*Store, error) {
	own, err := os.MkdirTemp(dir, "witness-")
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	s := &Store{dir: own}
	file := filepath.Join(own, "copy.db")
	if err := copyQuiet(path, file); err != nil {
		return nil, errors.Join(fmt.Errorf("witness: copy of %s: %w", path, err), s.Close())
	}
	err = guard(func() (err error) {
		s.db, err = bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
		if err != nil {
			return err
		}
		return s.db.View(checkMeta)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("witness: copy of %s: %w", path, err), s.Close())
	}
	return s, nil
}

// guard makes an error of what bbolt does with a damaged file.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	return fn()
}

func checkMeta(tx *bbolt.Tx) error {
	meta := tx.Bucket([]byte("keyframe"))
	if meta == nil {
		return errors.New("it has no bucket keyframe")
	}
	if magic, format := meta.Get([]byte("magic")), meta.Get([]byte("format")); string(magic) != "keyframe checkpoint store" ||
		len(format) != 4 || binary.BigEndian.Uint32(format) != 1 {
		return fmt.Errorf("its magic is %q, its format % x", magic, format)
	}
	for _, name := range []string{"jobs", "chunks", "index"} {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("it has no bucket %s", name)
		}
	}
	return nil
}

// Close closes and removes the copy.
func (s *Store) Close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *Store) view(fn func(tx *bbolt.Tx) error) error {
	return guard(func() error { return s.db.View(fn) })
}

// Jobs are the names of all jobs of the file.
func (s *Store) Jobs() (names []string, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("jobs")).ForEachBucket(func(name []byte) error {
			names = append(names, string(name))
			return nil
		})
	})
	return names, err
}

// Checkpoints are a job's rows by id, also of failed attempts; none of a job
// that the file doesn't know.
func (s *Store) Checkpoints(job string) (all []Checkpoint, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("jobs")).Bucket([]byte(job))
		if b == nil {
			return nil
		}
		rows := b.Bucket([]byte("rows"))
		if rows == nil {
			return errors.New("it has no rows")
		}
		return rows.ForEach(func(key, value []byte) error {
			c, err := readRow(value)
			if err != nil {
				return err
			}
			if len(key) != 8 || binary.BigEndian.Uint64(key) != c.ID || c.Job != job {
				return fmt.Errorf("row % x says job %q, id %d", key, c.Job, c.ID)
			}
			all = append(all, c)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("job %q: %w", job, err)
	}
	return all, nil
}

// Last is the greatest id that the file says the job ever had, 0 for none.
func (s *Store) Last(job string) (id uint64, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("jobs")).Bucket([]byte(job))
		if b == nil {
			return nil
		}
		if last := b.Get([]byte("last")); len(last) == 8 {
			id = binary.BigEndian.Uint64(last)
		} else if last != nil {
			return fmt.Errorf("job %q: its last id is % x", job, last)
		}
		return nil
	})
	return id, err
}

// State reads a completed checkpoint whole: manifest, layers, chunks. Each
// checksum, count and digest is checked, and the row is held to the manifest.
func (s *Store) State(job string, id uint64) (*State, error) {
	var out *State
	err := s.view(func(tx *bbolt.Tx) error {
		m, err := manifestOf(tx, job, id)
		if err != nil {
			return err
		}
		all, err := readSections(m, func(id string) ([]byte, error) { return storedChunk(tx, id) })
		if err != nil {
			return err
		}
		out, err = m.state(all, m.root())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint %d of job %q: %w", id, job, err)
	}
	return out, nil
}

func manifestOf(tx *bbolt.Tx, job string, id uint64) (*manifest, error) {
	key := binary.BigEndian.AppendUint64(nil, id)
	b := tx.Bucket([]byte("jobs")).Bucket([]byte(job))
	if b == nil || b.Bucket([]byte("manifests")) == nil || b.Bucket([]byte("rows")) == nil {
		return nil, errors.New("the file doesn't know the job")
	}
	data, value := b.Bucket([]byte("manifests")).Get(key), b.Bucket([]byte("rows")).Get(key)
	if data == nil || value == nil {
		return nil, fmt.Errorf("there is a manifest: %t, a row: %t", data != nil, value != nil)
	}
	m, err := openManifest(data)
	if err != nil {
		return nil, err
	}
	row, err := readRow(value)
	if err != nil {
		return nil, err
	}
	c := m.Checkpoint
	if c.ID != id || c.Job != job || c.State != stateCompleted || row.State != stateCompleted ||
		c.Keys != row.Keys || c.Missing != row.Missing || c.Elements != row.Elements || c.FullBytes != row.FullBytes {
		return nil, fmt.Errorf("manifest and row differ: %+v, %+v", c, row)
	}
	return m, nil
}

// storedChunk finds a chunk's envelope by its id.
func storedChunk(tx *bbolt.Tx, id string) ([]byte, error) {
	key, err := hex.DecodeString(id)
	if err != nil {
		return nil, fmt.Errorf("chunk %q: %w", id, err)
	}
	entry := tx.Bucket([]byte("index")).Get(key)
	if len(entry) != 16 {
		return nil, fmt.Errorf("chunk %s: its entry in the index is % x", id, entry)
	}
	data := tx.Bucket([]byte("chunks")).Get(entry[:8])
	refs, stored := binary.BigEndian.Uint32(entry[8:]), binary.BigEndian.Uint32(entry[12:])
	if data == nil || int(stored) != len(data) || refs == 0 {
		return nil, fmt.Errorf("chunk %s: %d bytes are stored, the index says %d and %d references", id, len(data), stored, refs)
	}
	return data, nil
}
