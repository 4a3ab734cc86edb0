package backendtest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

func testCutContent(t *testing.T, h Harness) {
	fill(t, h, job, "cut")
	do(t, h, cmd(statebackend.OpSet, job.Root()+"x:cg:foreign", "not ours"), cmd(statebackend.OpSet, job.Root()+":cg:not indexed", "1"))
	before := h.Now(t)
	cut, keys := cutOf(t, h, job)
	require.Equal(t, h.Grade, cut.Grade)
	require.Less(t, cut.Stall, time.Minute)
	require.False(t, cut.At.Before(before.Add(-time.Second)) || cut.At.After(h.Now(t).Add(time.Second)), "by the server's clock")
	require.NotEmpty(t, cut.Server.RunID)
	require.Equal(t, "incarnation-cut", cut.Record.Incarnation)
	require.Equal(t, 128, cut.Assigned.MaxParallelism)
	require.Empty(t, cut.Positions)
	checkSections(t, keys)

	counts := map[snapshot.Section]int{}
	for _, k := range keys {
		counts[k.Key.Section]++
	}
	require.Equal(t, map[snapshot.Section]int{snapshot.SectionKeyed: fixtureNames - 2, snapshot.SectionOperator: 2, snapshot.SectionMeta: 3}, counts)
	checkFixture(t, keys)
}

// checkSections: state first, then meta, then sources; each name once.
func checkSections(t *testing.T, keys []snapshot.RecordedKey) {
	t.Helper()
	rank := map[snapshot.Section]int{snapshot.SectionKeyed: 0, snapshot.SectionOperator: 0, snapshot.SectionMeta: 1, snapshot.SectionSource: 2}
	last := 0
	seen := map[string]bool{}
	for _, k := range keys {
		require.GreaterOrEqual(t, rank[k.Key.Section], last)
		last = rank[k.Key.Section]
		require.False(t, seen[string(k.Key.Name)], "%q comes twice", k.Key.Name)
		seen[string(k.Key.Name)] = true
		require.Equal(t, k.Key.Count, k.End.Count, "%q", k.Key.Name)
	}
}

func checkFixture(t *testing.T, keys []snapshot.RecordedKey) {
	t.Helper()
	keyed := func(name string) *snapshot.RecordedKey { return find(t, keys, snapshot.SectionKeyed, name) }
	big := keyed(stateName(job, 1, "big"))
	require.EqualValues(t, hashFields, big.Key.Count)
	require.Len(t, big.Elements, hashFields)
	odd := keyed(stateName(job, 2, "odd"))
	require.Len(t, odd.Elements, len(ugly)+1)
	for _, e := range odd.Elements {
		for i, u := range ugly {
			if u == string(e.Field) {
				require.Equal(t, ugly[len(ugly)-1-i], string(e.Value))
			}
		}
	}
	list := keyed(stateName(job, 3, "list") + ":s:l")
	require.Len(t, list.Elements, 900+len(ugly))
	require.Equal(t, "cut0", string(list.Elements[0].Value))
	require.Equal(t, ugly[3], string(list.Elements[903].Value))
	require.Len(t, keyed(stateName(job, 4, "set")+":s:m").Elements, 300+len(ugly))
	checkScores(t, keyed(stateName(job, 5, "zset")).Elements)
	for i, u := range ugly {
		require.Equal(t, strconv.Itoa(i)+"cut", string(keyed(stateName(job, 6, "named") + ":t:" + u).Elements[0].Value))
	}
	require.Empty(t, keyed(stateName(job, 7, "empty string")).Elements[0].Value)
	long := keyed(stateName(job, 7, "long string")).Elements[0]
	require.Greater(t, long.Size, uint64(2*snapshot.MaxPart))
	require.Equal(t, strings.Repeat("cut\x00\xff", 3*snapshot.MaxPart/5), string(long.Value))
	require.Positive(t, keyed(laterName(job)).Key.ExpireAt)
	require.Equal(t, snapshot.TypeMissing, keyed(stateName(job, 99, "never written")).Key.Type)
	require.Equal(t, snapshot.TypeMissing, keyed("\xff not ours \x00").Key.Type)
	require.Len(t, find(t, keys, snapshot.SectionOperator, operatorName(job, 1, "positions")).Elements, 5)
	require.EqualValues(t, fixtureKeys, find(t, keys, snapshot.SectionMeta, job.Registry()).Key.Count)
}

func checkScores(t *testing.T, elements []snapshot.RecordedElement) {
	t.Helper()
	got := map[string]float64{}
	for _, e := range elements {
		got[string(e.Value)] = e.Score
	}
	for i, u := range ugly {
		want, err := strconv.ParseFloat(scores[i%len(scores)], 64)
		require.NoError(t, err)
		require.Equal(t, want, got[u])
	}
}

// testCutExpired: a key that has expired is missing, one that will expire
// has its absolute time (cases 3, 19, 20).
func testCutExpired(t *testing.T, h Harness) {
	now := h.Now(t)
	soon, later := now.Add(300*time.Millisecond), now.Add(2*time.Hour)
	for i, name := range []string{"before", "soon", "later", "after"} {
		key := stateName(job, i, name)
		do(t, h, cmd(statebackend.OpSAdd, job.Index(), key), cmd(statebackend.OpHSet, key, "f", name))
	}
	do(t, h, cmd(statebackend.OpPExpireAt, stateName(job, 1, "soon"), strconv.FormatInt(soon.UnixMilli(), 10)),
		cmd(statebackend.OpPExpireAt, stateName(job, 2, "later"), strconv.FormatInt(later.UnixMilli(), 10)))
	h.Pass(t, soon.Add(grace))
	_, keys := cutOf(t, h, job)
	require.Len(t, keys, 4)
	require.Equal(t, snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(stateName(job, 1, "soon"))}, find(t, keys, snapshot.SectionKeyed, stateName(job, 1, "soon")).Key)
	require.Equal(t, later.UnixMilli(), find(t, keys, snapshot.SectionKeyed, stateName(job, 2, "later")).Key.ExpireAt)
	for i, name := range map[int]string{0: "before", 3: "after"} {
		k := find(t, keys, snapshot.SectionKeyed, stateName(job, i, name))
		require.Zero(t, k.Key.ExpireAt)
		require.Equal(t, name, string(k.Elements[0].Value))
	}
	require.Len(t, members(t, h, job.Index()), 4, "the index stays whole")
}

// counter writes two keys and a list together, again and again.
type counter struct {
	h             Harness
	one, two, log string
	mu            sync.Mutex
	written       int
}

func (c *counter) write(t testing.TB) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := strconv.Itoa(c.written + 1)
	_, err := c.h.Backend.Do(ctxOf(t),
		cmd(statebackend.OpSAdd, job.Index(), c.one, c.two, c.log),
		cmd(statebackend.OpHSet, c.one, "f", "a"+n), cmd(statebackend.OpHSet, c.two, "g", "b"+n), cmd(statebackend.OpRPush, c.log, n))
	c.written++
	return err
}

// soFar is how many writes are done.
func (c *counter) soFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

// testCutIsOneInstant (I2): two keys that are written together are equal in
// every cut, lists have grown as far, and the cut is no older than its start.
func testCutIsOneInstant(t *testing.T, h Harness) {
	fill(t, h, job, "instant")
	c := &counter{h: h, one: stateName(job, 1, "one"), two: stateName(job, 90, "two"), log: stateName(job, 45, "log") + ":s:k"}
	require.NoError(t, c.write(t))
	stop := make(chan struct{})
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				select {
				case <-stop:
					return
				default:
					errs[w] = c.write(t)
				}
			}
		})
	}
	for range 20 {
		c.checkCut(t)
	}
	close(stop)
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func (c *counter) checkCut(t *testing.T) {
	t.Helper()
	from := c.soFar()
	_, keys := cutOf(t, c.h, job)
	a := string(find(t, keys, snapshot.SectionKeyed, c.one).Elements[0].Value)
	b := string(find(t, keys, snapshot.SectionKeyed, c.two).Elements[0].Value)
	require.Equal(t, a[1:], b[1:])
	n, err := strconv.Atoi(a[1:])
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, from)
	items := find(t, keys, snapshot.SectionKeyed, c.log).Elements
	require.Len(t, items, n)
	require.Equal(t, a[1:], string(items[n-1].Value))
}

// testCutWritesNothing (I9).
func testCutWritesNothing(t *testing.T, h Harness) {
	fill(t, h, job, "still")
	before := dump(t, h)
	_, first := cutOf(t, h, job)
	require.Equal(t, before, dump(t, h))
	_, second := cutOf(t, h, job)
	require.Empty(t, snapshot.DiffKeys(first, second), "expiries too are as they were")
}

// testCutMarks (I5): the record knows the newest cut that the state has come
// through, and a store that was started anew isn't cut unseen.
func testCutMarks(t *testing.T, h Harness) {
	fill(t, h, job, "mark")
	require.NoError(t, h.Backend.Note(ctxOf(t), job, "incarnation-mark", statebackend.Notes{Attempt: 31}))
	before := dump(t, h, job.Record())
	look := func() statebackend.Glimpse {
		g, err := h.Backend.Look(ctxOf(t), job)
		require.NoError(t, err)
		return g
	}
	seen := look()
	require.Less(t, seen.Record.Cut, snapshot.ID(31))
	_, _ = cutOf(t, h, job)
	require.Equal(t, seen.Record, look().Record, "a cut without an incarnation writes nothing")
	var r snapshot.Recorder
	cut, err := h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job, Incarnation: "incarnation-mark"}, &r)
	require.NoError(t, err)
	require.Less(t, cut.Record.Cut, snapshot.ID(31), "the cut itself is from before the mark")
	want := seen.Record
	want.Cut = 31
	require.Equal(t, want, look().Record)
	require.Equal(t, before, dump(t, h, job.Record()), "and nothing else is written")

	require.NoError(t, h.Backend.Note(ctxOf(t), job, "incarnation-mark", statebackend.Notes{Attempt: 32}))
	_, err = h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job, RunID: "another run"}, &r)
	require.ErrorIs(t, err, statebackend.ErrStateLost)
	require.ErrorContains(t, err, "another run")
	require.EqualValues(t, 31, look().Record.Cut)
	_, err = h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job, Incarnation: "incarnation-mark", RunID: seen.Server.RunID}, &r)
	require.NoError(t, err)
	require.EqualValues(t, 32, look().Record.Cut)
}

func testCutRefusals(t *testing.T, h Harness) {
	cut := func(req statebackend.CutRequest) error {
		t.Helper()
		var r snapshot.Recorder
		_, err := h.Backend.Cut(ctxOf(t), req, &r)
		require.Error(t, err)
		return err
	}
	require.ErrorIs(t, cut(statebackend.CutRequest{Job: job}), statebackend.ErrNoState)
	require.NotErrorIs(t, cut(statebackend.CutRequest{Job: job}), statebackend.ErrStateLost)
	err := cut(statebackend.CutRequest{Job: job, Incarnation: "first"})
	require.True(t, errors.Is(err, statebackend.ErrStateLost) || errors.Is(err, statebackend.ErrNoState), "%v", err)

	fill(t, h, job, "x")
	err = cut(statebackend.CutRequest{Job: job, Incarnation: "first"})
	require.ErrorIs(t, err, statebackend.ErrStateLost)
	require.ErrorContains(t, err, "first")
	require.ErrorIs(t, cut(statebackend.CutRequest{Job: job, Grade: h.Refused}), statebackend.ErrGrade)
	require.Error(t, cut(statebackend.CutRequest{Job: statebackend.Job{Name: "n"}}))

	mark := `{"id":"r1","kind":"restore","checkpoint":3,"startedAt":"2025-01-02T03:04:05Z"}`
	do(t, h, cmd(statebackend.OpHSet, job.Record(), statebackend.FieldRestore, mark))
	require.ErrorIs(t, cut(statebackend.CutRequest{Job: job, Incarnation: "incarnation-x"}), statebackend.ErrMarked)
	do(t, h, cmd(statebackend.OpHDel, job.Record(), statebackend.FieldRestore))

	do(t, h, cmd(statebackend.OpDel, job.Record()))
	require.ErrorIs(t, cut(statebackend.CutRequest{Job: job, Incarnation: "incarnation-x"}), statebackend.ErrStateLost)
	var r snapshot.Recorder
	_, err = h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job}, &r)
	require.NoError(t, err, "a job without a record can be cut when no incarnation is asked for")

	do(t, h, cmd(statebackend.OpDel, job.Index()), cmd(statebackend.OpSet, job.Index(), "not a set"))
	require.ErrorIs(t, cut(statebackend.CutRequest{Job: job}), statebackend.ErrWrongType)

	ctx, cancel := context.WithCancel(ctxOf(t))
	cancel()
	_, err = h.Backend.Cut(ctx, statebackend.CutRequest{Job: job}, &r)
	require.ErrorIs(t, err, context.Canceled)
}

// failing is a sink that fails at its n-th call.
type failing struct {
	snapshot.Recorder
	n   int
	err error
}

func (f *failing) count() error {
	f.n--
	if f.n < 0 {
		return f.err
	}
	return nil
}

func (f *failing) BeginKey(k snapshot.Key) error {
	return firstOf(f.count(), f.Recorder.BeginKey(k))
}
func (f *failing) Element(e snapshot.Element) error {
	return firstOf(f.count(), f.Recorder.Element(e))
}
func (f *failing) EndKey(e snapshot.KeyEnd) error { return firstOf(f.count(), f.Recorder.EndKey(e)) }

// testCutSinkError: what the sink gives comes back, and the store is free.
func testCutSinkError(t *testing.T, h Harness) {
	fill(t, h, job, "sink")
	full := errors.New("the disk is full")
	for _, n := range []int{0, 1, 2, 300, 2000} {
		_, err := h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job}, &failing{n: n, err: full})
		require.ErrorIs(t, err, full)
		do(t, h, cmd(statebackend.OpSet, "writers go on", strconv.Itoa(n)))
	}
	cutOf(t, h, job)
}

// testOpaque: a key without elements that we know is carried as the server
// dumps it, and comes back.
func testOpaque(t *testing.T, h Harness) {
	if h.Opaque == nil {
		testOpaqueRefused(t, h)
		return
	}
	fill(t, h, job, "opaque")
	key := stateName(job, 1, "stream")
	h.Opaque(t, key)
	do(t, h, cmd(statebackend.OpSAdd, job.Index(), key))
	_, keys := cutOf(t, h, job)
	k := find(t, keys, snapshot.SectionKeyed, key)
	require.Equal(t, snapshot.TypeOpaque, k.Key.Type)
	require.NotEmpty(t, k.Key.TypeName)
	require.NotEmpty(t, k.Key.Server)
	require.Len(t, k.Elements, 1)
	do(t, h, cmd(statebackend.OpDel, key))
	restoreKeys(t, h, request(t, h, job, "opaque"), keys)
	_, after := cutOf(t, h, job)
	require.Equal(t, k.Elements, find(t, after, snapshot.SectionKeyed, key).Elements)
}

// testOpaqueRefused: a store without such keys refuses them by name.
func testOpaqueRefused(t *testing.T, h Harness) {
	fill(t, h, job, "opaque")
	_, keys := cutOf(t, h, job)
	name := stateName(job, 1, "stream")
	before := dump(t, h)
	s, err := h.Backend.Stage(ctxOf(t), request(t, h, job, "opaque"))
	require.NoError(t, err)
	err = s.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: snapshot.TypeOpaque, Count: 1, TypeName: "stream", Server: "7.0.15"})
	require.ErrorIs(t, err, statebackend.ErrUnsupported)
	require.ErrorContains(t, err, strconv.Quote(name))
	require.Error(t, snapshot.Replay(keys, s), "the staging is dead")
	require.NoError(t, s.Abort(ctxOf(t)))
	require.Equal(t, before, dump(t, h))
}
