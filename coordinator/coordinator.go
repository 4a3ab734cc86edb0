package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/copies"
	"keyframe/coordinator/fault"
	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Options is what a coordinator stands on. Now, Listener and Upkeep may be nil;
// Poll 0 is DefaultPoll, CompactGain 0 DefaultCompactGain.
type Options struct {
	Store    snapshot.Store
	Journal  snapshot.Journal
	Backend  statebackend.Backend
	Jobs     []config.Job // from the configuration file: they win over applied ones
	Listener Listener
	Now      func() time.Time
	Poll     time.Duration // between two looks at a job's state
	Lease    Lease         // how jobs are led; the zero Lease will do
	// DrillTarget is where checkpoints are restored on trial; nil is Backend.
	DrillTarget statebackend.Backend
	// Upkeep compacts and backs up the store: by itself when its file is
	// larger than CompactAbove times what is live (0: never) and at least
	// CompactGain bytes can be given back.
	Upkeep       snapshot.Upkeep
	CompactAbove float64
	CompactGain  int64
	// StoreErr says why the store has stopped, nil while it works; may be nil.
	StoreErr func() error
	// Salvaged are damaged stores that were replaced, and are kept aside.
	Salvaged []Salvage
	// Copies are directories in which each completed checkpoint is kept too.
	Copies    []string
	CopyCheck CopyCheck
}

// DefaultPoll is how often a job's state is looked at: lost state is noticed
// within about that time.
const DefaultPoll = time.Second

// journal buckets of the engine.
const (
	bucketJobs = "jobs" // job name → JSON of appliedJob
	bucketUndo = "undo" // job name → JSON of undoRecord
)

// Coordinator owns the jobs. Safe for concurrent use.
type Coordinator struct {
	opts      Options
	ops       operations
	store     *upkeep
	copies    *copies.Keeper // nil when there are none
	drills    *drills
	seq       atomic.Uint64
	storeSays atomic.Pointer[string] // what was told of a store that has stopped
	tag       string                 // makes operation ids of two runs differ

	mu      sync.Mutex
	jobs    map[string]*job
	started bool
	stopped bool
	wg      sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// errStopping is the cause by which operations are aborted at a stop.
var errStopping = errors.New("the coordinator is stopping")

// New makes a coordinator; Start sets it going.
func New(o Options) *Coordinator {
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() } // times are shown in UTC
	}
	if o.Listener == nil {
		o.Listener = Listeners(nil)
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.CompactGain == 0 {
		o.CompactGain = DefaultCompactGain
	}
	c := &Coordinator{opts: o, jobs: map[string]*job{}, tag: randomID(2), store: newUpkeep(), drills: newDrills()}
	c.opts.Lease.TTL = cmp.Or(o.Lease.TTL, DefaultLeaseTTL)
	c.opts.Lease.Owner.ID = randomID(8)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.opts.Journal = newLasting(o.Journal, c.storeErr)
	c.useCopies()
	return c
}

// randomID is n random bytes in hex: lower-case letters and digits.
func randomID(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (it ends the process instead)
	return hex.EncodeToString(b)
}

type appliedJob struct {
	Job    config.Job `json:"job"`
	Paused bool       `json:"paused"`
}

// Start loads the jobs that were applied before, adds those of the
// configuration and starts their actors. An error leaves nothing running.
func (c *Coordinator) Start(ctx context.Context) error {
	specs, paused, err := c.load(ctx)
	if err != nil {
		return err
	}
	if err := c.loadCopies(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return errors.New("coordinator: Start called twice")
	}
	for _, s := range specs {
		j, err := newJob(c, s, paused[s.Name])
		if err != nil {
			return fmt.Errorf("job %q: %w", s.Name, err)
		}
		c.jobs[s.Name] = j
	}
	c.started = true
	c.tellSalvaged()
	c.keepCopies()
	for _, j := range c.jobs {
		c.launch(j)
	}
	c.wg.Add(2)
	go c.drillByItself()
	go c.hearSilence()
	if c.opts.Upkeep != nil && c.opts.CompactAbove > 0 {
		c.wg.Add(1)
		go c.compactByItself()
	}
	return nil
}

func (c *Coordinator) load(ctx context.Context) (specs []config.Job, paused map[string]bool, err error) {
	paused = map[string]bool{}
	fromFile := map[string]bool{}
	for _, j := range c.opts.Jobs {
		specs = append(specs, j)
		fromFile[j.Name] = true
	}
	err = c.opts.Journal.Each(ctx, bucketJobs, func(name string, value []byte) error {
		var a appliedJob
		if err := json.Unmarshal(value, &a); err != nil {
			return fmt.Errorf("applied job %q: %w", name, err)
		}
		paused[name] = a.Paused
		if fromFile[name] || a.Job.Name == "" {
			return nil
		}
		for _, s := range specs {
			if s.Key().Root() == a.Job.Key().Root() {
				c.emit(Event{Kind: EventJobRefused, Job: name, Message: fmt.Sprintf("applied job %q is not started: it has the same root %q as job %q", name, s.Key().Root(), s.Name)})
				return nil
			}
		}
		specs = append(specs, a.Job.WithDefaults()) // an older version knew fewer fields
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read applied jobs: %w", err)
	}
	return specs, paused, nil
}

func (c *Coordinator) launch(j *job) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		j.run(c.ctx)
	}()
}

// Stop ends all actors: running operations may finish until ctx ends, then
// they are aborted cleanly (compactions and backups at once). Copies that are due
// are made until then. It returns once everything has ended; the error says that
// something had to be aborted.
func (c *Coordinator) Stop(ctx context.Context) error {
	defer c.finishCopies(ctx)
	c.mu.Lock()
	c.stopped = true
	c.store.stop()
	jobs := slices.Collect(maps.Values(c.jobs))
	c.mu.Unlock()
	for _, j := range jobs {
		j.stop()
	}
	ended := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		c.cancel(errStopping)
		return nil
	case <-ctx.Done():
	}
	c.cancel(errStopping)
	<-ended
	return fmt.Errorf("operations were aborted at the stop: %w", context.Cause(ctx))
}

func (c *Coordinator) find(name string) (*job, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j, ok := c.jobs[name]; ok {
		return j, nil
	}
	return nil, fault.New(fault.NoJob, "`coordinator job list` shows the jobs", "no job named %q", name)
}

// Job is one job's status.
func (c *Coordinator) Job(name string) (JobStatus, error) {
	j, err := c.find(name)
	if err != nil {
		return JobStatus{}, err
	}
	return j.view(), nil
}

// Jobs are the status of all jobs, by name.
func (c *Coordinator) Jobs() []JobStatus {
	c.mu.Lock()
	jobs := slices.Collect(maps.Values(c.jobs))
	c.mu.Unlock()
	all := make([]JobStatus, 0, len(jobs))
	for _, j := range jobs {
		all = append(all, j.view())
	}
	sort.Slice(all, func(a, b int) bool { return all[a].Name < all[b].Name })
	return all
}

// Apply adds a job or changes it. What it changes takes effect at once, after
// a running operation; key groups can't change (that is rekeying).
func (c *Coordinator) Apply(ctx context.Context, spec config.Job) (JobStatus, error) {
	spec = spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return JobStatus{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return JobStatus{}, fault.New(fault.Busy, "", "%v", errStopping)
	}
	if err := c.clash(spec); err != nil {
		return JobStatus{}, err
	}
	j, known := c.jobs[spec.Name]
	if known {
		if err := j.mayBecome(spec); err != nil {
			return JobStatus{}, err
		}
	}
	paused := known && j.isPaused()
	if err := c.remember(ctx, spec, paused); err != nil {
		return JobStatus{}, err
	}
	crashpoint.At(crashpoint.JobRemembered)
	if known {
		if err := j.become(spec); err != nil {
			return JobStatus{}, err
		}
	} else {
		var err error
		if j, err = newJob(c, spec, false); err != nil {
			return JobStatus{}, err
		}
		c.jobs[spec.Name] = j
		c.launch(j)
	}
	c.emit(Event{Kind: EventJobApplied, Job: spec.Name, Message: "job applied"})
	return j.view(), nil
}

// clash refuses two jobs on one root: prefix a with name b:c is prefix a:b
// with name c.
func (c *Coordinator) clash(spec config.Job) error {
	for name, j := range c.jobs {
		if name != spec.Name && j.key().Root() == spec.Key().Root() {
			return fault.New(fault.Config, "give it another prefix or name",
				"job %q has the same root %q as job %q", spec.Name, spec.Key().Root(), name)
		}
	}
	return nil
}

func (c *Coordinator) remember(ctx context.Context, spec config.Job, paused bool) error {
	value, err := json.Marshal(appliedJob{Job: spec, Paused: paused})
	if err != nil {
		return fmt.Errorf("encode job %q: %w", spec.Name, err)
	}
	if err := c.opts.Journal.Put(ctx, bucketJobs, spec.Name, value); err != nil {
		return fault.Wrap(err, fault.Store, "see `coordinator store stats`", "keep job %q", spec.Name)
	}
	return nil
}

// SetPaused stops or resumes a job's schedule and its own recovery; on-demand
// operations still work.
func (c *Coordinator) SetPaused(ctx context.Context, name string, paused bool) (JobStatus, error) {
	j, err := c.find(name)
	if err != nil {
		return JobStatus{}, err
	}
	if err := c.remember(ctx, j.config(), paused); err != nil {
		return JobStatus{}, err
	}
	j.setPaused(paused)
	kind := EventJobResumed
	if paused {
		kind = EventJobPaused
	}
	c.emit(Event{Kind: kind, Job: name, Message: string(kind)})
	return j.view(), nil
}

// DeleteJob forgets a job: its schedule ends, its state in the state store is
// left alone. purge also deletes its checkpoints, savepoints too.
func (c *Coordinator) DeleteJob(ctx context.Context, name string, purge bool) error {
	j, err := c.find(name)
	if err != nil {
		return err
	}
	if op := j.current(); op != nil {
		return busy(name, op)
	}
	if err := c.opts.Journal.Delete(ctx, bucketJobs, name); err != nil {
		return fault.Wrap(err, fault.Store, "", "forget job %q", name)
	}
	j.stop()
	<-j.ended
	j.forget()
	c.mu.Lock()
	delete(c.jobs, name)
	c.mu.Unlock()
	if purge {
		if err := c.purge(ctx, name); err != nil {
			return err
		}
	}
	c.emit(Event{Kind: EventJobDeleted, Job: name, Message: "job deleted"})
	return nil
}

func (c *Coordinator) purge(ctx context.Context, name string) error {
	history, err := c.opts.Store.List(ctx, name)
	if err != nil {
		return fault.Wrap(err, fault.Store, "", "list checkpoints of %q", name)
	}
	for _, cp := range history {
		if err := c.opts.Store.Delete(ctx, name, cp.ID); err != nil {
			return fault.Wrap(err, fault.Store, "run the command again", "delete checkpoint %d of %q", cp.ID, name)
		}
	}
	// What was remembered of these checkpoints must not speak of later ones.
	for _, bucket := range []string{bucketUndo, bucketLineage, bucketServer, bucketSeen, bucketAside} {
		if err := c.opts.Journal.Delete(ctx, bucket, name); err != nil {
			return fault.Wrap(err, fault.Store, "run the command again", "forget the %s record of %q", bucket, name)
		}
	}
	return nil
}

func (c *Coordinator) emit(e Event) {
	if e.At.IsZero() {
		e.At = c.opts.Now()
	}
	c.opts.Listener.OnEvent(e)
	c.wakeCopies(e.Kind)
}
