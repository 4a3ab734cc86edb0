package redis

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// callsOf are calls of a store, one of each kind.
func callsOf(b *Backend) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"look": func(ctx context.Context) error { _, err := b.Look(ctx, testJob); return err },
		"cut": func(ctx context.Context) error {
			_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &snapshot.Recorder{})
			return err
		},
		"stage": func(ctx context.Context) error { _, err := b.Stage(ctx, testRequest("own", 3)); return err },
		"do": func(ctx context.Context) error {
			_, err := b.Do(ctx, statebackend.Command(statebackend.OpGet, "k"))
			return err
		},
		"atomic": func(ctx context.Context) error {
			_, err := b.Do(ctx, statebackend.Command(statebackend.OpGet, "k"), statebackend.Command(statebackend.OpGet, "l"))
			return err
		},
		"note": func(ctx context.Context) error {
			return b.Note(ctx, testJob, "inc-mine", statebackend.Notes{Attempt: 30})
		},
		"room":    func(ctx context.Context) error { return b.Room(ctx, 1, 1, 1) },
		"schemas": func(ctx context.Context) error { _, err := b.Schemas(ctx, testJob, [][]byte{[]byte("k")}); return err },
	}
}

// TestOurOwnEndIsNotTheServersFault: what a deadline or a cancellation of the
// caller ended is told by its cause, and not as a server that can't be reached.
func TestOurOwnEndIsNotTheServersFault(t *testing.T) {
	srv := redistest.Start(t)
	b, c := openTest(t, srv), srv.Client()
	fillJob(t, c, testJob, "mine")
	calls := callsOf(b)
	srv.Signal(syscall.SIGSTOP)
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := call(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.NotErrorIs(t, err, statebackend.ErrUnreachable, name)
	}
	why := errors.New("aborted by hand")
	for _, name := range []string{"look", "cut", "stage"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(why)
		err := calls[name](ctx)
		require.ErrorIs(t, err, why, name)
		require.NotErrorIs(t, err, statebackend.ErrUnreachable, name)
	}
	srv.Signal(syscall.SIGCONT)

	// The store's own patience is another thing: then the server is too slow.
	slow, err := Open(t.Context(), Config{URL: srv.URL(), Timeout: 60 * time.Millisecond, Tracking: TrackOff})
	require.NoError(t, err)
	defer func() { require.NoError(t, slow.Close()) }()
	srv.Signal(syscall.SIGSTOP)
	defer srv.Signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = slow.Look(ctx, testJob)
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
	_, err = slow.Do(ctx, statebackend.Command(statebackend.OpGet, "k"))
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
}
