package rescaler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var (
	errInjected = errors.New("injected")
	errDisk     = errors.New("disk error")
)

// injector fails calls. Call k fails, and with dead every later one too, as
// after a crash. With lost the call is made and only its answer is lost.
type injector struct {
	k          int
	dead, lost bool

	mu     sync.Mutex // chunks are fetched from another goroutine
	calls  int
	failed []string // names of the calls that failed
}

// hit counts a call. It runs it unless it fails before being made.
func (i *injector) hit(name string, err error, call func() error) error {
	n, fails := i.count(name)
	if !fails {
		return call()
	}
	if i.lost && n == i.k {
		if real := call(); real != nil {
			return real
		}
	}
	return fmt.Errorf("%s (call %d): %w: %w", name, n, errInjected, err)
}

func (i *injector) count(name string) (n int, fails bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls++
	fails = i.k > 0 && (i.calls == i.k || i.dead && i.calls > i.k)
	if fails {
		i.failed = append(i.failed, name)
	}
	return i.calls, fails
}

// badBackend injects into a state store.
type badBackend struct {
	statebackend.Backend
	in *injector
}

func (b *badBackend) Look(ctx context.Context, job statebackend.Job) (g statebackend.Glimpse, err error) {
	err = b.in.hit("Look", statebackend.ErrUnreachable, func() (err error) { g, err = b.Backend.Look(ctx, job); return err })
	return g, err
}

func (b *badBackend) Partitions(ctx context.Context, topic string) (n int, err error) {
	err = b.in.hit("Partitions", statebackend.ErrUnreachable, func() (err error) { n, err = b.Backend.Partitions(ctx, topic); return err })
	return n, err
}

func (b *badBackend) Room(ctx context.Context, keys, elements, bytes uint64) error {
	return b.in.hit("Room", statebackend.ErrUnreachable, func() error { return b.Backend.Room(ctx, keys, elements, bytes) })
}

func (b *badBackend) Stage(ctx context.Context, req statebackend.RestoreRequest) (s statebackend.Staging, err error) {
	err = b.in.hit("Stage", statebackend.ErrUnreachable, func() (err error) { s, err = b.Backend.Stage(ctx, req); return err })
	if err != nil {
		return nil, err
	}
	return &badStaging{Staging: s, in: b.in}, nil
}

func (b *badBackend) Resolve(ctx context.Context, job statebackend.Job, id string) (flipped bool, err error) {
	err = b.in.hit("Resolve", statebackend.ErrUnreachable, func() (err error) { flipped, err = b.Backend.Resolve(ctx, job, id); return err })
	return flipped, err
}

type badStaging struct {
	statebackend.Staging
	in *injector
}

func (s *badStaging) EndKey(e snapshot.KeyEnd) error {
	return s.in.hit("Staging.EndKey", statebackend.ErrUnreachable, func() error { return s.Staging.EndKey(e) })
}

func (s *badStaging) Prove(ctx context.Context) error {
	return s.in.hit("Prove", statebackend.ErrUnreachable, func() error { return s.Staging.Prove(ctx) })
}

func (s *badStaging) Flip(ctx context.Context) (r statebackend.FlipResult, err error) {
	err = s.in.hit("Flip", statebackend.ErrUnreachable, func() (err error) { r, err = s.Staging.Flip(ctx); return err })
	return r, err
}

func (s *badStaging) Abort(ctx context.Context) error {
	return s.in.hit("Abort", statebackend.ErrUnreachable, func() error { return s.Staging.Abort(ctx) })
}

// badStore injects into a checkpoint store.
type badStore struct {
	snapshot.Store
	in *injector
}

func (s *badStore) List(ctx context.Context, job string) (all []snapshot.Checkpoint, err error) {
	err = s.in.hit("List", errDisk, func() (err error) { all, err = s.Store.List(ctx, job); return err })
	return all, err
}

func (s *badStore) Manifest(ctx context.Context, job string, id snapshot.ID) (m *snapshot.Manifest, err error) {
	err = s.in.hit("Manifest", errDisk, func() (err error) { m, err = s.Store.Manifest(ctx, job, id); return err })
	return m, err
}

func (s *badStore) Hold(ctx context.Context, job string, id snapshot.ID) (release func(), err error) {
	err = s.in.hit("Hold", errDisk, func() (err error) { release, err = s.Store.Hold(ctx, job, id); return err })
	if err != nil && release != nil {
		release()
	}
	return release, err
}

func (s *badStore) Chunk(ctx context.Context, id snapshot.ChunkID) (data []byte, err error) {
	err = s.in.hit("Chunk", errDisk, func() (err error) { data, err = s.Store.Chunk(ctx, id); return err })
	return data, err
}

func (s *badStore) Delete(ctx context.Context, job string, id snapshot.ID) error {
	return s.in.hit("Delete", errDisk, func() error { return s.Store.Delete(ctx, job, id) })
}

func (s *badStore) Begin(ctx context.Context, a snapshot.Attempt) (w snapshot.Writer, err error) {
	err = s.in.hit("Begin", errDisk, func() (err error) { w, err = s.Store.Begin(ctx, a); return err })
	if err != nil {
		if w != nil {
			w.Abort()
		}
		return nil, err
	}
	return &badWriter{Writer: w, in: s.in}, nil
}

type badWriter struct {
	snapshot.Writer
	in *injector
}

func (w *badWriter) WriteChunk(ctx context.Context, c snapshot.Chunk) (fresh bool, err error) {
	err = w.in.hit("WriteChunk", errDisk, func() (err error) { fresh, err = w.Writer.WriteChunk(ctx, c); return err })
	return fresh, err
}

func (w *badWriter) Commit(ctx context.Context, m *snapshot.Manifest) error {
	return w.in.hit("Commit", errDisk, func() error { return w.Writer.Commit(ctx, m) })
}

// badJournal injects into a journal.
type badJournal struct {
	snapshot.Journal
	in *injector
}

func (j *badJournal) Put(ctx context.Context, bucket, key string, value []byte) error {
	return j.in.hit("Journal.Put", errDisk, func() error { return j.Journal.Put(ctx, bucket, key, value) })
}

func (j *badJournal) Get(ctx context.Context, bucket, key string) (v []byte, ok bool, err error) {
	err = j.in.hit("Journal.Get", errDisk, func() (err error) { v, ok, err = j.Journal.Get(ctx, bucket, key); return err })
	return v, ok, err
}

func (j *badJournal) Delete(ctx context.Context, bucket, key string) error {
	return j.in.hit("Journal.Delete", errDisk, func() error { return j.Journal.Delete(ctx, bucket, key) })
}
