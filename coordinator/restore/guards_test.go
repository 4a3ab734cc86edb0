package restore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// refuses requires that both Plan and Run refuse, with a code and values, and
// that nothing has changed.
func refuses(t *testing.T, w *world, req Request, code fault.Code, says ...string) *fault.Error {
	t.Helper()
	ctx := context.Background()
	keys := w.backend.(*memory.Store).Keys()
	_, planErr := w.exec.Plan(ctx, req, nil)
	_, err := w.exec.Run(ctx, req, nil)
	for _, err := range []error{planErr, err} {
		require.Error(t, err)
		require.Equal(t, code, fault.CodeOf(err), "%v", err)
		for _, s := range says {
			require.ErrorContains(t, err, s)
		}
	}
	require.ElementsMatch(t, keys, w.backend.(*memory.Store).Keys(), "nothing is written")
	w.noTraces(t)
	return fault.As(err)
}

func TestIdentityGuardShowsAllThree(t *testing.T) {
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	job := testJob("trains")
	job.Prefix = "other"
	f := refuses(t, w, Request{Job: job, From: "flights", Checkpoint: m.Checkpoint.ID}, fault.Refused,
		"job name and prefix", `job "flights", prefix "streaming:runtime", server "memory://main"`,
		`job "trains", prefix "other", server "memory://main"`)
	require.Contains(t, f.Hint, "--as")

	elsewhere := assemble(w.store, memory.New(memory.Options{Name: "spare", Now: w.now.Now}), w.now, w.job)
	f = refuses(t, elsewhere, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, fault.Refused,
		"another server", `"memory://main"`, `"memory://spare"`)
	require.Contains(t, f.Hint, "--as")
}

func TestLayoutGuard(t *testing.T) {
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	for _, c := range []struct {
		change func(*config.Job)
		says   []string
	}{
		{func(j *config.Job) { j.MaxParallelism = 24 }, []string{"max parallelism is 12 in the state and 24"}},
		{func(j *config.Job) { j.KeyGroups.Hash = keygroups.HashFlink }, []string{"hash is java in the state and flink"}},
		{func(j *config.Job) { j.KeyGroups.KeyType = keygroups.KeyLong }, []string{"key type is string in the state and long"}},
	} {
		job := w.job
		c.change(&job)
		refuses(t, w, Request{Job: job, Checkpoint: m.Checkpoint.ID}, fault.Refused, c.says...)
	}
	job := w.job
	job.KeyGroups.Ranges = keygroups.RangesFlink // moves ownership, not keys
	_, err := w.exec.Plan(context.Background(), Request{Job: job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
}

func TestParallelismAboveTheMaximumIsRefused(t *testing.T) {
	m := &snapshot.Manifest{Checkpoint: snapshot.Checkpoint{ID: 3, Parallelism: 13}}
	job := testJob("flights")
	m.KeyGroups = job.Rule()
	require.ErrorContains(t, checkLayout(m, job), "parallelism 13, which is above the max parallelism 12")
	m.Checkpoint.Parallelism = 12
	require.NoError(t, checkLayout(m, job))
}

func TestSchemaGuard(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	want := w.live(t)
	j := w.job.Key()
	for i, key := range []string{
		j.StateKey(w.scope(7), "count"), j.KeyedKey(w.scope(3), "dest", "s:JFK"),
		j.KeyedKey(w.scope(3), "last", "s:JFK"), j.KeyedKey(w.scope(4), "seen", "s:SFO"),
	} {
		w.do(t, statebackend.Command(statebackend.OpHSet, j.Registry(), key, fmt.Sprintf("com.example.New|%d", i+5)))
	}
	req := Request{Job: w.job, Checkpoint: m.Checkpoint.ID}
	f := refuses(t, w, req, fault.Refused, "schema of 4 keys differs", "java.", "com.example.New|", "and 1 more")
	require.Contains(t, f.Hint, "--accept-schema")
	req.AcceptSchema = true
	plan, err := w.exec.Plan(ctx, req, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(4), plan.SchemaDiff)
	_, err = w.exec.Run(ctx, req, nil)
	require.NoError(t, err)
	requireState(t, want, w.live(t))
}

func TestOnlyCompletedGoodCheckpointsAreRestored(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	a := snapshot.Attempt{Job: w.job.Name, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, StartedAt: start}
	failed, err := w.store.Begin(ctx, a)
	require.NoError(t, err)
	require.NoError(t, failed.Fail(ctx, snapshot.Failure{Reason: snapshot.FailPause, Message: "pause ended"}))
	refuses(t, w, Request{Job: w.job, Checkpoint: failed.ID()}, fault.Refused, "failed (pause: pause ended)")
	running, err := w.store.Begin(ctx, a)
	require.NoError(t, err)
	refuses(t, w, Request{Job: w.job, Checkpoint: running.ID()}, fault.Refused, "is in_progress")
	running.Abort()
	f := refuses(t, w, Request{Job: w.job, Checkpoint: 77}, fault.NoCheckpoint, "no checkpoint 77", "1 that can be restored, from 1 to 1")
	require.Contains(t, f.Hint, "checkpoint list")
	refuses(t, w, Request{Job: w.job, From: "trains", Checkpoint: 1}, fault.NoCheckpoint, `job "trains"`, "none that can be restored")
	why := "chunk 3 is damaged"
	_, err = w.store.Edit(ctx, w.job.Name, m.Checkpoint.ID, snapshot.Change{Bad: &why})
	require.NoError(t, err)
	refuses(t, w, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, fault.Corrupt, why)
}

func TestRoomGuard(t *testing.T) {
	c := &clock{}
	c.at.Store(start.UnixMilli())
	w := assemble(openStore(t), memory.New(memory.Options{Now: c.Now, Limit: 1 << 20}), c, testJob("flights"))
	w.seed(t)
	m := w.take(t)
	w.backend.(*memory.Store).Lose()
	tight := assemble(w.store, memory.New(memory.Options{Now: c.Now, Limit: 100}), c, w.job)
	f := refuses(t, tight, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, fault.Refused, "not enough memory")
	require.Contains(t, f.Hint, "maxmemory")
	require.ErrorIs(t, f, statebackend.ErrNoRoom)
}

// damaged gives one chunk with a flipped bit.
type damaged struct {
	snapshot.Store
	id  snapshot.ChunkID
	off int
}

func (d *damaged) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	b, err := d.Store.Chunk(ctx, id)
	if err == nil && id == d.id {
		b[d.off%len(b)] ^= 0x10
	}
	return b, err
}

func TestI3DamageIsFoundBeforeAnythingIsTouched(t *testing.T) {
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	w.dirty(t)
	before := w.live(t)
	for _, ref := range m.Chunks {
		for off := 0; off < int(ref.Stored); off += 1 + int(ref.Stored)/7 {
			touched := &touching{Backend: w.backend}
			exec := w.executor(&damaged{w.store, ref.ID, off}, w.store.Journal(), touched)
			_, err := exec.Run(context.Background(), Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true}, nil)
			require.Equal(t, fault.Corrupt, fault.CodeOf(err), "chunk %s of %s, byte %d: %v", ref.ID, ref.Section, off, err)
			require.ErrorIs(t, err, snapshot.ErrCorrupt)
			require.Zero(t, touched.flips, "no live key may be touched")
			requireState(t, before, w.live(t))
			w.noTraces(t)
		}
	}
}

// touching counts how often a restore touched a live key.
type touching struct {
	statebackend.Backend
	flips int
}

func (b *touching) Stage(ctx context.Context, req statebackend.RestoreRequest) (statebackend.Staging, error) {
	s, err := b.Backend.Stage(ctx, req)
	return &touchingStage{s, b}, err
}

type touchingStage struct {
	statebackend.Staging
	b *touching
}

func (s *touchingStage) Flip(ctx context.Context) (statebackend.FlipResult, error) {
	s.b.flips++
	return s.Staging.Flip(ctx)
}

// The disk goes bad after the guards were made: the pass that stages finds it.
func TestI3DamageAfterTheVerifyingPassIsFoundToo(t *testing.T) {
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	w.dirty(t)
	before := w.live(t)
	for _, ref := range m.Chunks {
		d := &damaged{Store: w.store}
		touched := &touching{Backend: w.backend}
		exec := w.executor(d, w.store.Journal(), touched)
		_, err := exec.Run(context.Background(), Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true},
			func(p string, _, _, _ uint64) {
				if p == PhaseStage && d.off == 0 { // once: then chunks are read ahead
					d.id, d.off = ref.ID, 70
				}
			})
		require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%s: %v", ref.Section, err)
		require.ErrorContains(t, err, "nothing was changed")
		require.Zero(t, touched.flips)
		requireState(t, before, w.live(t))
		w.noTraces(t)
	}
}

func TestPayloadsOfANewerServerAreRefused(t *testing.T) {
	key := func(server string) snapshot.Key {
		return snapshot.Key{Type: snapshot.TypeOpaque, TypeName: "stream", Server: server, Name: []byte("k:1")}
	}
	for _, c := range []struct {
		wrote, reads string
		ok           bool
	}{
		{"7.0.15", "7.0.15", true}, {"7.0.15", "7.0.2", true}, {"6.2.6", "7.0.15", true},
		{"7.2.0", "7.0.15", false}, {"8.0.0", "7.4.1", false}, {"7.0.15", "", false}, {"odd", "7.0.15", false}, {"odd", "odd", true},
	} {
		err := checkPayload(key(c.wrote), snapshot.ServerInfo{Version: c.reads})
		if c.ok {
			require.NoError(t, err, "%s into %s", c.wrote, c.reads)
			continue
		}
		require.ErrorIs(t, err, statebackend.ErrUnsupported, "%s into %s", c.wrote, c.reads)
		require.Equal(t, fault.Refused, fault.CodeOf(err))
		require.ErrorContains(t, err, `"k:1" (stream)`)
		require.ErrorContains(t, err, c.wrote)
	}
	list := snapshot.Key{Type: snapshot.TypeList, Server: "9.9.9"}
	require.NoError(t, checkPayload(list, snapshot.ServerInfo{Version: "7.0.15"}), "elements restore anywhere")
}

func TestFaultKeepsTheFirstCode(t *testing.T) {
	require.NoError(t, Fault(nil, fault.Failed, "x"))
	err := Fault(fmt.Errorf("dial: %w", statebackend.ErrUnreachable), fault.Failed, "look at %q", "a")
	require.Equal(t, fault.Unreachable, fault.CodeOf(err))
	require.EqualError(t, err, `look at "a": dial: state store can't be reached`)
	again := Fault(err, fault.Failed, "plan")
	require.Equal(t, fault.Unreachable, fault.CodeOf(again))
	require.Equal(t, fault.As(err).Hint, fault.As(again).Hint)
	require.ErrorIs(t, again, statebackend.ErrUnreachable)
	require.Equal(t, fault.Store, fault.CodeOf(Fault(errDisk, fault.Store, "read")))
}

func TestWarningsTellWhatChanges(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	ranges, err := w.job.Rule().Assign(5)
	require.NoError(t, err)
	text, err := statebackend.EncodeAssignment(statebackend.Assignment{Epoch: 9, MaxParallelism: 12, Parallelism: 5,
		Hash: w.job.KeyGroups.Hash, Ranges: ranges})
	require.NoError(t, err)
	w.do(t, statebackend.Command(statebackend.OpSet, w.job.Key().Assignment(), string(text)))
	w.now.advance(3 * time.Second)
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, 5, plan.LiveParallelism)
	require.Equal(t, 2, plan.Assignment.Parallelism)
	require.Equal(t, uint64(10), plan.Epoch, "above the epoch of the live assignment too")
	require.Contains(t, fmt.Sprint(plan.Warnings), "5 subtasks now and to 2")
	require.Equal(t, int64(3000), plan.AgeMs)
}
