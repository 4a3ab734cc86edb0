package backendtest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// request is a restore of everything as the job stands.
func request(t testing.TB, h Harness, j statebackend.Job, id string) statebackend.RestoreRequest {
	t.Helper()
	g, err := h.Backend.Look(ctxOf(t), j)
	require.NoError(t, err)
	now := h.Now(t)
	a := assignment()
	return statebackend.RestoreRequest{ID: id, Job: j, Scope: statebackend.ScopeAll, Checkpoint: 5, StartedAt: now,
		Epoch: g.Record.Epoch, NewEpoch: g.Record.Epoch + 4, Incarnation: "after-" + id, Attempt: 8, Assignment: &a, AsOf: now}
}

// restoreKeys stages, proves and flips.
func restoreKeys(t testing.TB, h Harness, req statebackend.RestoreRequest, keys []snapshot.RecordedKey) statebackend.FlipResult {
	t.Helper()
	s := stageKeys(t, h, req, keys)
	require.NoError(t, s.Prove(ctxOf(t)))
	res, err := s.Flip(ctxOf(t))
	require.NoError(t, err)
	require.NoError(t, s.Abort(ctxOf(t)), "does nothing after a flip")
	noneStaged(t, h, req.Job)
	return res
}

func stageKeys(t testing.TB, h Harness, req statebackend.RestoreRequest, keys []snapshot.RecordedKey) statebackend.Staging {
	t.Helper()
	s, err := h.Backend.Stage(ctxOf(t), req)
	require.NoError(t, err)
	require.NoError(t, snapshot.Replay(keys, s))
	return s
}

func noneStaged(t testing.TB, h Harness, j statebackend.Job) {
	t.Helper()
	for _, key := range h.Keys(t) {
		require.False(t, strings.HasPrefix(key, j.Record()+":stage:"), "%q is left", key)
	}
}

// spoil changes a filled job in every way that a restore must undo.
func spoil(t testing.TB, h Harness) {
	t.Helper()
	do(t, h,
		cmd(statebackend.OpHSet, stateName(job, 1, "big"), "s:extra", "field"),
		cmd(statebackend.OpHDel, stateName(job, 2, "odd"), "\xff"),
		cmd(statebackend.OpRPush, stateName(job, 3, "list")+":s:l", "doubled"),
		cmd(statebackend.OpDel, stateName(job, 4, "set")+":s:m"), cmd(statebackend.OpRPush, stateName(job, 4, "set")+":s:m", "another type"),
		cmd(statebackend.OpDel, stateName(job, 5, "zset")),
		cmd(statebackend.OpSet, laterName(job), "no expiry any more"),
		cmd(statebackend.OpSet, stateName(job, 99, "never written"), "written since"),
		cmd(statebackend.OpSet, "\xff not ours \x00", "written since, and unlisted"), cmd(statebackend.OpSRem, job.Index(), "\xff not ours \x00"),
		cmd(statebackend.OpSet, stateName(job, 100, "newer"), "came later"), cmd(statebackend.OpSAdd, job.Index(), stateName(job, 100, "newer"), "later and missing"),
		cmd(statebackend.OpHSet, job.Registry(), stateName(job, 100, "newer"), "x|1"),
		cmd(statebackend.OpRPush, operatorName(job, 1, "positions"), "more"),
		cmd(statebackend.OpHSet, job.OperatorStates(), "source\x01later", `{"mode":"union"}`),
		cmd(statebackend.OpHDel, job.OperatorStates(), "source\x01positions"),
	)
}

// checkRestored compares the job with a checkpoint's keys and its request.
func checkRestored(t testing.TB, h Harness, req statebackend.RestoreRequest, want []snapshot.RecordedKey) {
	t.Helper()
	cut, got := cutOf(t, h, req.Job)
	own := req.Job.Assignment()
	require.Empty(t, snapshot.DiffKeys(owned(req.Job, without(want, own)), owned(req.Job, without(got, own))))
	require.Equal(t, names(want), names(got), "the index is the checkpoint's, with what isn't the job's")
	require.Equal(t, statebackend.Record{Incarnation: req.Incarnation, Epoch: req.NewEpoch, Attempt: req.Attempt, Cut: req.Attempt,
		Checkpoint: cut.Record.Checkpoint, CheckpointAt: cut.Record.CheckpointAt, Flipped: req.ID}, cut.Record)
	if req.Assignment == nil {
		require.Nil(t, cut.Assigned)
		return
	}
	a := *req.Assignment
	a.Epoch = req.NewEpoch
	require.Equal(t, a, *cut.Assigned)
}

// testRoundTrip (I3).
func testRoundTrip(t *testing.T, h Harness) {
	fill(t, h, job, "round")
	do(t, h, cmd(statebackend.OpSet, job.Root()+":cg:not indexed", "stays"), cmd(statebackend.OpSet, "streaming:runtime:flights", "foreign"))
	_, keys := cutOf(t, h, job)
	spoil(t, h)
	foreign := dump(t, h, job.Root())
	require.Len(t, foreign, 2)
	req := request(t, h, job, "r1")
	res := restoreKeys(t, h, req, keys)
	require.EqualValues(t, fixtureKeys, res.Keys)
	require.EqualValues(t, 2, res.Removed, "the newer key, and the one that was missing")
	require.Zero(t, res.Expired)
	require.Equal(t, req.NewEpoch, res.Epoch)
	checkRestored(t, h, req, keys)
	require.Equal(t, foreign, dump(t, h, job.Root()))
	require.Equal(t, "stays", string(do(t, h, cmd(statebackend.OpGet, job.Root()+":cg:not indexed"))[0].Bytes))
	require.NotContains(t, members(t, h, job.Index()), stateName(job, 100, "newer"))

	// Again, without an assignment this time.
	spoil(t, h)
	req = request(t, h, job, "r2")
	req.Assignment = nil
	restoreKeys(t, h, req, keys)
	checkRestored(t, h, req, without(keys, job.Assignment()))
}

func testRestoreAfterLoss(t *testing.T, h Harness) {
	fill(t, h, job, "lost")
	_, keys := cutOf(t, h, job)
	h.Lose(t)
	req := request(t, h, job, "r1")
	require.Zero(t, req.Epoch, "a record that isn't there")
	req.NewEpoch = 40
	require.NoError(t, h.Backend.Room(ctxOf(t), 10, 1000, 1<<20))
	res := restoreKeys(t, h, req, keys)
	require.EqualValues(t, fixtureKeys, res.Keys)
	require.Zero(t, res.Removed)
	checkRestored(t, h, req, keys)
	g, err := h.Backend.Look(ctxOf(t), job)
	require.NoError(t, err)
	require.EqualValues(t, 5, g.Record.Checkpoint, "the record isn't older than what was restored")
}

// cutBeforeExpiry cuts three keys, of which one expires soon and one at three
// times that, before the first is gone: on a busy machine at another try.
func cutBeforeExpiry(t *testing.T, h Harness, names map[string]string) (now time.Time, soon time.Duration, keys []snapshot.RecordedKey) {
	t.Helper()
	for soon = 200 * time.Millisecond; ; soon *= 2 {
		now = h.Now(t)
		for name, d := range map[string]time.Duration{"past": soon, "between": 3 * soon, "ahead": time.Hour} {
			key, at := names[name], strconv.FormatInt(now.Add(d).UnixMilli(), 10)
			do(t, h, cmd(statebackend.OpSAdd, job.Index(), key), cmd(statebackend.OpHSet, key, "f", name), cmd(statebackend.OpPExpireAt, key, at))
		}
		_, keys = cutOf(t, h, job)
		if find(t, keys, snapshot.SectionKeyed, names["past"]).Key.Type != snapshot.TypeMissing {
			return now, soon, keys
		}
		require.Less(t, soon, time.Second, "the machine is so busy that keys expired before the cut")
	}
}

// testRestoreExpiry (cases 21): absolute times; what is past is dropped,
// counted, and stays in the index.
func testRestoreExpiry(t *testing.T, h Harness) {
	names := map[string]string{}
	for _, name := range []string{"past", "between", "ahead"} {
		names[name] = stateName(job, 1, name)
	}
	now, soon, keys := cutBeforeExpiry(t, h, names)
	asOf := now.Add(soon)
	h.Pass(t, asOf.Add(grace))
	req := request(t, h, job, "r1")
	req.AsOf = asOf
	s := stageKeys(t, h, req, keys)
	require.EqualValues(t, 1, s.Expired())
	require.NoError(t, s.Prove(ctxOf(t)), "what has expired is no mismatch")
	h.Pass(t, now.Add(3*soon+grace))
	res, err := s.Flip(ctxOf(t))
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Keys)
	require.EqualValues(t, 2, res.Expired)
	noneStaged(t, h, job)

	_, after := cutOf(t, h, job)
	require.Len(t, members(t, h, job.Index()), 3)
	require.Equal(t, snapshot.TypeMissing, find(t, after, snapshot.SectionKeyed, names["past"]).Key.Type)
	require.Equal(t, snapshot.TypeMissing, find(t, after, snapshot.SectionKeyed, names["between"]).Key.Type)
	require.Equal(t, now.Add(time.Hour).UnixMilli(), find(t, after, snapshot.SectionKeyed, names["ahead"]).Key.ExpireAt)
}

// testRestoreMakesEqual: a checkpoint without registry or modes leaves none,
// and an expired key's live namesake goes (cases 16).
func testRestoreMakesEqual(t *testing.T, h Harness) {
	now := h.Now(t)
	key, old := stateName(job, 1, "v"), stateName(job, 2, "old")
	keys := []snapshot.RecordedKey{
		{Key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(key), Type: snapshot.TypeSet, Count: 1}, Elements: []snapshot.RecordedElement{{Size: 1, Value: []byte("m")}}},
		{Key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(old), Type: snapshot.TypeString, Count: 1, ExpireAt: now.UnixMilli() - 10}, Elements: []snapshot.RecordedElement{{Size: 3, Value: []byte("old")}}},
	}
	var r snapshot.Recorder // counts and digests
	require.NoError(t, snapshot.Replay(keys, &r))
	fill(t, h, job, "equal")
	do(t, h, cmd(statebackend.OpHSet, key, "f", "v"), cmd(statebackend.OpSet, old, "live"), cmd(statebackend.OpSAdd, job.Index(), old))
	res := restoreKeys(t, h, request(t, h, job, "r1"), r.Keys)
	require.EqualValues(t, 1, res.Keys)
	require.EqualValues(t, 1, res.Expired)
	require.Equal(t, []string{key, old}, members(t, h, job.Index()))
	require.Equal(t, []string{"m"}, members(t, h, key))
	require.ElementsMatch(t, []string{key, job.Index(), job.Record(), job.Assignment()}, h.Keys(t))
}

func testStageRefusals(t *testing.T, h Harness) {
	fill(t, h, job, "refuse")
	good := request(t, h, job, "r1")
	before := dump(t, h)
	stage := func(change func(*statebackend.RestoreRequest)) error {
		req := good
		change(&req)
		_, err := h.Backend.Stage(ctxOf(t), req)
		require.Error(t, err)
		return err
	}
	require.ErrorIs(t, stage(func(r *statebackend.RestoreRequest) { r.Epoch = 7; r.NewEpoch = 8 }), statebackend.ErrFenced)
	require.ErrorIs(t, stage(func(r *statebackend.RestoreRequest) { r.Epoch = 0 }), statebackend.ErrFenced)
	require.Error(t, stage(func(r *statebackend.RestoreRequest) { r.ID = "no spaces" }))
	require.Error(t, stage(func(r *statebackend.RestoreRequest) { r.Job.Name = "" }))
	require.Equal(t, before, dump(t, h), "refused before the first write")

	s, err := h.Backend.Stage(ctxOf(t), good)
	require.NoError(t, err)
	require.ErrorIs(t, stage(func(r *statebackend.RestoreRequest) { r.ID = "r2" }), statebackend.ErrMarked)
	g, err := h.Backend.Look(ctxOf(t), job)
	require.NoError(t, err)
	require.Equal(t, "r1", g.Record.Restore.ID)
	require.Equal(t, "restore", g.Record.Restore.Kind)
	require.EqualValues(t, 5, g.Record.Restore.Checkpoint)
	var r snapshot.Recorder
	_, err = h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: job}, &r)
	require.ErrorIs(t, err, statebackend.ErrMarked, "a marked job is never checkpointed")
	require.NoError(t, s.Abort(ctxOf(t)))
	require.NoError(t, s.Abort(ctxOf(t)))
	require.Equal(t, before, dump(t, h))
	refuseBookkeeping(t, h, good)
	require.Equal(t, before, dump(t, h))
}

// refuseBookkeeping: a checkpoint brings no record, no index, and nothing else
// that isn't state.
func refuseBookkeeping(t *testing.T, h Harness, req statebackend.RestoreRequest) {
	t.Helper()
	for _, bad := range []snapshot.Key{
		{Section: snapshot.SectionMeta, Name: []byte(job.Record()), Type: snapshot.TypeHash, Count: 1},
		{Section: snapshot.SectionMeta, Name: []byte(job.Index()), Type: snapshot.TypeHash, Count: 1},
		{Section: snapshot.SectionMeta, Name: []byte("another"), Type: snapshot.TypeHash, Count: 1},
	} {
		req.ID += "x"
		s, err := h.Backend.Stage(ctxOf(t), req)
		require.NoError(t, err)
		require.ErrorContains(t, s.BeginKey(bad), strconv.Quote(string(bad.Name)))
		require.NoError(t, s.Abort(ctxOf(t)))
	}
}
