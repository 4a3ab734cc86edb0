package memory_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

var job = statebackend.Job{Prefix: "p", Name: "j"}

func do(t *testing.T, s *memory.Store, cmds ...statebackend.Cmd) []statebackend.Reply {
	t.Helper()
	r, err := s.Do(t.Context(), cmds...)
	require.NoError(t, err)
	return r
}

func TestLoseIsACrash(t *testing.T) {
	s := memory.New(memory.Options{Name: "one"})
	require.Equal(t, "memory://one", s.Server())
	require.Equal(t, "memory://default", memory.New(memory.Options{}).Server())
	do(t, s, statebackend.Command(statebackend.OpSAdd, job.Index(), "k"))
	before, err := s.Look(t.Context(), job)
	require.NoError(t, err)
	require.EqualValues(t, 1, before.Indexed)
	require.Empty(t, before.Where)
	s.Lose()
	after, err := s.Look(t.Context(), job)
	require.NoError(t, err)
	require.Zero(t, after.Indexed)
	require.NotEqual(t, before.Server.RunID, after.Server.RunID)
	require.Equal(t, "memory://one is empty", after.Where)
	do(t, s, statebackend.Command(statebackend.OpSet, "foreign", "v"))
	after, err = s.Look(t.Context(), job)
	require.NoError(t, err)
	require.Contains(t, after.Where, "1 keys")
}

// Writers go on while a cut is being read: the sink writes to the store, and
// the cut doesn't see it.
func TestWritersAreNotHeldWhileACutIsRead(t *testing.T) {
	s := memory.New(memory.Options{})
	for i := range 20 {
		key := "k" + strconv.Itoa(i)
		do(t, s, statebackend.Command(statebackend.OpSAdd, job.Index(), key), statebackend.Command(statebackend.OpHSet, key, "f", "before"))
	}
	w := &writing{t: t, s: s}
	cut, err := s.Cut(t.Context(), statebackend.CutRequest{Job: job}, w)
	require.NoError(t, err)
	require.Len(t, w.Keys, 20)
	for _, k := range w.Keys {
		require.Len(t, k.Elements, 1)
		require.Equal(t, "before", string(k.Elements[0].Value))
	}
	require.Positive(t, cut.Stall)
	require.Equal(t, "after", string(do(t, s, statebackend.Command(statebackend.OpHGet, "k7", "f"))[0].Bytes))
}

// writing is a sink that changes every key before it takes one.
type writing struct {
	snapshot.Recorder
	t *testing.T
	s *memory.Store
}

func (w *writing) BeginKey(k snapshot.Key) error {
	for i := range 20 {
		key := "k" + strconv.Itoa(i)
		do(w.t, w.s, statebackend.Command(statebackend.OpHSet, key, "f", "after"), statebackend.Command(statebackend.OpHSet, key, "g", "new"))
	}
	return w.Recorder.BeginKey(k)
}

// Equal states give equal streams, whatever the order of the writes: chunks
// are named by content, so what didn't change isn't stored again.
func TestEqualStatesMakeEqualStreams(t *testing.T) {
	stream := func(back bool) []snapshot.RecordedKey {
		s := memory.New(memory.Options{})
		for i := range 700 {
			if back {
				i = 699 - i
			}
			key := "k" + strconv.Itoa(i%5)
			do(t, s, statebackend.Command(statebackend.OpSAdd, job.Index(), key), statebackend.Command(statebackend.OpHSet, key, strconv.Itoa(i), "v"))
		}
		var r snapshot.Recorder
		_, err := s.Cut(t.Context(), statebackend.CutRequest{Job: job}, &r)
		require.NoError(t, err)
		return r.Keys
	}
	require.Equal(t, stream(false), stream(true))
}

func TestRoom(t *testing.T) {
	s := memory.New(memory.Options{Name: "small", Limit: 100})
	do(t, s, statebackend.Command(statebackend.OpHSet, "key", "field", "value")) // 13 bytes
	do(t, s, statebackend.Command(statebackend.OpZAdd, "zs", "1", "member"))     // 8 bytes
	require.NoError(t, s.Room(t.Context(), 1, 1, 79))
	err := s.Room(t.Context(), 1, 1, 80)
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	require.ErrorContains(t, err, "21 bytes of at most 100, and 80 more")
	require.ErrorIs(t, s.Room(t.Context(), 1, 1, 1<<64-1), statebackend.ErrNoRoom)
	require.NoError(t, memory.New(memory.Options{}).Room(t.Context(), 1, 1, 1<<62))
}

func TestNoSourcesHere(t *testing.T) {
	s := memory.New(memory.Options{})
	do(t, s, statebackend.Command(statebackend.OpSAdd, job.Index(), "k"))
	var r snapshot.Recorder
	_, err := s.Cut(t.Context(), statebackend.CutRequest{Job: job, Sources: []statebackend.SourceRef{{Topic: "flights", Group: "g"}}}, &r)
	require.ErrorIs(t, err, statebackend.ErrUnsupported)
	require.ErrorContains(t, err, "flights")
	_, err = s.Stage(t.Context(), statebackend.RestoreRequest{ID: "r", Job: job, Scope: statebackend.ScopeAll, NewEpoch: 1,
		Incarnation: "i", Positions: []snapshot.Position{{Topic: "flights"}}})
	require.ErrorIs(t, err, statebackend.ErrUnsupported)

	do(t, s, statebackend.Command(statebackend.OpHSet, "streaming:mq:topic:t:meta", "partitionCount", `"8"`),
		statebackend.Command(statebackend.OpHSet, "streaming:mq:topic:u:meta", "partitionCount", "\x00\x08"))
	n, err := s.Partitions(t.Context(), "t")
	require.NoError(t, err)
	require.Equal(t, 8, n)
	_, err = s.Partitions(t.Context(), "u")
	require.ErrorContains(t, err, "partitionCount")
}

func TestCommandsThatAreRefused(t *testing.T) {
	s := memory.New(memory.Options{})
	for _, c := range []statebackend.Cmd{
		{Op: 99, Key: "k"},
		statebackend.Command(statebackend.OpHSet, "k", "field only"),
		statebackend.Command(statebackend.OpRPush, "k"),
		statebackend.Command(statebackend.OpDel, "k", "extra"),
		statebackend.Command(statebackend.OpZAdd, "k", "nan", "m"),
		statebackend.Command(statebackend.OpZAdd, "k", "", "m"),
		statebackend.Command(statebackend.OpPExpireAt, "k", "soon"),
	} {
		_, err := s.Do(t.Context(), statebackend.Command(statebackend.OpType, "k"), c)
		require.ErrorContains(t, err, `"k"`)
	}
	require.Empty(t, s.Keys())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Do(ctx, statebackend.Command(statebackend.OpSet, "k", "v"))
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, s.Keys())
}

func TestBytesAreCopied(t *testing.T) {
	s := memory.New(memory.Options{})
	mine := []byte("value")
	do(t, s, statebackend.Cmd{Op: statebackend.OpSet, Key: "s", Args: [][]byte{mine}},
		statebackend.Cmd{Op: statebackend.OpRPush, Key: "l", Args: [][]byte{mine}},
		statebackend.Cmd{Op: statebackend.OpHSet, Key: "h", Args: [][]byte{mine, mine}})
	clear(mine)
	got := do(t, s, statebackend.Command(statebackend.OpGet, "s"))[0].Bytes
	require.Equal(t, "value", string(got))
	clear(got)
	require.Equal(t, "value", string(do(t, s, statebackend.Command(statebackend.OpGet, "s"))[0].Bytes))
	require.Equal(t, "value", string(do(t, s, statebackend.Command(statebackend.OpHGet, "h", "value"))[0].Bytes))
}

func TestClosed(t *testing.T) {
	s := memory.New(memory.Options{})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, doErr := s.Do(t.Context(), statebackend.Command(statebackend.OpGet, "k"))
	_, lookErr := s.Look(t.Context(), job)
	_, resolveErr := s.Resolve(t.Context(), job, "r1")
	_, partErr := s.Partitions(t.Context(), "t")
	eachErr := s.Each(t.Context(), "k", snapshot.TypeList, func(snapshot.Element) error { return nil })
	for _, err := range []error{doErr, lookErr, resolveErr, partErr, eachErr, s.Room(t.Context(), 1, 1, 1)} {
		require.ErrorIs(t, err, statebackend.ErrClosed)
	}
}

// TestStallDoesNotGrowWithValues: what is copied under the lock is one pointer
// per key, and nothing of the values (checked by allocations, not by time).
func TestStallDoesNotGrowWithValues(t *testing.T) {
	cost := func(fields int) float64 {
		s := memory.New(memory.Options{})
		do(t, s, statebackend.Command(statebackend.OpSAdd, job.Index(), "h"))
		for i := range fields {
			do(t, s, statebackend.Command(statebackend.OpHSet, "h", strconv.Itoa(i), "v"))
		}
		stop := errors.New("stop at the first key")
		return testing.AllocsPerRun(20, func() {
			if _, err := s.Cut(context.Background(), statebackend.CutRequest{Job: job}, refusing{stop}); !errors.Is(err, stop) {
				panic(err)
			}
		})
	}
	require.InDelta(t, cost(10), cost(20_000), 3)
}

type refusing struct{ err error }

func (r refusing) BeginKey(snapshot.Key) error    { return r.err }
func (r refusing) Element(snapshot.Element) error { return r.err }
func (r refusing) Part([]byte) error              { return r.err }
func (r refusing) EndKey(snapshot.KeyEnd) error   { return r.err }

// TestTogether: cuts, reads, writes, expiry and losses at once (for -race).
func TestTogether(t *testing.T) {
	s := memory.New(memory.Options{})
	const rounds = 60
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for w := range 3 {
		wg.Go(func() {
			for i := range rounds {
				key := "k" + strconv.Itoa(i%4)
				if _, err := s.Do(context.Background(), statebackend.Command(statebackend.OpSAdd, job.Index(), key),
					statebackend.Command(statebackend.OpHSet, key, strconv.Itoa(w*rounds+i), "v"),
					statebackend.Command(statebackend.OpRPush, "l", strconv.Itoa(i)), statebackend.Command(statebackend.OpSAdd, job.Index(), "l"),
					statebackend.Command(statebackend.OpPExpireAt, key, strconv.FormatInt(time.Now().UnixMilli()+int64(i), 10))); err != nil {
					errs[w] = err
				}
			}
		})
	}
	wg.Go(func() {
		for range rounds {
			var r snapshot.Recorder
			_, err := s.Cut(context.Background(), statebackend.CutRequest{Job: job}, &r)
			if err != nil && !errors.Is(err, statebackend.ErrNoState) {
				errs[3] = err
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			if err := s.Each(context.Background(), "l", snapshot.TypeList, func(snapshot.Element) error { return nil }); err != nil {
				errs[4] = err
			}
		}
	})
	wg.Go(func() {
		for range 5 {
			s.Lose()
		}
	})
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestThereAreNoStreams(t *testing.T) {
	s := memory.New(memory.Options{})
	now, err := s.Streams(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, now)
	_, err = s.Streams(t.Context(), []statebackend.StreamAsk{{Stream: "stream:topic:flights:p:0"}})
	require.ErrorIs(t, err, statebackend.ErrUnsupported)
	require.ErrorContains(t, err, "flights")
}
