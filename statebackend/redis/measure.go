package redis

import (
	"context"
	"fmt"
	"time"

	"keyframe/statebackend"
)

// CheckCut finds out what would make a cut of the job fail, as a cut does
// before it holds anybody, and nothing more: it follows no writes and holds no
// writer. Errors are those of [statebackend.Cutter].
func (b *Backend) CheckCut(ctx context.Context, req statebackend.CutRequest) error {
	if err := checkRequest(req); err != nil {
		return err
	}
	c := &pausedCut{b: b, req: req}
	defer c.hangUp()
	if err := c.look(ctx, &limiter{ctx: ctx}); err != nil {
		return fmt.Errorf("cut of job %q: %w", req.Job.Root(), err)
	}
	return nil
}

// Purge removes every key under the job's root, whatever the index says, and
// gives their number. It is for jobs that were made to be thrown away. It walks
// over the names of the database in small steps until none is found, and leaves
// the freeing of large keys to the server's background. It may be called again.
func (b *Backend) Purge(ctx context.Context, job statebackend.Job) (removed int64, err error) {
	if err := job.Validate(); err != nil {
		return 0, err
	}
	pattern := globEscape(job.Root()+":") + "*"
	for {
		n, err := b.purgeOnce(ctx, pattern)
		removed += n
		if err != nil || n == 0 {
			return removed, err
		}
	}
}

// purgeOnce is one walk over the database.
func (b *Backend) purgeOnce(ctx context.Context, pattern string) (removed int64, err error) {
	for cursor := uint64(0); ; {
		names, next, err := b.client.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return removed, b.mapError(err, "look for "+pattern)
		}
		if len(names) > 0 {
			n, err := b.client.Unlink(ctx, names...).Result()
			if err != nil {
				return removed, b.mapError(err, "remove "+pattern)
			}
			removed += n
		}
		if cursor = next; cursor == 0 {
			return removed, nil
		}
	}
}

// Tells is what a server says of itself to somebody who measures it.
type Tells struct {
	Keys uint64 // of all databases
	// SyncDelay is how long the server lets a new replica wait for others
	// before it sends an RDB; SyncKnown is false when it doesn't tell.
	SyncDelay time.Duration
	SyncKnown bool
}

// Tell asks the server what a measurement must know.
func (b *Backend) Tell(ctx context.Context) (t Tells, err error) {
	text, err := b.client.Info(ctx, "keyspace").Result()
	if err != nil {
		return t, b.mapError(err, "INFO keyspace")
	}
	for _, db := range keyspaceOf(text) {
		t.Keys += db.keys
	}
	// Managed servers deny CONFIG: then it isn't known.
	all, err := b.client.ConfigGet(ctx, "repl-diskless-sync*").Result()
	if err != nil {
		return t, nil
	}
	var seconds int64
	_, err = fmt.Sscan(all["repl-diskless-sync-delay"], &seconds)
	t.SyncKnown = err == nil
	if all["repl-diskless-sync"] == "yes" {
		t.SyncDelay = time.Duration(seconds) * time.Second
	}
	return t, nil
}
