package redis

import (
	"context"
	"strings"

	"keyframe/statebackend"
)

var _ statebackend.ScratchFinder = (*Backend)(nil)

// FindScratch implements [statebackend.ScratchFinder]. It walks over the names
// of the database in small steps.
func (b *Backend) FindScratch(ctx context.Context, begin, end string) (map[string]int64, error) {
	pattern := globEscape(begin) + "*" + globEscape(end) + "*"
	found := map[string]int64{}
	for cursor := uint64(0); ; {
		names, next, err := b.client.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return nil, b.mapError(err, "look for "+pattern)
		}
		for _, name := range names {
			id, _, ok := strings.Cut(strings.TrimPrefix(name, begin), end)
			if ok && !strings.Contains(id, ":") {
				found[id]++
			}
		}
		if cursor = next; cursor == 0 {
			return found, nil
		}
	}
}
