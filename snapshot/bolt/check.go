package bolt

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"go.etcd.io/bbolt"

	"keyframe/snapshot"
)

// checker gathers what Check finds.
type checker struct {
	db       *DB
	problems []snapshot.Problem
	refs     map[snapshot.ChunkID]uint32 // as the manifests have them
	unknown  bool                        // not all manifests could be counted
	kept     int                         // chunks that only those can count on
	bytes    uint64                      // of kept
	all      []place                     // completed checkpoints
}

func (c *checker) add(p place, what, format string, args ...any) {
	c.problems = append(c.problems, snapshot.Problem{
		Job: p.job, Checkpoint: p.id, What: what, Detail: fmt.Sprintf(format, args...),
	})
}

// Check implements [snapshot.Store], in two parts. The first holds off writers
// and looks at one state of the file: its pages, its buckets, each row against
// its manifest, each manifest against the index, the index against the
// chunks. The second reads all content with [snapshot.Verify], checkpoint by
// checkpoint, while the store goes on working.
func (db *DB) Check(ctx context.Context) ([]snapshot.Problem, error) {
	c := &checker{db: db, refs: map[snapshot.ChunkID]uint32{}}
	if err := c.structure(ctx); err != nil {
		return nil, err
	}
	db.swap.RLock()
	err := db.stillThere()
	db.swap.RUnlock()
	if err != nil {
		c.add(place{}, "file", "%v", err)
	}
	for _, p := range c.all {
		if err := c.content(ctx, p); err != nil {
			return nil, err
		}
	}
	return c.problems, nil
}

// errRollback ends a write transaction that was only there to keep others out.
var errRollback = errors.New("nothing to commit")

func (c *checker) structure(ctx context.Context) error {
	// A store that stopped writing can still be checked: no one else writes.
	if b := c.db.broken.Load(); b != nil {
		return c.db.view(ctx, func(tx *bbolt.Tx) error { return c.state(ctx, tx) })
	}
	err := c.db.update(ctx, "check", func(tx *bbolt.Tx) error {
		if err := c.state(ctx, tx); err != nil {
			return err
		}
		return errRollback
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

// state is the first part of Check.
func (c *checker) state(ctx context.Context, tx *bbolt.Tx) error {
	if err := c.pages(ctx); err != nil {
		return err
	}
	// Damaged pages may make bbolt panic, so they are all that is reported.
	if len(c.problems) > 0 {
		return nil
	}
	if err := c.jobs(tx); err != nil {
		return err
	}
	c.index(tx)
	c.chunks(tx)
	return ctx.Err()
}

// pages reads the open file, whatever its path leads to by now.
func (c *checker) pages(ctx context.Context) error {
	info, err := c.db.handle.Stat()
	if err != nil {
		return err
	}
	s, err := scanFile(ctx, c.db.handle, info.Size())
	if errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, errNotBolt) {
		c.add(place{}, "file", "%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range s.problems {
		c.add(place{}, "file", "%s", p)
	}
	if s.leaked > 0 {
		c.add(place{}, "file", "%d pages are neither used nor free", s.leaked)
	}
	return nil
}

func (c *checker) jobs(tx *bbolt.Tx) error {
	return tx.Bucket(bucketJobs).ForEachBucket(func(name []byte) error {
		h, _, err := openHistory(tx, string(name))
		if err != nil {
			c.unknown = true
			c.add(place{job: string(name)}, "history", "%v", err)
			return nil
		}
		c.counter(h)
		if err := h.rows.ForEach(func(k, v []byte) error { c.row(h, k, v); return nil }); err != nil {
			return err
		}
		return h.manifests.ForEach(func(k, v []byte) error { c.manifest(h, k, v); return nil })
	})
}

func (c *checker) counter(h history) {
	last, err := h.last()
	if err != nil {
		c.add(place{job: h.job}, "last id", "%v", err)
		return
	}
	if k, _ := h.rows.Cursor().Last(); k != nil {
		if n, err := number(k); err == nil && snapshot.ID(n) > last {
			c.add(place{job: h.job}, "last id", "it is %s, and there is a checkpoint %d", last, n)
		}
	}
}

// row holds a row against what must stand behind its state.
func (c *checker) row(h history, k, v []byte) {
	row, err := decodeRow(h.job, k, v)
	if err != nil {
		c.unknown = c.unknown || h.manifests.Get(k) == nil
		c.add(place{job: h.job}, "record", "%v", err)
		return
	}
	p := place{h.job, row.ID}
	c.db.mem.overlay(&row)
	hasManifest := h.manifests.Get(k) != nil
	switch row.State {
	case snapshot.StateCompleted:
		if !hasManifest {
			c.unknown = true
			c.add(p, "manifest", "the checkpoint is completed and has none")
		}
	case snapshot.StateFailed:
		if row.Failure == nil {
			c.add(p, "failure", "the attempt failed and its record has no reason")
		}
	case snapshot.StateInProgress:
		if !c.db.mem.isRunning(p) {
			c.add(p, "state", "the attempt is in progress and no one is making it")
		}
	default:
		c.add(p, "state", "%q is none", row.State)
	}
	if hasManifest && row.State != snapshot.StateCompleted {
		c.add(p, "manifest", "the attempt is %s and has one", row.State)
	}
}

// manifest holds a manifest against its row, and counts its chunks.
func (c *checker) manifest(h history, k, v []byte) {
	n, err := number(k)
	p := place{h.job, snapshot.ID(n)}
	if err != nil {
		c.add(p, "manifest", "its key: %v", err)
		return
	}
	m, err := readManifest(p, v)
	if err != nil {
		c.unknown = true
		c.add(p, "manifest", "%v", err)
		return
	}
	row, ok, err := h.row(p.id)
	switch {
	case err != nil: // reported with the rows
	case !ok:
		c.add(p, "manifest", "it has no row in the history")
	default:
		// Marks are set later, in the row only.
		row.Pinned, row.Bad, row.Drill, row.Shrunk = m.Checkpoint.Pinned, m.Checkpoint.Bad, nil, nil
		if !sameRow(row, m.Checkpoint) {
			c.add(p, "record", "it differs from the manifest's checkpoint")
		}
	}
	c.all = append(c.all, p)
	counted := map[snapshot.ChunkID]bool{}
	for ref := range m.AllChunks() {
		if !counted[ref.ID] {
			counted[ref.ID] = true
			c.refs[ref.ID]++
		}
	}
}

// sameRow compares as the JSON of a row does: empty and missing lists are one,
// times are instants.
func sameRow(a, b snapshot.Checkpoint) bool {
	if !a.StartedAt.Equal(b.StartedAt) || (a.CompletedAt == nil) != (b.CompletedAt == nil) ||
		a.CompletedAt != nil && !a.CompletedAt.Equal(*b.CompletedAt) || len(a.Sources) != len(b.Sources) {
		return false
	}
	for i := range a.Sources {
		if a.Sources[i] != b.Sources[i] {
			return false
		}
	}
	a.StartedAt, a.CompletedAt, a.Sources = b.StartedAt, b.CompletedAt, b.Sources
	return reflect.DeepEqual(a, b)
}

// index holds each entry against the manifests and the chunk.
func (c *checker) index(tx *bbolt.Tx) {
	chunks := tx.Bucket(bucketChunks)
	// The callback gives no error, so ForEach has none.
	_ = tx.Bucket(bucketIndex).ForEach(func(k, v []byte) error {
		if len(k) != len(snapshot.ChunkID{}) {
			c.add(place{}, "index", "a key of %d bytes", len(k))
			return nil
		}
		id := snapshot.ChunkID(k)
		what := "chunk " + id.String()
		e, err := decodeEntry(v)
		if err != nil {
			c.add(place{}, what, "%v", err)
			return nil
		}
		if want := c.refs[id]; e.refs > want && c.unknown {
			c.kept, c.bytes = c.kept+1, c.bytes+uint64(e.stored)
		} else if e.refs != want {
			c.add(place{}, what, "%d manifests name it, the index says %d", want, e.refs)
		} else if want == 0 && !c.db.mem.expected(id) {
			c.add(place{}, what, "no manifest names it and no attempt is making use of it")
		}
		delete(c.refs, id)
		if b := chunks.Get(seqKey(e.seq)); b == nil {
			c.add(place{}, what, "its bytes (number %d) are missing", e.seq)
		} else if uint64(len(b)) != uint64(e.stored) {
			c.add(place{}, what, "it has %d bytes, the index says %d", len(b), e.stored)
		}
		return nil
	})
	if c.kept > 0 {
		c.add(place{}, "index", "%d chunks (%d bytes) have more references than the manifests that can be read: "+
			"they stay until the checkpoints whose manifests can't be read are deleted", c.kept, c.bytes)
	}
	for id, n := range c.refs {
		c.add(place{}, "chunk "+id.String(), "%d manifests name it, and it is not in the index", n)
	}
}

// chunks finds bytes that no index entry names.
func (c *checker) chunks(tx *bbolt.Tx) {
	named := map[uint64]bool{}
	// The callbacks give no error, so ForEach has none.
	_ = tx.Bucket(bucketIndex).ForEach(func(_, v []byte) error {
		if e, err := decodeEntry(v); err == nil {
			if named[e.seq] {
				c.add(place{}, fmt.Sprintf("number %d", e.seq), "two chunks in the index have it")
			}
			named[e.seq] = true
		}
		return nil
	})
	_ = tx.Bucket(bucketChunks).ForEach(func(k, _ []byte) error {
		if n, err := number(k); err != nil || !named[n] {
			c.add(place{}, fmt.Sprintf("number %x", k), "bytes that the index does not name")
		}
		return nil
	})
}

// content reads all of one checkpoint.
func (c *checker) content(ctx context.Context, p place) error {
	release, err := c.db.Hold(ctx, p.job, p.id)
	if errors.Is(err, snapshot.ErrNoCheckpoint) {
		return nil // deleted since the first part
	}
	if err != nil {
		return err
	}
	defer release()
	m, err := c.db.Manifest(ctx, p.job, p.id)
	if errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, snapshot.ErrNewerFormat) || errors.Is(err, snapshot.ErrNoCheckpoint) {
		return nil // reported by the first part
	}
	if err != nil {
		return err
	}
	found, err := snapshot.Verify(ctx, c.db, m)
	if err != nil {
		return fmt.Errorf("job %q checkpoint %s: %w", p.job, p.id, err)
	}
	for _, f := range found {
		f.Job, f.Checkpoint = p.job, p.id
		c.problems = append(c.problems, f)
	}
	return nil
}
