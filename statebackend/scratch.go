package statebackend

import (
	"context"

	"keyframe/snapshot"
)

// Scratch is what a state store can do for a job that was made to be thrown
// away, beside restoring it: a drill restores a checkpoint under such a job,
// reads it back and removes it. A store that doesn't have it can't be drilled
// in.
type Scratch interface {
	// ReadAll pushes everything that a job has into sink, as a cut does but for
	// its sources: keyed and operator keys in the order of the index, then the
	// job's bookkeeping. Nobody is held: it is for a job that nobody writes,
	// and fails with ErrChanged, naming the key, where somebody did. version is
	// the server's, as opaque keys have it.
	ReadAll(ctx context.Context, job Job, sink snapshot.Sink) (version string, err error)
	// Purge removes every key under the job's root, whatever the index says,
	// and gives their number. It may be called again.
	Purge(ctx context.Context, job Job) (removed int64, err error)
}

// ScratchFinder finds scratch jobs by their keys, also those that nobody has
// written down.
type ScratchFinder interface {
	// FindScratch gives what lies between begin and end in the names of keys, as
	// long as there is no colon in it, and about how many keys each has: keys
	// that come or go meanwhile may be missing, or counted twice.
	FindScratch(ctx context.Context, begin, end string) (map[string]int64, error)
}
