package coordinator

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/drill"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// drillWorld is a job with two checkpoints on a real Redis.
func drillWorld(t *testing.T, with ...func(*redisWorld, *Options)) *redisWorld {
	w := newRedisWorld(t, redis.TrackFields, with...)
	w.seed("flights")
	w.stirRedis("flights", rand.New(rand.NewPCG(3, 4)), 300)
	w.begin("flights")
	w.checkpoint("flights")
	w.checkpoint("flights")
	return w
}

func (w *redisWorld) digest() string { return w.srv.Do("DEBUG", "DIGEST").(string) }

func (w *redisWorld) find(id snapshot.ID) snapshot.Checkpoint {
	for _, c := range w.history("flights") {
		if c.ID == id {
			return c
		}
	}
	w.t.Fatalf("no checkpoint %d", id)
	return snapshot.Checkpoint{}
}

func TestADrillLeavesItsOutcomeWithTheCheckpoint(t *testing.T) {
	w := drillWorld(t)
	before := w.digest()
	res := w.done(w.c.Drill(t.Context(), "flights", "")).Drill
	require.True(t, res.Equal, "%+v", res.Differences)
	require.EqualValues(t, 2, res.Checkpoint, "the newest")
	require.Greater(t, res.Elements, uint64(3000))
	require.Equal(t, before, w.digest())
	got := w.find(2).Drill
	require.NotNil(t, got)
	require.True(t, got.OK)
	require.Equal(t, res.RestoreMs, got.RestoreMs)
	require.Nil(t, w.find(1).Drill)
	require.Len(t, w.seen(EventDrillPassed), 1)

	res = w.done(w.c.Drill(t.Context(), "flights", "1")).Drill
	require.True(t, res.Equal)
	require.NotNil(t, w.find(1).Drill)
	j, err := w.c.Job("flights")
	require.NoError(t, err)
	require.Equal(t, HealthOK, j.Health.State)
	require.True(t, w.checkpoint("flights").Incremental, "a drill is no write of the job")

	_, err = w.c.Drill(t.Context(), "flights", "99")
	require.Equal(t, fault.NoCheckpoint, fault.CodeOf(err))
	_, err = w.c.Drill(t.Context(), "trains", "")
	require.Equal(t, fault.NoJob, fault.CodeOf(err))
}

// spoiling changes what was restored on trial before it is read back.
type spoiling struct {
	*redis.Backend
	spoil func(scratch statebackend.Job)
}

func (s *spoiling) ReadAll(ctx context.Context, job statebackend.Job, sink snapshot.Sink) (string, error) {
	s.spoil(job)
	return s.Backend.ReadAll(ctx, job, sink)
}

// spoiled makes drills in such a store.
func spoiled(spoil func(scratch statebackend.Job)) func(*redisWorld, *Options) {
	return func(w *redisWorld, o *Options) { o.DrillTarget = &spoiling{w.backend, spoil} }
}

func TestADrillThatFindsADifferenceIsAnAlarm(t *testing.T) {
	var w *redisWorld
	w = drillWorld(t, spoiled(func(scratch statebackend.Job) {
		w.srv.Do("HSET", scratch.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: 6, Operator: "count"}, "total"), "s:key-7", "other")
	}))
	res := w.done(w.c.Drill(t.Context(), "flights", "")).Drill
	require.False(t, res.Equal)
	require.Equal(t, hashState("flights", 6), res.Differences[0].Key)
	cp := w.find(2)
	require.False(t, cp.Drill.OK)
	require.Contains(t, cp.Drill.Message, hashState("flights", 6))
	require.True(t, cp.Restorable(), "the checkpoint is whole: it was the server that had something else")
	failed := w.seen(EventDrillFailed)
	require.Len(t, failed, 1)
	require.True(t, failed[0].Kind.Failed())
	require.Contains(t, failed[0].Message, hashState("flights", 6))
}

func TestOneDrillOfAJobAtATime(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	w := drillWorld(t, spoiled(func(statebackend.Job) { close(inside); <-goOn }))
	op, err := w.c.Drill(t.Context(), "flights", "")
	require.NoError(t, err)
	<-inside
	_, err = w.c.Drill(t.Context(), "flights", "")
	require.Equal(t, fault.Busy, fault.CodeOf(err))
	require.ErrorContains(t, err, op.Status().ID)
	w.checkpoint("flights") // they go on meanwhile
	close(goOn)
	require.True(t, w.done(op, nil).Drill.Equal)
}

// What a process that was killed in a drill left behind goes at the next start,
// and nothing else does.
func TestWhatADeadDrillLeftIsRemoved(t *testing.T) {
	w := drillWorld(t)
	before := w.digest()
	scratch := drill.ScratchJob(testJob("flights").Key(), "dead")
	w.srv.Do("HSET", scratch.Record(), "incarnation", "x")
	w.srv.Do("SET", scratch.Root()+":restore:1:k0", "v")
	value, err := json.Marshal(scratchRecord{Job: scratch, Server: w.backend.Server()})
	require.NoError(t, err)
	require.NoError(t, w.db.Journal().Put(t.Context(), bucketDrills, scratch.Root(), value))
	require.Eventually(t, func() bool {
		_, there, err := w.db.Journal().Get(t.Context(), bucketDrills, scratch.Root())
		return err == nil && !there
	}, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, before, w.digest())

	elsewhere := drill.ScratchJob(testJob("flights").Key(), "elsewhere")
	value, err = json.Marshal(scratchRecord{Job: elsewhere, Server: "redis://other:1/0"})
	require.NoError(t, err)
	require.NoError(t, w.db.Journal().Put(t.Context(), bucketDrills, elsewhere.Root(), value))
	require.Eventually(t, func() bool { return len(w.seen(EventDrillFailed)) == 1 }, 20*time.Second, 5*time.Millisecond)
	require.Contains(t, w.seen(EventDrillFailed)[0].Message, "redis://other:1/0")
}

func TestDrillsComeWhenTheyAreDue(t *testing.T) {
	d := newDrills()
	at := time.Date(2026, 12, 1, 3, 59, 0, 0, time.UTC)
	require.False(t, d.due("a", "", at), "on demand only")
	require.False(t, d.due("a", "0 4 * * *", at), "the first time is the schedule's next")
	require.False(t, d.due("a", "0 4 * * *", at.Add(59*time.Second)))
	require.True(t, d.due("a", "0 4 * * *", at.Add(61*time.Second)))
	require.False(t, d.due("a", "0 4 * * *", at.Add(62*time.Second)), "once")
	require.False(t, d.due("b", "0 4 * * *", at.Add(63*time.Second)))
	require.True(t, d.due("a", "0 4 * * *", at.Add(72*time.Hour)), "those that were missed are one")
	require.False(t, d.due("a", "0 5 * * *", at.Add(73*time.Hour)), "another schedule begins anew")

	w := newRedisWorld(t, redis.TrackFields)
	w.seed("flights")
	w.begin("flights")
	w.checkpoint("flights")
	job := testJob("flights")
	job.Drill.Schedule = "@every 1s"
	_, err := w.c.Apply(t.Context(), job)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.seen(EventDrillPassed)) > 0 }, 30*time.Second, 10*time.Millisecond)
}

// Damage that a drill finds is damage: the checkpoint is not offered any more.
func TestADrillOfADamagedCheckpointMarksItBad(t *testing.T) {
	damaged := &torn{}
	w := drillWorld(t, func(w *redisWorld, o *Options) {
		damaged.Store = w.db
		o.Store = damaged
	})
	m, err := w.db.Manifest(t.Context(), "flights", 2)
	require.NoError(t, err)
	damaged.id.Store(&m.Chunks[0].ID)
	s := w.failed(w.c.Drill(t.Context(), "flights", "2"))
	require.Equal(t, fault.Corrupt, s.Error.Code)
	damaged.id.Store(nil)
	cp := w.find(2)
	require.False(t, cp.Restorable())
	require.False(t, cp.Drill.OK)
	require.NotEmpty(t, w.seen(EventCheckpointBad))
	_, err = w.c.Drill(t.Context(), "flights", "2")
	require.Equal(t, fault.Refused, fault.CodeOf(err))
}

// torn is a store with one chunk that can't be read.
type torn struct {
	snapshot.Store
	id atomic.Pointer[snapshot.ChunkID]
}

func (s *torn) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	if bad := s.id.Load(); bad != nil && id == *bad {
		return nil, snapshot.ErrCorrupt
	}
	return s.Store.Chunk(ctx, id)
}
