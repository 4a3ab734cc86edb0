package drill

import (
	"context"
	"maps"
	"slices"
	"sync"

	"keyframe/snapshot"
)

// notes is a journal in memory: a drill that dies leaves nothing to be resumed,
// only scratch keys to be removed.
type notes struct {
	mu  sync.Mutex
	all map[[2]string][]byte
}

var _ snapshot.Journal = (*notes)(nil)

// Put implements snapshot.Journal.
func (n *notes) Put(_ context.Context, bucket, key string, value []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[[2]string][]byte{}
	}
	n.all[[2]string{bucket, key}] = slices.Clone(value)
	return nil
}

// Get implements snapshot.Journal.
func (n *notes) Get(_ context.Context, bucket, key string) ([]byte, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	value, ok := n.all[[2]string{bucket, key}]
	return slices.Clone(value), ok, nil
}

// Delete implements snapshot.Journal.
func (n *notes) Delete(_ context.Context, bucket, key string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, [2]string{bucket, key})
	return nil
}

// Each implements snapshot.Journal.
func (n *notes) Each(_ context.Context, bucket string, fn func(key string, value []byte) error) error {
	n.mu.Lock()
	copied := maps.Clone(n.all)
	n.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(copied), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		if k[0] != bucket {
			continue
		}
		if err := fn(k[1], copied[k]); err != nil {
			return err
		}
	}
	return nil
}
