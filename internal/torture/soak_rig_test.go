package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/restore"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend/redis"
)

// way is how checkpoints of a round are taken.
type way struct {
	name     string
	tracking string
	grade    snapshot.Grade
	evict    bool
}

// ways are the grades, each with what can follow writes.
var ways = []way{
	{name: "precopy by fields", tracking: redis.TrackFields, grade: snapshot.GradePrecopy},
	{name: "precopy by keys", tracking: redis.TrackKeys, grade: snapshot.GradePrecopy},
	{name: "paused", tracking: redis.TrackFields, grade: snapshot.GradePaused},
	{name: "best possible, with evictions", tracking: redis.TrackAuto, grade: snapshot.GradeAuto, evict: true},
	{name: "paused, untracked", tracking: redis.TrackOff, grade: snapshot.GradePaused},
	{name: "best possible by keys, with evictions", tracking: redis.TrackKeys, grade: snapshot.GradeAuto, evict: true},
}

// rig is one round: a Redis, a coordinator wired as the daemon wires it, and
// writers between whom and Redis nothing stands.
type rig struct {
	t      *testing.T
	way    way
	rng    *rand.Rand
	seed   uint64
	repeat string
	tally  *tally

	server  *redistest.Server
	link    *link
	crew    *crew
	holds   holds
	monkey  *monkey
	backend *redis.Backend
	db      *bolt.DB
	c       *coordinator.Coordinator
	path    string
	mirror  *mirror

	mu       sync.Mutex
	digests  bool // the next copy is to have them
	copies   bool // there is to be one at all
	copied   *copied
	copyErr  error
	holdTime time.Duration
	last     *factSink // of the newest completed checkpoint
	lastID   snapshot.ID
	usual    time.Duration // that a checkpoint takes
	harmed   time.Time     // when something was done last that may make checkpoints fail
	lossy    bool
	gone     int // keys evicted so far
}

// soakJob is the job's definition. The state is left to the test when it is
// lost: nothing may be checkpointed until it has been restored.
func soakJob(w way) config.Job {
	j := config.Job{Name: job.Name, Prefix: job.Prefix, Parallelism: 2, MaxParallelism: groups, Sources: []config.Source{{Topic: soakTopic, Group: soakGroup}}}
	j.Checkpoint.Grade = w.grade
	j.Checkpoint.MaxPause = config.Duration(6 * time.Second)
	j.Checkpoint.Timeout = config.Duration(2 * time.Minute)
	j.Checkpoint.SelfCheckEvery = new(20)
	j.Recovery.OnStateLoss = config.LossHold
	j.Retention.Keep = 6
	// Evictions shrink the state as they like; here that is no news.
	j.Checkpoint.Shrink = config.Shrink{Keys: new(0.0), Elements: new(0.0)}
	return j.WithDefaults()
}

func newRig(t *testing.T, w way, seed uint64, short bool, total *tally, repeat string) *rig {
	r := &rig{t: t, way: w, seed: seed, rng: rand.New(rand.NewPCG(seed, 99)), repeat: repeat, tally: total, usual: 200 * time.Millisecond}
	options := []redistest.Option{redistest.Setting("client-output-buffer-limit replica 64mb 64mb 0")}
	if w.evict {
		options = append(options, redistest.Setting("maxmemory-policy allkeys-lru"), redistest.Setting("maxmemory-samples 20"))
	}
	r.server = redistest.Start(t, options...)
	r.server.Do("HSET", "streaming:mq:topic:"+soakTopic+":meta", "partitionCount", groups)
	r.link = newLink(t, r.server.Addr)
	r.link.held = r.look
	r.mirror = newMirror(t)
	r.path = filepath.Join(t.TempDir(), "keyframe.db")
	r.monkey = newMonkey(t, r.rng, r.server, r.link)
	// Where only keys are tracked, a large one that is always written to has to
	// be read whole each time: that is for some of these rounds only.
	big := w.tracking != redis.TrackKeys || seed%4 == 0 && !short
	r.crew = newCrew(t, r.server, 3, soakRate(t, short), big, seed, &r.holds)
	r.crew.start(t)
	r.open()
	t.Cleanup(r.close)
	return r
}

// open starts the coordinator.
func (r *rig) open() {
	t := r.t
	var err error
	r.backend, err = redis.Open(context.Background(), redis.Config{URL: "redis://" + r.link.addr + "/0", Lazy: true, Tracking: r.way.tracking})
	require.NoError(t, err)
	r.db, err = bolt.Open(context.Background(), r.path, bolt.Options{})
	require.NoError(t, err)
	r.c = coordinator.New(coordinator.Options{
		Store: r.db, Journal: r.db.Journal(), Backend: r.backend, Jobs: []config.Job{soakJob(r.way)},
		Listener: coordinator.ListenerFunc(r.event), Upkeep: r.db, CompactAbove: 2,
	})
	require.NoError(t, r.c.Start(context.Background()))
	require.NoError(t, r.backend.StartTracking())
	r.healthy()
}

func (r *rig) healthy() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		s, err := r.c.Job(job.Name)
		return err == nil && s.Health.State == coordinator.HealthOK
	}, 30*time.Second, 5*time.Millisecond, r.repeat)
}

// close ends the coordinator and looks at the store.
func (r *rig) close() {
	if r.c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(r.t, r.c.Stop(ctx))
	problems, err := r.db.Check(ctx)
	require.NoError(r.t, err)
	require.Empty(r.t, problems, r.repeat)
	require.NoError(r.t, errors.Join(r.db.Close(), r.backend.Close()))
	r.c = nil
}

// event counts what isn't seen otherwise; some things must never be.
func (r *rig) event(e coordinator.Event) {
	r.tally.count("events", string(e.Kind))
	switch e.Kind {
	case coordinator.EventJobPanicked, coordinator.EventSelfCheckFailed, coordinator.EventMergeFailed, coordinator.EventCheckpointBad, coordinator.EventStoreUpkeepFailed:
		r.t.Errorf("%s: %s; %s", e.Kind, e.Message, r.repeat)
	}
}

// look copies the job while the coordinator believes that writers are held,
// and before they are freed.
func (r *rig) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.copies {
		return
	}
	r.holds.inside.Store(true)
	began := time.Now()
	r.copied, r.copyErr = copyJob(*r.link.target.Load(), job, r.digests)
	r.holdTime = time.Since(began)
	r.holds.n.Add(1)
	r.holds.inside.Store(false)
}

// mirror is a second server that checkpoints are restored into.
type mirror struct {
	server  *redistest.Server
	backend *redis.Backend
	journal *bolt.DB
	n       int
}

func newMirror(t *testing.T) *mirror {
	m := &mirror{server: redistest.Start(t)}
	var err error
	m.backend, err = redis.Open(t.Context(), redis.Config{URL: m.server.URL(), Tracking: redis.TrackOff})
	require.NoError(t, err)
	m.journal, err = bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mirror.db"), bolt.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(m.backend.Close(), m.journal.Close())) })
	return m
}

// restore puts a checkpoint of another store onto the empty mirror.
func (m *mirror) restore(ctx context.Context, db *bolt.DB, w way, id snapshot.ID) (restore.Result, error) {
	if err := m.clear(); err != nil {
		return restore.Result{}, err
	}
	m.n++
	e := &restore.Executor{Store: db, Journal: m.journal.Journal(), Backend: m.backend, Now: time.Now,
		NewID: func() string { return fmt.Sprintf("soak%d", m.n) }}
	spec := soakJob(w)
	spec.Sources = nil // its streams are of the other server
	return e.Run(ctx, restore.Request{Job: spec, Checkpoint: id, As: true, Recovery: true}, nil)
}

func (m *mirror) clear() error {
	conn, err := dialPlain(m.server.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.conn.Close() }() // the answer was read
	_, err = conn.ask(appendCommand(nil, "FLUSHALL"))
	return err
}
