package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var _ statebackend.Records = (*Backend)(nil)

// watchTries is how often a change of the record is tried while others change
// it at the same moment.
const watchTries = 20

// changeRecord runs change with the job's record as it is, and writes what it
// gives, all in one step: nothing is written when the record or one of the
// other keys changes in between, and it is tried again. It waits while a cut
// of this process holds the server's writers.
func (b *Backend) changeRecord(ctx context.Context, job statebackend.Job, others []string,
	change func(tx *redis.Tx, r statebackend.Record) (func(redis.Pipeliner) error, error)) error {
	leave, err := b.enterPauseGate(ctx)
	if err != nil {
		return err
	}
	defer leave()
	key := job.Record()
	for range watchTries {
		err = b.client.Watch(ctx, func(tx *redis.Tx) error {
			if err := b.fence(ctx, tx, job); err != nil {
				return err
			}
			r, err := b.recordIn(ctx, tx, key)
			if err != nil {
				return err
			}
			write, err := change(tx, r)
			if err != nil || write == nil {
				return err
			}
			cmds, err := tx.TxPipelined(ctx, write)
			return ownRefusal(cmds, err)
		}, append([]string{key, job.Lease()}, others...)...)
		if !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	if errors.Is(err, redis.TxFailedErr) {
		return &statebackend.KeyError{Key: []byte(key), Op: "write", Err: fmt.Errorf(
			"%w each of %d times that it was to be written", statebackend.ErrChanged, watchTries)}
	}
	return b.recordFailed(key, err)
}

// ownRefusal prefers a command's own refusal to EXEC's, which says that there
// was one.
func ownRefusal(cmds []redis.Cmder, err error) error {
	if !redis.IsExecAbortError(err) {
		return err
	}
	for _, c := range cmds {
		if c.Err() != nil && !redis.IsExecAbortError(c.Err()) {
			return c.Err()
		}
	}
	return err
}

func (b *Backend) recordIn(ctx context.Context, tx redis.Cmdable, key string) (statebackend.Record, error) {
	fields, err := tx.HGetAll(ctx, key).Result()
	if err != nil {
		return statebackend.Record{}, err
	}
	raw := make(map[string][]byte, len(fields))
	for f, v := range fields {
		raw[f] = []byte(v)
	}
	return statebackend.DecodeRecord(raw)
}

func (b *Backend) recordFailed(key string, err error) error {
	var already *statebackend.KeyError
	if err == nil || errors.As(err, &already) || errors.Is(err, statebackend.ErrStateLost) || errors.Is(err, statebackend.ErrFenced) {
		return err
	}
	return &statebackend.KeyError{Key: []byte(key), Op: "write", Err: b.mapError(err, "the job's record")}
}

// Adopt writes incarnation, epoch and assignment where they are not there.
func (b *Backend) Adopt(ctx context.Context, job statebackend.Job, incarnation string, a statebackend.Assignment) (statebackend.Record, error) {
	if err := job.Validate(); err != nil {
		return statebackend.Record{}, err
	}
	if incarnation == "" {
		return statebackend.Record{}, fmt.Errorf("adopt job %q: the incarnation is empty", job.Root())
	}
	var now statebackend.Record
	err := b.changeRecord(ctx, job, []string{job.Assignment()}, func(tx *redis.Tx, r statebackend.Record) (func(redis.Pipeliner) error, error) {
		there, err := tx.Exists(ctx, job.Assignment()).Result()
		if err != nil {
			return nil, err
		}
		var fields []any
		now, fields = adopted(r, incarnation)
		a.Epoch = now.Epoch
		published, err := statebackend.EncodeAssignment(a)
		if err != nil || (there > 0 && fields == nil) {
			return nil, err
		}
		return func(p redis.Pipeliner) error {
			if fields != nil {
				p.HSet(ctx, job.Record(), fields...)
			}
			if there == 0 {
				p.Set(ctx, job.Assignment(), published, 0)
			}
			return nil
		}, nil
	})
	if err != nil {
		return statebackend.Record{}, err
	}
	return now, nil
}

// adopted is a record as it is after an adoption, and the fields to write for
// that: nil for none.
func adopted(r statebackend.Record, incarnation string) (now statebackend.Record, fields []any) {
	if r.Incarnation == "" {
		r.Incarnation = incarnation
		fields = append(fields, statebackend.FieldIncarnation, incarnation)
	}
	if r.Epoch == 0 {
		r.Epoch = 1
		fields = append(fields, statebackend.FieldEpoch, "1")
	}
	return r, fields
}

// Note writes fields of the record of that incarnation.
func (b *Backend) Note(ctx context.Context, job statebackend.Job, incarnation string, n statebackend.Notes) error {
	if err := job.Validate(); err != nil {
		return err
	}
	var fields []any
	if n.Attempt != 0 {
		fields = append(fields, statebackend.FieldAttempt, n.Attempt.String())
	}
	if n.Cut != 0 {
		fields = append(fields, statebackend.FieldCut, n.Cut.String())
	}
	if n.Checkpoint != 0 {
		fields = append(fields, statebackend.FieldCheckpoint, n.Checkpoint.String())
	}
	if !n.CheckpointAt.IsZero() {
		fields = append(fields, statebackend.FieldCheckpointAt, n.CheckpointAt.UTC().Format(time.RFC3339Nano))
	}
	return b.changeRecord(ctx, job, nil, func(_ *redis.Tx, r statebackend.Record) (func(redis.Pipeliner) error, error) {
		if r.Incarnation == "" || r.Incarnation != incarnation {
			return nil, fmt.Errorf("%w: %q holds incarnation %q, and %q is expected",
				statebackend.ErrStateLost, job.Record(), r.Incarnation, incarnation)
		}
		if fields == nil {
			return nil, nil
		}
		return func(p redis.Pipeliner) error { return p.HSet(ctx, job.Record(), fields...).Err() }, nil
	})
}

// Index calls fn for every name of the index, each once. It remembers 128
// bits of each, about 20 bytes a name.
func (b *Backend) Index(ctx context.Context, job statebackend.Job, fn func(name []byte) error) error {
	if err := job.Validate(); err != nil {
		return err
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // every reply was read, or the call failed
	release := conn.Bind(ctx)
	defer release()
	r := &cutReader{b: b, job: job, stream: stream{conn: conn}}
	index := &keyInfo{name: []byte(job.Index()), typ: snapshot.TypeSet}
	r.seen.reset(indexPage)
	for cursor := "0"; ; {
		if err := r.askScan(index.name, "SSCAN", cursor, indexPage); err != nil {
			return r.keyFailed(index, err)
		}
		if cursor, err = r.cursor(); err != nil {
			return r.keyFailed(index, err)
		}
		names, err := r.freshNames()
		if err != nil {
			return r.keyFailed(index, err)
		}
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
		if cursor == "0" {
			return nil
		}
	}
}

// freshNames reads a page of the index and gives the names that are new.
func (r *cutReader) freshNames() ([][]byte, error) {
	n, err := r.array()
	if err != nil {
		return nil, err
	}
	var names [][]byte
	for range n {
		name, err := r.field()
		if err != nil {
			return nil, err
		}
		if r.seen.add(name, uint64(len(name))) {
			names = append(names, append([]byte{}, name...))
		}
	}
	return names, nil
}

// Bounds of one question of Schemas.
const (
	schemaNames = 1000
	schemaBytes = 1 << 20
)

// Schemas gives the registry's entry for each name, "" where none.
func (b *Backend) Schemas(ctx context.Context, job statebackend.Job, names [][]byte) ([]string, error) {
	if err := job.Validate(); err != nil {
		return nil, err
	}
	all := make([]string, 0, len(names))
	for len(names) > 0 {
		var batch []string
		for size := 0; len(names) > 0 && len(batch) < schemaNames && size < schemaBytes; names = names[1:] {
			batch = append(batch, string(names[0]))
			size += len(names[0])
		}
		got, err := b.client.HMGet(ctx, job.Registry(), batch...).Result()
		if err == nil && len(got) != len(batch) {
			err = errors.New("HMGET answered " + strconv.Itoa(len(got)) + " entries for " + strconv.Itoa(len(batch)) + " fields")
		}
		if err != nil {
			return nil, &statebackend.KeyError{Key: []byte(job.Registry()), Op: "read", Err: b.mapError(err, "schema registry")}
		}
		for _, entry := range got {
			text, _ := entry.(string) // nil where there is none
			all = append(all, text)
		}
	}
	return all, nil
}
