package redis

import (
	"context"
	"fmt"

	"keyframe/statebackend/redis/track"
)

// AwaitTracking begins to follow the server's writes, as StartTracking does,
// and waits until they are followed, so that the first cut need not: attaching
// takes a server with its usual settings five seconds. It returns at once where
// writes are followed per job (by keys) or not at all.
//
// The error says why the best level isn't possible: it wraps track.ErrDenied
// when the server refuses it for good, track.ErrLost when ctx ended before. A
// cut takes the next level then.
func (b *Backend) AwaitTracking(ctx context.Context) error {
	levels := b.tracks.levels()
	if len(levels) == 0 || levels[0] != track.LevelFields {
		return nil
	}
	tr, err := b.tracks.start(levels[0])
	if err == nil {
		err = tr.Attached(ctx)
	}
	if err != nil {
		return fmt.Errorf("track writes by %s: %w", levels[0], err)
	}
	return nil
}
