package flights

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testJob = statebackend.Job{Prefix: "streaming:runtime", Name: "flights:2001"}

func rule() keygroups.Rule { return keygroups.Rule{MaxParallelism: 128}.WithDefaults() }

func options(store statebackend.Store, parallelism int) Options {
	return Options{Store: store, Job: testJob, Rule: rule(), Parallelism: parallelism}
}

// checked runs Check and requires that nothing differs.
func checked(t *testing.T, store statebackend.Store, parallelism int) Report {
	t.Helper()
	report, err := Check(t.Context(), CheckOptions{Store: store, Job: testJob, Rule: rule(), Parallelism: parallelism})
	require.NoError(t, err)
	require.Empty(t, report.Differences)
	require.True(t, report.OK())
	return report
}

func TestRecords(t *testing.T) {
	records, err := Records()
	require.NoError(t, err)
	require.Len(t, records, 20000)
	require.Equal(t, Record{Date: "2001/01/01 00:47", Delay: 66, Distance: 1750, Origin: "DTW", Destination: "LAS"}, records[0])
	require.Equal(t, Record{Date: "2001/03/31 22:27", Delay: -9, Distance: 83, Origin: "CLT", Destination: "GSO"}, records[19999])
}

func TestSourceDealsEachRecordOnce(t *testing.T) {
	records, err := Records()
	require.NoError(t, err)
	for _, n := range []int{1, 3, 7, 8, 20000, 20001} {
		s, seen := source{records[:1000], n}, map[int]bool{}
		for p := range n {
			for offset := range s.size(p) {
				r, index, ok := s.at(p, offset)
				require.True(t, ok)
				require.False(t, seen[index])
				require.Equal(t, records[index], r)
				seen[index] = true
			}
			_, _, ok := s.at(p, s.size(p))
			require.False(t, ok, "partition %d of %d ends at its size", p, n)
		}
		require.Len(t, seen, 1000, n)
	}
}

func TestWholeFileAtEachParallelism(t *testing.T) {
	for _, parallelism := range []int{2, 11} { // 11: more subtasks than partitions
		store := memory.New(memory.Options{})
		begun := time.Now()
		got, err := Run(t.Context(), options(store, parallelism))
		require.NoError(t, err)
		require.Less(t, time.Since(begun), time.Minute)
		require.Equal(t, Summary{Fresh: true, Processed: 20000, Done: 20000, All: 20000, Finished: true}, got)
		report := checked(t, store, parallelism)
		require.True(t, report.Complete)
		require.Equal(t, 20000, report.Records)
		require.Equal(t, 220, report.Airports)
		require.Greater(t, report.Checks, 10000)
		// Running on at the end does nothing.
		again, err := Run(t.Context(), options(store, parallelism))
		require.NoError(t, err)
		require.Equal(t, Summary{Done: 20000, All: 20000, Finished: true}, again)
		checked(t, store, parallelism)
	}
}

func TestStopAndContinue(t *testing.T) {
	store := memory.New(memory.Options{})
	total := 0
	for _, limit := range []int{1, 777, 1500, 3} {
		o := options(store, 3)
		o.Limit = limit
		got, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, limit, got.Processed)
		require.Equal(t, total == 0, got.Fresh)
		total += limit
		require.Equal(t, total, got.Done)
		require.False(t, got.Finished)
		require.Equal(t, total, checked(t, store, 3).Records)
	}
	for range 3 { // stop by context, wherever that hits
		ctx, cancel := context.WithCancel(t.Context())
		o := options(store, 3)
		o.Continue = true
		o.Threshold = 99 // counts at a fresh start only
		begin := total
		o.Progress = func(done, all int) {
			require.Equal(t, 20000, all)
			if total++; total-begin == 1000 {
				cancel()
			}
			require.Equal(t, total, done)
		}
		got, err := Run(ctx, o)
		cancel()
		require.NoError(t, err)
		require.Equal(t, total, got.Done)
		require.GreaterOrEqual(t, got.Processed, 1000)
		require.Equal(t, total, checked(t, store, 3).Records)
	}
}

func TestRateHoldsTheJobBack(t *testing.T) {
	o := options(memory.New(memory.Options{}), 2)
	o.Rate, o.Limit = 1000, 51
	begun := time.Now()
	got, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 51, got.Processed)
	require.GreaterOrEqual(t, time.Since(begun), 50*time.Millisecond)

	// A stop doesn't wait for the next slot.
	slow := options(memory.New(memory.Options{}), 2)
	slow.Rate = 1
	ctx, cancel := context.WithCancel(t.Context())
	slow.Progress = func(int, int) { cancel() }
	got, err = Run(ctx, slow)
	require.NoError(t, err)
	require.Equal(t, 1, got.Processed)
}

func TestRefusesWhatCannotBeContinued(t *testing.T) {
	half := func(t *testing.T) *memory.Store {
		store := memory.New(memory.Options{})
		o := options(store, 3)
		o.Limit = 1000
		_, err := Run(t.Context(), o)
		require.NoError(t, err)
		return store
	}
	opKey := func(subtask int, name string) string {
		return testJob.OperatorKey(Group, Topic, subtask, SourceOperator, name)
	}
	for name, c := range map[string]struct {
		parallelism int
		spoil       []statebackend.Cmd
		want        string
	}{
		"fewer subtasks":   {2, nil, "subtask 2 has positions, but parallelism is 2: rescale the job"},
		"more subtasks":    {4, nil, "subtask 3 has threshold"},
		"positions gone":   {3, []statebackend.Cmd{statebackend.Command(statebackend.OpDel, opKey(1, Positions))}, "5 of 8 partitions have a position"},
		"all gone":         {3, delAll(opKey), "there are no positions, but"},
		"twice":            {3, []statebackend.Cmd{statebackend.Command(statebackend.OpRPush, opKey(2, Positions), `{"partition":0,"offset":3}`)}, "which is there twice"},
		"other source":     {3, []statebackend.Cmd{statebackend.Command(statebackend.OpRPush, opKey(2, Positions), `{"partition":8,"offset":3}`)}, "not within the source's 8 partitions"},
		"beyond the end":   {3, reposition(opKey, `{"partition":1,"offset":2501}`), "not within"},
		"behind the told":  {3, []statebackend.Cmd{statebackend.Command(statebackend.OpRPush, opKey(0, Told), `{"subtask":1,"partition":4,"offset":2000}`)}, "subtask 0 was told that partition 4 has been read up to 2000, but its position is"},
		"threshold gone":   {3, []statebackend.Cmd{statebackend.Command(statebackend.OpDel, opKey(1, Threshold))}, "subtask 1 has threshold 0 (there: false)"},
		"threshold differ": {3, []statebackend.Cmd{statebackend.Command(statebackend.OpHSet, opKey(1, Threshold), `"delay"`, "99")}, "subtask 1 has threshold 99"},
		"assigned":         {3, []statebackend.Cmd{statebackend.Command(statebackend.OpSet, testJob.Assignment(), `{"epoch":7,"maxParallelism":128,"parallelism":5,"hash":"java","ranges":[]}`)}, "parallelism 3 and max parallelism 128 were asked for, but the assignment of epoch 7 says 5 and 128"},
	} {
		store := half(t)
		if len(c.spoil) > 0 {
			_, err := store.Do(t.Context(), c.spoil...)
			require.NoError(t, err)
		}
		got, err := Run(t.Context(), options(store, c.parallelism))
		require.ErrorIs(t, err, ErrStart, name)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, testJob.Name, name)
		require.Zero(t, got.Processed, name)
	}
}

func delAll(opKey func(int, string) string) (cmds []statebackend.Cmd) {
	for s := range 3 {
		cmds = append(cmds, statebackend.Command(statebackend.OpDel, opKey(s, Positions)))
	}
	return cmds
}

func reposition(opKey func(int, string) string, items ...string) []statebackend.Cmd {
	return []statebackend.Cmd{statebackend.Command(statebackend.OpDel, opKey(1, Positions)),
		statebackend.Command(statebackend.OpRPush, opKey(1, Positions), items...)}
}

func TestContinueNeverBeginsAnew(t *testing.T) {
	store := memory.New(memory.Options{})
	o := options(store, 2)
	o.Continue = true
	_, err := Run(t.Context(), o)
	require.ErrorIs(t, err, ErrStart)
	require.ErrorContains(t, err, "wait for the restore")
	replies, err := store.Do(t.Context(), statebackend.Command(statebackend.OpSCard, testJob.Index()))
	require.NoError(t, err)
	require.Zero(t, replies[0].Int, "nothing was written")
}

func TestWrongOptions(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"rate -1":        func(o *Options) { o.Rate = -1 },
		"limit -3":       func(o *Options) { o.Limit = -3 },
		"-8 partitions":  func(o *Options) { o.Partitions = -8 },
		"parallelism":    func(o *Options) { o.Parallelism = 129 },
		"job name":       func(o *Options) { o.Job.Name = "" },
		"space without ": func(o *Options) { o.Store = nil },
	} {
		o := options(memory.New(memory.Options{}), 2)
		change(&o)
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
}

// TestNoticesThatTheStateIsReplaced takes the state away under the running job,
// in the ways in which that happens.
func TestNoticesThatTheStateIsReplaced(t *testing.T) {
	record := func(field, value string) statebackend.Cmd {
		return statebackend.Command(statebackend.OpHSet, testJob.Record(), field, value)
	}
	for name, replace := range map[string]func(context.Context, *memory.Store) error{
		"lost": func(_ context.Context, s *memory.Store) error { s.Lose(); return nil },
		"restored": func(ctx context.Context, s *memory.Store) error {
			_, err := s.Do(ctx, record("epoch", "2"))
			return err
		},
		"another": func(ctx context.Context, s *memory.Store) error {
			_, err := s.Do(ctx, record("incarnation", "other"))
			return err
		},
	} {
		store := memory.New(memory.Options{})
		_, err := store.Do(t.Context(), record("incarnation", "first"), record("epoch", "1"))
		require.NoError(t, err)
		o := options(store, 2)
		var calls atomic.Int64
		o.Progress = func(int, int) {
			if calls.Add(1) == 900 {
				require.NoError(t, replace(t.Context(), store))
			}
		}
		got, err := Run(t.Context(), o)
		require.ErrorIs(t, err, ErrStateReplaced, name)
		require.ErrorContains(t, err, "was \"first\" epoch \"1\"", name)
		require.Less(t, got.Processed, 905, "noticed at once: %s", name)
	}
}

func TestTakesOnACoordinatorThatComesLater(t *testing.T) {
	store := memory.New(memory.Options{})
	o := options(store, 2)
	o.Limit = 3000
	o.Progress = func(done, _ int) {
		if done == 900 {
			_, err := store.Adopt(t.Context(), testJob, "first", statebackend.Assignment{
				MaxParallelism: 128, Parallelism: 2, Hash: keygroups.HashJava})
			require.NoError(t, err)
		}
	}
	got, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 3000, got.Processed)
}

// failing gives an error instead of the k-th call.
type failing struct {
	*memory.Store
	left atomic.Int64
}

var errBroken = errors.New("broken on purpose")

func (f *failing) Do(ctx context.Context, cmds ...statebackend.Cmd) ([]statebackend.Reply, error) {
	if f.left.Add(-1) == 0 {
		return nil, errBroken
	}
	return f.Store.Do(ctx, cmds...)
}

// TestStoreFailsAnywhere lets each call of the store fail in turn: whatever was
// going on, what is in the store is consistent and the next run continues.
func TestStoreFailsAnywhere(t *testing.T) {
	for k := int64(1); ; k++ {
		store := &failing{Store: memory.New(memory.Options{})}
		store.left.Store(k)
		o := options(store, 3)
		o.Limit = 20
		got, err := Run(t.Context(), o)
		if err == nil {
			require.Equal(t, 20, got.Processed)
			require.Greater(t, k, int64(100), "there were calls to fail")
			return
		}
		require.ErrorIs(t, err, errBroken)
		o.Limit = 20 - got.Processed
		if o.Limit > 0 {
			got, err = Run(t.Context(), o)
			require.NoError(t, err)
		}
		require.Equal(t, 20, got.Done)
		require.Equal(t, 20, checked(t, store, 3).Records)
	}
}
