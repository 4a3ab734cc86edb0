package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/bbolt"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
)

// Salvage reads a damaged store page by page, without trust in its tree, and
// makes a new store at to, with every checkpoint whose manifest and chunks are
// all whole: chunks and manifests are found by their own marks wherever they
// lie, and carry checksums of every byte, so none is invented. Ids stay, and new
// ones go on above all that were found. The damaged file is only read, under
// the lock that keeps a coordinator from writing it.
//
// The new store appears at its name whole or not at all; a file that exists is
// refused. ErrNothing when nothing of a store is found. In a program that calls
// MaybeProbe a child does it: whatever it falls over is an error here.
// progress (may be nil) is told how many bytes were read.
func Salvage(ctx context.Context, from, to string, progress func(done, total int64)) (SalvageReport, error) {
	if err := absent(to); err != nil {
		return SalvageReport{}, fmt.Errorf("salvage %s: %w", from, err)
	}
	f, err := openDamaged(ctx, from)
	if err != nil {
		return SalvageReport{}, fmt.Errorf("salvage %s: %w", from, err)
	}
	report, tmp, err := salvageApart(ctx, f, to, progress)
	if err == nil {
		err = linkOrRename(tmp, to)
	}
	if err == nil {
		err = syncDir(filepath.Dir(to))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return report, fmt.Errorf("salvage %s: %w", from, err)
	}
	return report, nil
}

// openDamaged opens a file for reading, and locks it against writers.
func openDamaged(ctx context.Context, path string) (*os.File, error) {
	info, err := os.Stat(path) // before it is opened: opening a pipe waits for its other end
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file (%s)", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := lockShared(ctx, f, Options{}.withDefaults().Timeout); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// salvageApart makes the new store under a name of its own beside to, which it
// gives. Where that fails nothing is left.
func salvageApart(ctx context.Context, f *os.File, to string, progress func(done, total int64)) (report SalvageReport, tmp string, err error) {
	// What a kill leaves under such a name is removed by the next Open of to.
	tmp = fmt.Sprintf("%s%ssalvage-%d", to, newSuffix, os.Getpid())
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return report, "", err
	}
	if probeRegistered.Load() {
		report, err = salvageInChild(ctx, f.Name(), tmp, progress)
	} else {
		report, err = salvageInto(ctx, f, tmp, progress)
	}
	report.From, report.To = f.Name(), to
	if err != nil {
		// An error of the removal is of no interest beside the first.
		_ = os.Remove(tmp)
		return report, "", err
	}
	return report, tmp, nil
}

// salvageInto does it in this process.
func salvageInto(ctx context.Context, f *os.File, tmp string, progress func(done, total int64)) (report SalvageReport, err error) {
	// bbolt never sees the damaged file, but a bug here must not end the service.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", snapshot.ErrCorrupt, p)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return report, err
	}
	r := &rescue{f: f, size: info.Size()}
	r.report.Bytes = info.Size()
	if err := r.look(ctx, progress); err != nil {
		return r.report, err
	}
	return r.report, r.write(ctx, tmp)
}

// write makes the new store, checks it and closes it.
func (r *rescue) write(ctx context.Context, tmp string) (err error) {
	db, err := Open(ctx, tmp, Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := r.writeChunks(ctx, db); err != nil {
		return err
	}
	if err := db.update(ctx, "salvage the histories", r.putHistories); err != nil {
		return err
	}
	if err := db.update(ctx, "salvage the journal", r.putJournal); err != nil {
		return err
	}
	if err := db.recover(ctx); err != nil { // attempts that were in progress
		return err
	}
	c := &checker{db: db, refs: map[snapshot.ChunkID]uint32{}}
	if err := c.structure(ctx); err != nil {
		return err
	}
	if len(c.problems) > 0 {
		return fmt.Errorf("the new store is not whole (this is a bug): %s", c.problems[0])
	}
	crashpoint.At(crashpoint.SalvageWritten)
	return nil
}

// writeChunks writes the chunks that are needed, in their old order, and reads
// each again.
func (r *rescue) writeChunks(ctx context.Context, db *DB) error {
	ids, err := r.needed(ctx)
	if err != nil {
		return err
	}
	for len(ids) > 0 {
		n, bytes := 0, int64(0)
		for n < len(ids) && (n == 0 || bytes+r.marks.chunks[ids[n]].size <= int64(db.opts.BatchBytes)) {
			bytes += r.marks.chunks[ids[n]].size
			n++
		}
		if err := r.writeBatch(ctx, db, ids[:n]); err != nil {
			return err
		}
		r.report.Written += n
		ids = ids[n:]
	}
	return nil
}

// needed are the chunks of all checkpoints that are kept.
func (r *rescue) needed(ctx context.Context) ([]snapshot.ChunkID, error) {
	all := map[snapshot.ChunkID]bool{}
	for _, k := range r.keep {
		m, err := r.readManifest(k.at, k.manifest)
		if err != nil {
			return nil, err
		}
		for ref := range m.AllChunks() {
			all[ref.ID] = true
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	ids := make([]snapshot.ChunkID, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b snapshot.ChunkID) int { return int(r.marks.chunks[a].at - r.marks.chunks[b].at) })
	return ids, nil
}

func (r *rescue) writeBatch(ctx context.Context, db *DB, ids []snapshot.ChunkID) error {
	var buf []byte
	err := db.update(ctx, "salvage chunks", func(tx *bbolt.Tx) error {
		p := &putter{db: db, tx: tx}
		for _, id := range ids {
			at := r.marks.chunks[id]
			data := make([]byte, at.size) // bbolt keeps it until the commit
			if _, err := r.f.ReadAt(data, at.at); err != nil {
				return fmt.Errorf("chunk %s: read %d bytes at %d: %w", id, at.size, at.at, err)
			}
			if _, err := p.put(id, data); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return db.view(ctx, func(tx *bbolt.Tx) error {
		for _, id := range ids {
			e, ok, err := lookup(tx, id)
			if err == nil && !ok {
				err = fmt.Errorf("chunk %s: %w: it was just stored, and is not in the index", id, snapshot.ErrCorrupt)
			}
			if err == nil {
				err = checkStored(tx, id, e, &buf)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// putHistories writes manifests, rows and the highest ids.
func (r *rescue) putHistories(tx *bbolt.Tx) error {
	for job, last := range r.last {
		h, err := makeHistory(tx, job)
		if err != nil {
			return err
		}
		if err := h.bucket.Put(keyLast, idKey(last)); err != nil {
			return err
		}
	}
	for _, k := range r.keep {
		if err := r.putCheckpoint(tx, k); err != nil {
			return fmt.Errorf("%s: %w", k.at, err)
		}
	}
	for p, row := range r.tree.rows {
		if row.State == snapshot.StateCompleted {
			continue
		}
		h, err := makeHistory(tx, p.job)
		if err != nil {
			return err
		}
		if err := h.putRow(attempted(row)); err != nil {
			return err
		}
	}
	return nil
}

// attempted is the row of an attempt that was not completed, as a check wants it.
func attempted(row snapshot.Checkpoint) snapshot.Checkpoint {
	if row.State == snapshot.StateFailed && row.Failure != nil || row.State == snapshot.StateInProgress {
		return row
	}
	return failed(row, snapshot.Failure{Reason: snapshot.FailInterrupted, Message: "its record was damaged"}, 0)
}

func (r *rescue) putCheckpoint(tx *bbolt.Tx, k saved) error {
	h, err := makeHistory(tx, k.at.job)
	if err != nil {
		return err
	}
	m, err := r.readManifest(k.at, k.manifest)
	if err != nil {
		return err
	}
	stored, err := reference(tx, m)
	if err != nil {
		return err
	}
	b, err := encode(stored)
	if err != nil {
		return err
	}
	row := k.row
	row.FullBytes, row.StoredBytes = stored.Checkpoint.FullBytes, stored.Checkpoint.StoredBytes
	return errors.Join(h.manifests.Put(idKey(k.at.id), b), h.putRow(row))
}

func (r *rescue) putJournal(tx *bbolt.Tx) error {
	for key, value := range r.tree.journal {
		b, err := tx.Bucket(bucketJournal).CreateBucketIfNotExists([]byte(key[0]))
		if err != nil {
			return fmt.Errorf("journal %s: %w", key[0], err)
		}
		if err := b.Put([]byte(key[1]), value); err != nil {
			return fmt.Errorf("journal %s: %w", key[0], err)
		}
	}
	return nil
}
