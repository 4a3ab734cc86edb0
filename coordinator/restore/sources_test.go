package restore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
)

// TestWhatAPositionLacksIsSaid: a trimmed stream can't give back what a
// position points at; plan and result name stream, group and numbers.
func TestWhatAPositionLacksIsSaid(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	seedRedis(t, w, srv)
	m := w.take(t) // 5 and 6 read, one of each acknowledged
	req := Request{Job: w.job, Checkpoint: m.Checkpoint.ID}
	plan, err := w.exec.Plan(ctx, req, nil)
	require.NoError(t, err)
	require.Empty(t, plan.Warnings)

	const first, second = "stream:topic:in:p:0", "stream:topic:in:p:1"
	srv.Do("XTRIM", first, "MINID", "1008-0") // 1001 to 1004 were pending, 1005 to 1007 unread
	srv.Do("XDEL", second, "1003-1")          // pending
	srv.Do("XADD", second, "2000-0", "f", "v")
	plan, err = w.exec.Plan(ctx, req, nil)
	require.NoError(t, err)
	records := fmt.Sprintf("stream %q, group %q: the checkpoint stands at 1004-0, and the stream begins at 1008-0: 3 records in between are missing", first, "stats")
	require.Equal(t, []string{records, lostPending(first, "stats", 4), lostPending(second, "stats", 1)}, plan.Warnings)
	res, err := w.exec.Run(ctx, req, nil)
	require.NoError(t, err)
	require.Equal(t, plan.Warnings, res.Warnings)
	require.EqualValues(t, 0, srv.Do("XPENDING", first, "stats").([]any)[0])
	require.EqualValues(t, 4, srv.Do("XPENDING", second, "stats").([]any)[0])

	srv.Do("DEL", first)
	plan, err = w.exec.Plan(ctx, req, nil)
	require.NoError(t, err)
	require.Contains(t, plan.Warnings[0], "not there any more")
}

// withoutStreams denies the look at streams.
type withoutStreams struct {
	statebackend.Backend
	err error
}

func (b withoutStreams) Streams(context.Context, []statebackend.StreamAsk) ([]statebackend.StreamNow, error) {
	return nil, b.err
}

func TestWhereStreamsCannotBeSeenAPlanSaysSo(t *testing.T) {
	ctx := context.Background()
	w, srv := newRedisWorld(t)
	seedRedis(t, w, srv)
	m := w.take(t)
	req := Request{Job: w.job, Checkpoint: m.Checkpoint.ID}
	denied := w.executor(w.store, w.store.Journal(), withoutStreams{w.backend, fmt.Errorf("%w: +xrange", statebackend.ErrPermission)})
	plan, err := denied.Plan(ctx, req, nil)
	require.NoError(t, err)
	require.Len(t, plan.Warnings, 1)
	require.Contains(t, plan.Warnings[0], "+xrange")
	_, err = denied.Run(ctx, req, nil)
	require.NoError(t, err)
	why := errors.New("broken")
	_, err = w.executor(w.store, w.store.Journal(), withoutStreams{w.backend, why}).Plan(ctx, req, nil)
	require.ErrorIs(t, err, why)
}

func TestMissingRecords(t *testing.T) {
	for what, c := range map[string]struct {
		at   string
		read int64
		now  statebackend.StreamNow
		says string
	}{
		"nothing removed":       {"5-0", 5, statebackend.StreamNow{Exists: true, Length: 9, First: "1-0", Last: "9-0", Added: 9}, ""},
		"read ones removed":     {"5-0", 5, statebackend.StreamNow{Exists: true, Length: 4, First: "6-0", Last: "9-0", Added: 9}, ""},
		"up to the position":    {"5-0", 5, statebackend.StreamNow{Exists: true, Length: 5, First: "5-0", Last: "9-0", Added: 9}, ""},
		"all read and removed":  {"9-0", 9, statebackend.StreamNow{Exists: true, Last: "9-0", Added: 9}, ""},
		"two missing":           {"5-0", 5, statebackend.StreamNow{Exists: true, Length: 2, First: "8-0", Last: "9-0", Added: 9}, "begins at 8-0: 2 records in between are missing"},
		"numbers, not text":     {"9-0", 5, statebackend.StreamNow{Exists: true, Length: 2, First: "10-0", Last: "11-0", Added: 9}, ": 2 records"},
		"all missing":           {"5-0", 5, statebackend.StreamNow{Exists: true, Last: "9-0", Added: 9}, "the stream is empty: 4 records"},
		"from the beginning":    {"0-0", -1, statebackend.StreamNow{Exists: true, Length: 2, First: "8-0", Last: "9-0", Added: 9}, ": 7 records"},
		"before 7.0":            {"5-0", -1, statebackend.StreamNow{Exists: true, Length: 2, First: "8-0", Last: "9-0", Added: -1}, "records in between may be missing"},
		"begun anew":            {"5-0", 5, statebackend.StreamNow{Exists: true, Length: 2, First: "8-0", Last: "9-0", Added: 2}, "may be missing"},
		"no stream":             {"5-0", 5, statebackend.StreamNow{Added: -1}, "not there any more"},
		"never was a stream":    {"0-0", 0, statebackend.StreamNow{Added: -1}, ""},
		"no group":              {"", -1, statebackend.StreamNow{Exists: true, Length: 2, First: "8-0", Last: "9-0", Added: 9}, ""},
		"sequence in one ms":    {"5-3", 3, statebackend.StreamNow{Exists: true, Length: 1, First: "5-12", Last: "5-12", Added: 5}, ": 1 records"},
		"same entry is the top": {"5-3", 3, statebackend.StreamNow{Exists: true, Length: 1, First: "5-3", Last: "5-3", Added: 3}, ""},
	} {
		got := missingRecords(Position{Stream: "s", Group: "g", LastID: c.at, Read: c.read}, c.now)
		if c.says == "" {
			require.Empty(t, got, what)
			continue
		}
		require.Contains(t, got, c.says, what)
		require.Contains(t, got, `stream "s", group "g": the checkpoint stands at `+c.at, what)
	}
}
