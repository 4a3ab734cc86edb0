package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

// body wraps an answer for the library.
type body[T any] struct{ Body T }

// JobPath is the path of a job. It is exported because the library sees only
// exported embedded structs.
type JobPath struct {
	Job string `path:"job" doc:"name of the job"`
}

// CheckpointPath is the path of a checkpoint.
type CheckpointPath struct {
	JobPath
	Checkpoint string `path:"checkpoint" doc:"id, savepoint name, or latest for the newest restorable one"`
}

// latest stands for the newest restorable checkpoint, in paths and bodies.
const latest = "latest"

// which is the checkpoint as the coordinator takes it.
func (i CheckpointPath) which() string {
	if i.Checkpoint == latest {
		return ""
	}
	return i.Checkpoint
}

type withBody[T any] struct {
	JobPath
	Body T
}

type acceptInput struct {
	CheckpointPath
	Body AcceptCheckpoint
}

type none struct{}

// errorStatuses are all statuses of errors, for the OpenAPI document.
var errorStatuses = []int{
	http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict,
	http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
	http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
}

type routes struct {
	api huma.API
	Options
}

func register(api huma.API, o Options) {
	r := routes{api: api, Options: o}
	api.UseMiddleware(r.authorize) // ahead of every route, however it is registered
	r.general()
	r.jobs()
	r.checkpoints()
	r.changes()
	r.store()
	r.archives()
	r.archivePlan()
	r.doctor()
	r.alarms()
	r.drills()
	r.audits()
}

// add registers one route: what it answers is JSON, what it returns as an
// error becomes a Problem. role is what a caller needs, one of viewer, operator
// and admin; a test fails for a route that declares none. What isn't a viewer's
// and isn't a GET goes into the audit log.
func add[I, O any](r routes, method, path, id, summary string, status int, f func(context.Context, *I) (O, error), role ...config.Role) {
	op := huma.Operation{OperationID: id, Method: method, Path: "/v1" + path, Summary: summary, DefaultStatus: status,
		MaxBodyBytes: maxBody, BodyReadTimeout: -1, // readFirst has the body already
		Errors: errorStatuses}
	for _, need := range role {
		declare(&op, need)
	}
	call := f
	if audited(&op) {
		call = func(ctx context.Context, in *I) (O, error) { return withAudit(ctx, r, in, f) }
	}
	huma.Register(r.api, op, func(ctx context.Context, in *I) (*body[O], error) {
		out, err := call(ctx, in)
		if err != nil {
			return nil, problem(err)
		}
		r.Audit.remember(callerOf(ctx), out)
		return &body[O]{Body: out}, nil
	})
}

// withAudit makes a change between two lines of the audit log.
func withAudit[I, O any](ctx context.Context, r routes, in *I, f func(context.Context, *I) (O, error)) (O, error) {
	c := callerOf(ctx)
	if err := r.Audit.begin(c); err != nil {
		var nothing O
		return nothing, err
	}
	out, err := f(ctx, in)
	r.Audit.end(c, out, err, r.Coordinator.Operation)
	return out, err
}

// started answers with an operation to follow.
func started(op *coordinator.Operation, err error) (Operation, error) {
	if err != nil {
		return Operation{}, err
	}
	return op.Status(), nil
}

func (r routes) general() {
	add(r, http.MethodGet, "/version", "version", "What runs here", 200, func(context.Context, *none) (Version, error) {
		return versionOf(r.Version), nil
	}, viewer)
	type listInput struct {
		Job string `query:"job"`
	}
	add(r, http.MethodGet, "/operations", "list-operations", "Operations, newest first", 200, func(_ context.Context, in *listInput) (List[Operation], error) {
		return List[Operation]{Items: nonNil(r.Coordinator.Operations(in.Job))}, nil
	}, viewer)
	type opInput struct {
		ID   string `path:"id"`
		Wait string `query:"wait" doc:"how long to wait for the end, such as 10s, at most 30s"`
	}
	add(r, http.MethodGet, "/operations/{id}", "show-operation", "One operation", 200, func(ctx context.Context, in *opInput) (Operation, error) {
		op, err := r.Coordinator.Operation(in.ID)
		if err != nil {
			return Operation{}, err
		}
		wait := time.Duration(0)
		if in.Wait != "" {
			if wait, err = time.ParseDuration(in.Wait); err != nil || wait < 0 {
				return Operation{}, fault.New(fault.Usage, "give a duration such as 10s", "wait %q", in.Wait)
			}
		}
		return waitFor(ctx, op, wait), nil
	}, viewer)
	add(r, http.MethodDelete, "/operations/{id}", "abort-operation", "Ask an operation to stop", 200, func(ctx context.Context, in *opInput) (Operation, error) {
		if err := r.Coordinator.Abort(in.ID); err != nil {
			return Operation{}, err
		}
		return started(r.Coordinator.Operation(in.ID))
	}, operator)
	type eventsInput struct {
		Job string `query:"job"`
	}
	add(r, http.MethodGet, "/events", "list-events", "What happened lately, newest first", 200, func(_ context.Context, in *eventsInput) (List[coordinator.Event], error) {
		return List[coordinator.Event]{Items: nonNil(r.Events.Newest(in.Job))}, nil
	}, viewer)
}

func (r routes) jobs() {
	c := r.Coordinator
	add(r, http.MethodGet, "/jobs", "list-jobs", "All jobs", 200, func(context.Context, *none) (List[Job], error) {
		return List[Job]{Items: nonNil(c.Jobs())}, nil
	}, viewer)
	add(r, http.MethodGet, "/jobs/{job}", "show-job", "One job", 200, func(_ context.Context, in *JobPath) (Job, error) { return c.Job(in.Job) }, viewer)
	add(r, http.MethodPut, "/jobs/{job}", "apply-job", "Add or change a job", 200, func(ctx context.Context, in *withBody[config.Job]) (Job, error) {
		if in.Body.Name != in.Job {
			return Job{}, fault.New(fault.Usage, "use the same name in both", "the path names job %q, the body %q", in.Job, in.Body.Name)
		}
		return c.Apply(ctx, in.Body)
	}, admin)
	type deleteInput struct {
		JobPath
		Purge bool `query:"purge" doc:"delete its checkpoints and savepoints too"`
	}
	add(r, http.MethodDelete, "/jobs/{job}", "delete-job", "Forget a job", 200, func(ctx context.Context, in *deleteInput) (none, error) {
		return none{}, c.DeleteJob(ctx, in.Job, in.Purge)
	}, admin)
	add(r, http.MethodPost, "/jobs/{job}/pause", "pause-job", "Stop the schedule and recovery by itself", 200, func(ctx context.Context, in *JobPath) (Job, error) {
		return c.SetPaused(ctx, in.Job, true)
	}, operator)
	add(r, http.MethodPost, "/jobs/{job}/resume", "resume-job", "Resume the schedule", 200, func(ctx context.Context, in *JobPath) (Job, error) {
		return c.SetPaused(ctx, in.Job, false)
	}, operator)
	add(r, http.MethodPost, "/jobs/{job}/adopt", "adopt-state", "Go on with the state that is there now", 202, func(ctx context.Context, in *JobPath) (Operation, error) {
		return started(c.Adopt(ctx, in.Job))
	}, admin)
	add(r, http.MethodPost, "/jobs/{job}/unmark", "unmark-job", "End a restore in progress that no coordinator runs any more", 202, func(ctx context.Context, in *JobPath) (Operation, error) {
		return started(c.Unmark(ctx, in.Job))
	}, admin)
	add(r, http.MethodGet, "/jobs/{job}/keygroups", "key-groups", "Where keys belong", 200, r.keyGroups, viewer)
}

func (r routes) keyGroups(_ context.Context, in *keysInput) (List[KeyPlace], error) {
	if n := len(in.Keys); n == 0 || n > MaxKeys {
		return List[KeyPlace]{}, fault.New(fault.Usage, "give ?key=…&key=…", "%d keys: want 1 to %d", n, MaxKeys)
	}
	j, err := r.Coordinator.Job(in.Job)
	if err != nil {
		return List[KeyPlace]{}, err
	}
	places, err := Places(j.Config.Rule(), j.Parallelism, in.Keys)
	return List[KeyPlace]{Items: places}, err
}

// MaxKeys is how many keys one request may ask for.
const MaxKeys = 1000

type keysInput struct {
	JobPath
	Keys []string `query:"key,explode" doc:"plain text keys, 1 to 1000"`
}

var _ huma.Resolver = (*keysInput)(nil)

// Resolve implements huma.Resolver: the library takes an empty first key for
// no keys at all.
func (in *keysInput) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	in.Keys = u.Query()["key"]
	return nil
}

// at is the path of a job's checkpoints.
const at = "/jobs/{job}/checkpoints"

func (r routes) checkpoints() {
	c := r.Coordinator
	add(r, http.MethodGet, at, "list-checkpoints", "The whole history of a job, oldest first", 200, func(ctx context.Context, in *JobPath) (List[Row], error) {
		all, err := c.Checkpoints(ctx, in.Job)
		rows := make([]Row, 0, len(all))
		for _, cp := range all {
			rows = append(rows, Row{Checkpoint: cp, Copied: c.CopyTally(cp)})
		}
		return List[Row]{Items: rows}, err
	}, viewer)
	add(r, http.MethodPost, at, "create-checkpoint", "Take a checkpoint now", 202, r.createCheckpoint, operator)
	add(r, http.MethodGet, at+"/{checkpoint}", "show-checkpoint", "One checkpoint with what its manifest says", 200, func(ctx context.Context, in *CheckpointPath) (Detail, error) {
		cp, err := c.Resolve(ctx, in.Job, in.which())
		if err != nil || cp.State != snapshot.StateCompleted {
			return detail(cp, nil), err
		}
		m, err := c.Manifest(ctx, in.Job, cp.ID)
		d := detail(cp, m)
		if err == nil {
			d.Copies = c.CopiesOf(m)
		}
		return d, err
	}, viewer)
	add(r, http.MethodPost, at+"/{checkpoint}/verify", "verify-checkpoint", "Read a checkpoint whole and report every problem", 202, func(ctx context.Context, in *CheckpointPath) (Operation, error) {
		return started(c.Verify(ctx, in.Job, in.which()))
	}, operator)
	type deleteInput struct {
		CheckpointPath
		Force bool `query:"force"`
	}
	add(r, http.MethodDelete, at+"/{checkpoint}", "delete-checkpoint", "Delete a checkpoint", 200, func(ctx context.Context, in *deleteInput) (none, error) {
		cp, err := c.Resolve(ctx, in.Job, in.which())
		if err != nil {
			return none{}, err
		}
		return none{}, c.DeleteCheckpoint(ctx, in.Job, cp.ID, in.Force)
	}, admin)
	r.pins()
}

func (r routes) createCheckpoint(ctx context.Context, in *withBody[CreateCheckpoint]) (Operation, error) {
	grade, err := snapshot.ParseGrade(string(in.Body.Grade))
	if err != nil {
		return Operation{}, fault.Wrap(err, fault.Usage, "", "create a checkpoint")
	}
	// An in-process store has a grade of its own; Redis refuses it by itself.
	if grade != snapshot.GradeSnapshot && !slices.Contains(config.Grades, grade) {
		return Operation{}, fault.New(fault.Refused, "ask for auto, precopy or paused", "grade %s is not there yet", grade)
	}
	if in.Body.Grade == "" {
		grade = ""
	}
	return started(r.Coordinator.Checkpoint(ctx, in.Job, coordinator.CheckpointRequest{Name: in.Body.Name, Note: in.Body.Note, Grade: grade, VerifyLive: in.Body.VerifyLive}))
}

func (r routes) pins() {
	c := r.Coordinator
	pin := func(pinned bool) func(context.Context, *CheckpointPath) (snapshot.Checkpoint, error) {
		return func(ctx context.Context, in *CheckpointPath) (snapshot.Checkpoint, error) {
			cp, err := c.Resolve(ctx, in.Job, in.which())
			if err != nil {
				return cp, err
			}
			return c.Pin(ctx, in.Job, cp.ID, pinned)
		}
	}
	add(r, http.MethodPost, at+"/{checkpoint}/pin", "pin-checkpoint", "Keep from retention", 200, pin(true), operator)
	add(r, http.MethodPost, at+"/{checkpoint}/accept", "accept-checkpoint", "Say that a checkpoint which is far smaller than the one before is right", 200, func(ctx context.Context, in *acceptInput) (snapshot.Checkpoint, error) {
		cp, err := c.Resolve(ctx, in.Job, in.which())
		if err != nil {
			return cp, err
		}
		return c.Accept(ctx, in.Job, cp.ID, in.Body.Note)
	}, operator)
	add(r, http.MethodPost, at+"/{checkpoint}/unpin", "unpin-checkpoint", "Give back to retention", 200, pin(false), operator)
}

func restoreRequest(b Restore) coordinator.RestoreRequest {
	if b.Checkpoint == latest {
		b.Checkpoint = ""
	}
	return coordinator.RestoreRequest{Checkpoint: b.Checkpoint, As: b.As, AcceptSchema: b.AcceptSchema, NoUndo: b.NoUndo}
}

func rescaleRequest(b Rescale) coordinator.RescaleRequest {
	return coordinator.RescaleRequest{Parallelism: b.Parallelism, Split: b.Split, AllowIdle: b.AllowIdle, Broadcast: b.Broadcast}
}

func (r routes) changes() {
	c := r.Coordinator
	add(r, http.MethodPost, "/jobs/{job}/restore/plan", "plan-restore", "What a restore would do", 200, func(ctx context.Context, in *withBody[Restore]) (restore.Plan, error) {
		return c.PlanRestore(ctx, in.Job, restoreRequest(in.Body))
	}, viewer)
	add(r, http.MethodPost, "/jobs/{job}/restore", "restore", "Put the state back to a checkpoint", 202, func(ctx context.Context, in *withBody[Restore]) (Operation, error) {
		return started(c.Restore(ctx, in.Job, restoreRequest(in.Body)))
	}, admin)
	add(r, http.MethodPost, "/jobs/{job}/rescale/plan", "plan-rescale", "What a rescale would do", 200, func(ctx context.Context, in *withBody[Rescale]) (rescaler.Plan, error) {
		return c.PlanRescale(ctx, in.Job, rescaleRequest(in.Body))
	}, viewer)
	add(r, http.MethodPost, "/jobs/{job}/rescale", "rescale", "Change the parallelism", 202, func(ctx context.Context, in *withBody[Rescale]) (Operation, error) {
		return started(c.Rescale(ctx, in.Job, rescaleRequest(in.Body)))
	}, admin)
	type undoInput struct {
		JobPath
		Checkpoint string `query:"checkpoint" doc:"id of the undo checkpoint that the caller has seen: another one is refused"`
	}
	add(r, http.MethodPost, "/jobs/{job}/undo", "undo", "Undo the last restore or rescale", 202, func(ctx context.Context, in *undoInput) (Operation, error) {
		j, err := c.Job(in.Job)
		if err != nil {
			return Operation{}, err
		}
		if in.Checkpoint != "" && in.Checkpoint != j.Undo.String() {
			return Operation{}, fault.New(fault.Refused, "look at the plan again", "undo of job %q restores checkpoint %d by now, not %s", in.Job, j.Undo, in.Checkpoint)
		}
		return started(c.Undo(ctx, in.Job))
	}, admin)
}

// nonNil makes JSON show an empty list as [].
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
