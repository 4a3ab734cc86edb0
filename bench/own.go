package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// Own is what a run on somebody's own server is asked for.
type Own struct {
	Redis redis.Config
	// Job to measure; without a name the one whose index has the most names. Its
	// prefix is statebackend.DefaultPrefix when "".
	Job statebackend.Job
	// Pairs of our checkpoint and the server's dump; 0 is 3.
	Pairs int
	// Write also restores the job beside itself, under a name of its own that is
	// removed again.
	Write bool
	// MaxPause is how long writers may be held at most; 0 is DefaultOwnPause.
	MaxPause time.Duration
	// Dir is for the checkpoints and dumps; "" is the system's folder for such.
	Dir string
}

// DefaultOwnPause is how long writers of a server that is only measured are
// held at most: what takes longer fails.
const DefaultOwnPause = 5 * time.Second

// Subject is what a run on somebody's own server measured.
type Subject struct {
	Server   string   `json:"server"`
	Prefix   string   `json:"prefix"`
	Job      string   `json:"job"`
	Keys     uint64   `json:"keys"`
	Elements uint64   `json:"elements"`
	Bytes    uint64   `json:"bytes"` // logical
	Others   uint64   `json:"otherKeys"`
	Wrote    bool     `json:"wrote"` // a scratch copy, which is gone again
	Notes    []string `json:"notes"`
}

// String says it in lines for people.
func (s *Subject) String() string {
	wrote := "nothing was written"
	if s.Wrote {
		wrote = "the scratch copy is gone again"
	}
	lines := []string{fmt.Sprintf("Job %q under %q at %s: %d keys, %d elements, %.1f MiB; %d other keys there; %s.",
		s.Job, s.Prefix, s.Server, s.Keys, s.Elements, mebibytes(int64(s.Bytes)), s.Others, wrote)}
	for _, n := range s.Notes {
		lines = append(lines, "- "+n)
	}
	return strings.Join(lines, "\n") + "\n"
}

// scratchName begins the names of scratch copies.
const scratchName = "keyframe-bench-"

// visit is one run on somebody's own server.
type visit struct {
	Own
	log     io.Writer
	dir     string
	backend *redis.Backend
	cli     *redisCLI
	noCLI   string // why there is no baseline; "" while there is one
	spec    config.Job
	seen    statebackend.Glimpse
	tells   redis.Tells
	r       *Report
	samples ownSamples
}

// RunOwn measures one job on a server that exists, and leaves both as they
// were. The job's record isn't written either. It makes the server fork, for
// redis-cli's dump and when writes are followed by the replication stream. log
// is told what is being done.
//
// With Write the report comes with the error when only the restore was refused
// or failed. Errors are a *fault.Error where a guard said no, otherwise those of
// the stores.
func RunOwn(ctx context.Context, o Own, log io.Writer) (r *Report, err error) {
	if o.Pairs < 0 || o.MaxPause < 0 {
		return nil, fault.New(fault.Usage, "", "pairs %d, longest pause %v: want positive ones, or 0 for the default", o.Pairs, o.MaxPause)
	}
	if o.Pairs == 0 {
		o.Pairs = 3
	}
	if o.MaxPause == 0 {
		o.MaxPause = DefaultOwnPause
	}
	v := &visit{Own: o, log: log, r: &Report{Pairs: o.Pairs}}
	if v.backend, err = redis.Open(ctx, o.Redis); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.backend.Close()) }()
	if v.r.Machine, err = describe(); err != nil {
		return nil, err
	}
	if err := v.meet(ctx); err != nil {
		return nil, err
	}
	var remove func() error
	if v.dir, remove, err = folder(o.Dir); err != nil {
		return nil, fault.Wrap(err, fault.Failed, "give another one with --dir", "make room")
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := v.follow(ctx); err != nil {
		return nil, err
	}
	refused, err := v.measure(ctx)
	if err != nil {
		return nil, err
	}
	if err := v.report(); err != nil {
		return nil, err
	}
	v.r.Machine.LoadAfter, err = loadAverage()
	return v.r, errors.Join(refused, err)
}

// meet finds the job and finds out what would make its measurement fail, before
// anything is asked of the server that costs it something.
func (v *visit) meet(ctx context.Context) (err error) {
	v.r.Subject = &Subject{Server: v.backend.Server(), Notes: []string{}}
	if err := v.choose(ctx); err != nil {
		return err
	}
	v.r.Subject.Prefix, v.r.Subject.Job = v.Job.Prefix, v.Job.Name
	if v.seen, err = v.backend.Look(ctx, v.Job); err != nil {
		return err
	}
	if err := v.backend.CheckCut(ctx, statebackend.CutRequest{Job: v.Job}); err != nil {
		return err
	}
	if v.tells, err = v.backend.Tell(ctx); err != nil {
		return err
	}
	v.r.Machine.Redis = v.seen.Server.Version
	v.note(v.seen.Warnings...)
	v.spec = config.Job{Name: v.Job.Name, Prefix: v.Job.Prefix}
	if a := v.seen.Assigned; a != nil {
		v.spec.Parallelism, v.spec.MaxParallelism, v.spec.KeyGroups.Hash = a.Parallelism, a.MaxParallelism, a.Hash
	}
	v.spec = v.spec.WithDefaults()
	v.spec.Checkpoint.Timeout, v.spec.Checkpoint.MaxPause = 0, config.Duration(v.MaxPause)
	v.spec.Checkpoint.SelfCheckEvery = new(0) // its ids are no measure of how many there were
	if v.cli, err = newRedisCLI(v.Redis); err != nil {
		v.noCLI = err.Error()
	}
	return nil
}

func (v *visit) note(lines ...string) { v.r.Subject.Notes = append(v.r.Subject.Notes, lines...) }

// choose finds the job with the most names when none is given, and refuses one
// that isn't there.
func (v *visit) choose(ctx context.Context) error {
	if v.Job.Name != "" {
		if v.Job.Prefix == "" {
			v.Job.Prefix = statebackend.DefaultPrefix
		}
		g, err := v.backend.Look(ctx, v.Job)
		if err != nil || g.Indexed > 0 || g.Record.Incarnation != "" {
			return err
		}
		return fault.New(fault.NoJob, "`coordinator discover --redis URL` lists the jobs of a server; --prefix names another prefix",
			"no job %q under %q at %s: %s", v.Job.Name, v.Job.Prefix, v.backend.Server(), g.Where)
	}
	found, err := v.backend.Discover(ctx)
	if err != nil {
		return err
	}
	for _, f := range found {
		if strings.HasPrefix(f.Name, scratchName) {
			v.note(fmt.Sprintf("job %q under %q is a scratch copy that a run was killed over: remove its keys", f.Name, f.Prefix))
		}
	}
	found = slices.DeleteFunc(found, func(f redis.Found) bool { return f.Prefix == "" || strings.HasPrefix(f.Name, scratchName) })
	if len(found) == 0 {
		return fault.New(fault.NoState, "check the URL's database; --job and --prefix name a job",
			"no job at %s: no set whose key ends in :stateKeys", v.backend.Server())
	}
	slices.SortStableFunc(found, func(a, b redis.Found) int { return cmp.Compare(b.Indexed, a.Indexed) })
	v.Job = statebackend.Job{Prefix: found[0].Prefix, Name: found[0].Name}
	if len(found) > 1 {
		v.note(othersText(found))
	}
	return nil
}

// othersText lists the jobs that were not chosen.
func othersText(found []redis.Found) string {
	const most = 10
	var names []string
	for _, f := range found[1:min(len(found), most+1)] {
		names = append(names, fmt.Sprintf("%q (prefix %q, %d state keys)", f.Name, f.Prefix, f.Indexed))
	}
	if more := len(found) - 1 - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("the job with the most state keys of %d was chosen; --job takes another: %s", len(found), strings.Join(names, ", "))
}

// attachPatience is how long a server may take to attach the tracker; with its
// usual settings that is five seconds.
const attachPatience = 20 * time.Second

// follow attaches the tracker of writes, as a coordinator that runs has it. Where
// that isn't possible the cut says what it did instead.
func (v *visit) follow(ctx context.Context) error {
	fmt.Fprintln(v.log, "attach to the server's stream of writes")
	short, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	if err := v.backend.AwaitTracking(short); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v.note(err.Error())
	}
	return nil
}

// unwritten is a state store whose record nobody writes: a checkpoint that only
// measures leaves no trace.
type unwritten struct{ statebackend.Backend }

// Cut gives no incarnation: then nothing is written.
func (u unwritten) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	req.Incarnation = ""
	return u.Backend.Cut(ctx, req, sink)
}

// Note writes nothing.
func (unwritten) Note(context.Context, statebackend.Job, string, statebackend.Notes) error {
	return nil
}

// Leads lets every commit through: it is into a store of the run's own, and the
// job may well be led by a coordinator, which goes on.
func (unwritten) Leads(context.Context, statebackend.Job) error { return nil }

var _ statebackend.Backend = unwritten{}

// openStore makes a new store file in the run's folder.
func (v *visit) openStore(ctx context.Context, path string) (*bolt.DB, error) {
	db, err := bolt.Open(ctx, path, bolt.Options{})
	if err != nil {
		return nil, fault.Wrap(err, fault.Store, "give another folder with --dir", "a store file for the run")
	}
	return db, nil
}
