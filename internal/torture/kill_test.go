package torture

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
)

const killJobs = `
  - name: torture
    parallelism: 2
    maxParallelism: 16
    checkpoint: {schedule: "@every 1s", timeout: 30s, maxPause: 2s}
    retention: {keep: 5}
`

// trial is one run of many kills over one Redis and one store file.
type trial struct {
	t       *testing.T
	rng     *rand.Rand
	c       *redis.Client
	d       *daemon
	fleet   *fleet
	memory  *replays
	static  map[string]entry
	foreign map[string]string

	newest    snapshot.ID               // greatest id ever seen
	completed map[snapshot.ID]time.Time // as listed once, by id: when it began
	checked   map[snapshot.ID]bool      // whose content was compared with the model
	kills     map[string]int            // by what went on
	ends      map[string]int            // how interrupted restores ended
}

func newTrial(t *testing.T) *trial {
	server := redistest.Start(t)
	k := &trial{
		t: t, rng: seeded(t), c: patient(server), memory: &replays{}, static: bulk(),
		completed: map[snapshot.ID]time.Time{}, checked: map[snapshot.ID]bool{}, kills: map[string]int{}, ends: map[string]int{},
	}
	populate(t, k.c)
	populateForeign(t, k.c)
	k.foreign = readLive(t, k.c, job).others
	require.NotEmpty(t, k.foreign)
	k.fleet = newFleet(k.c, false, k.memory)
	k.fleet.start(t)
	k.d = newDaemon(t, server, killJobs)
	k.d.start()
	k.d.until("first checkpoint", func() (string, bool) {
		for _, cp := range k.d.history(job.Name) {
			if cp.State == snapshot.StateCompleted {
				return "", true
			}
		}
		return "none", false
	})
	return k
}

// TestAKilledCoordinatorLosesNothing kills the built binary at random moments
// under write load, in every phase of every operation, and looks at everything
// after each: I1, I2, I3, I6, I10 by force.
func TestAKilledCoordinatorLosesNothing(t *testing.T) {
	t.Parallel()
	n := rounds(t, "KEYFRAME_KILLS", 12)
	k := newTrial(t)
	for i := range n {
		what := k.round()
		k.kills[what]++
		if t.Failed() {
			require.Fail(t, "stopped", "round %d: killed in %s", i, what)
		}
	}
	k.fleet.hold()
	require.Empty(t, k.fleet.failures())
	require.NotZero(t, k.fleet.steps.Load())
	for _, what := range slices.Sorted(maps.Keys(k.kills)) {
		t.Logf("%4d kills in %s", k.kills[what], what)
	}
	for _, how := range slices.Sorted(maps.Keys(k.ends)) {
		t.Logf("%4d interrupted restores %s", k.ends[how], how)
	}
	t.Logf("%d kills, %d checkpoints compared with the model, newest id %d, %d writes, longest wait of a writer %s",
		n, len(k.checked), k.newest, k.fleet.steps.Load(), time.Duration(k.fleet.longest.Load()).Round(time.Millisecond))
	k.d.stop()
}

// round lets everything run, kills the coordinator at a random moment, starts
// it again and looks.
func (k *trial) round() (what string) {
	before := k.fleet.rewinds.Load()
	k.fleet.open()
	post[api.Job](k.d, jobPath(job.Name)+"/resume", nil)
	commands := k.commands()
	kind := commands[k.rng.IntN(len(commands))]
	still := kind.moves && k.rng.IntN(2) == 0 // writers hold still: then nothing but the restore may change a byte
	var was live
	if still {
		k.fleet.hold()
		was = readLive(k.t, k.c, job)
	}
	what = k.killIn(kind)
	if k.rng.IntN(4) == 0 {
		k.d.begin()
		k.after(time.Duration(k.rng.IntN(150)) * time.Millisecond)
		k.d.kill()
		what += ", then at start"
	}
	k.d.start()
	k.settled(still, was)
	if !kind.moves {
		require.Equal(k.t, before, k.fleet.rewinds.Load(), "writers saw a restore, and nobody asked for one")
	}
	k.look()
	return what
}

// after waits for a moment, or until the process ends by itself.
func (k *trial) after(d time.Duration) {
	select {
	case <-time.After(d):
	case <-k.d.done:
	}
}

// command is something that the coordinator is asked to do, and killed in.
type command struct {
	name   string
	phases []string // that the kill may wait for; "" is a random moment
	moves  bool     // it puts another keyed state in place
	path   string
	body   func() any
	cli    []string // the same by the command line; nil: only by the API
}

// commands are all commands, as they may be given now.
func (k *trial) commands() []command {
	path := jobPath(job.Name)
	restoring := []string{"", "verify", "copy", "stage", "prove", "flip", "flip", "clean"}
	older := func() any { return api.Restore{Checkpoint: k.anyCheckpoint().String()} }
	parallelism := 1 + k.rng.IntN(8)
	if parallelism == get[api.Job](k.d, path).Parallelism {
		parallelism++
	}
	return []command{
		{name: "the schedule", phases: []string{""}},
		{name: "the schedule's checkpoint", phases: []string{"copy", "pause", "store"}},
		{name: "checkpoint", phases: []string{"", "copy", "pause", "store"}, path: path + "/checkpoints", body: func() any { return api.CreateCheckpoint{} }, cli: []string{"checkpoint", "create", job.Name}},
		{name: "savepoint", phases: []string{"", "copy", "store"}, path: path + "/checkpoints", body: func() any { return api.CreateCheckpoint{Name: fmt.Sprintf("sp %d", k.rng.Uint32())} }},
		{name: "restore", phases: restoring, moves: true, path: path + "/restore", body: func() any { return api.Restore{} }, cli: []string{"restore", job.Name, "--yes"}},
		{name: "restore of an older one", phases: restoring, moves: true, path: path + "/restore", body: older},
		{name: "restore without undo", phases: restoring, moves: true, path: path + "/restore", body: func() any { return api.Restore{NoUndo: true} }, cli: []string{"restore", "--no-undo", job.Name, "--yes"}},
		{name: "undo", phases: restoring, moves: true, path: path + "/undo", body: func() any { return nil }, cli: []string{"undo", job.Name, "--yes"}},
		{name: "rescale", phases: []string{"", "copy", "plan", "write", "stage", "prove", "flip", "clean"}, path: path + "/rescale", body: func() any { return api.Rescale{Parallelism: parallelism} },
			cli: []string{"rescale", job.Name, "--parallelism", fmt.Sprint(parallelism), "--yes"}},
	}
}

// anyCheckpoint is one of those that are listed as completed.
func (k *trial) anyCheckpoint() snapshot.ID {
	var ids []snapshot.ID
	for _, cp := range k.d.history(job.Name) {
		if cp.State == snapshot.StateCompleted {
			ids = append(ids, cp.ID)
		}
	}
	return ids[k.rng.IntN(len(ids))]
}

// killIn gives the command and kills the coordinator in the phase that was
// drawn, or at any moment; it says in what.
func (k *trial) killIn(cmd command) string {
	phase := cmd.phases[k.rng.IntN(len(cmd.phases))]
	jitter := time.Duration(k.rng.IntN(3000)) * time.Microsecond
	moment := time.Duration(k.rng.IntN(1000)) * time.Millisecond
	switch {
	case cmd.path == "" && phase == "":
		k.after(moment)
		k.d.kill()
		return cmd.name + " at any moment"
	case cmd.path == "":
		return cmd.name + k.killWhen("", phase, jitter)
	case phase == "" && cmd.cli != nil:
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _, _ = k.d.run(cmd.cli...) // its coordinator dies: any answer will do
		}()
		k.after(moment / 2)
		k.d.kill()
		<-ended
		return cmd.name + " by command line, at any moment"
	}
	var op api.Operation
	body := cmd.body()
	k.d.until("room for a "+cmd.name, func() (string, bool) {
		err := k.d.api.Call(k.t.Context(), http.MethodPost, cmd.path, body, &op)
		if fault.CodeOf(err) == fault.NoCheckpoint { // nothing to undo yet, or retention was quicker
			cmd.name, cmd.path, body = "restore", jobPath(job.Name)+"/restore", api.Restore{}
		}
		return fmt.Sprint(err), err == nil // refused while the schedule's checkpoint runs
	})
	if phase == "" {
		k.after(moment / 2)
		k.d.kill()
		return cmd.name + " at any moment"
	}
	return cmd.name + k.killWhen(op.ID, phase, jitter)
}

// killWhen kills the coordinator once an operation (that of the schedule when
// id is empty) is in a phase, or has ended.
func (k *trial) killWhen(id, phase string, jitter time.Duration) string {
	seen := ""
	k.d.until("phase "+phase, func() (string, bool) {
		if id == "" {
			op := get[api.Job](k.d, jobPath(job.Name)).Operation
			return "no operation", op != nil && op.Progress.Phase == phase
		}
		op := get[api.Operation](k.d, "/operations/"+api.Segment(id))
		seen = op.Progress.Phase
		if op.Final() {
			seen = string(op.State)
			// Retention may be quicker than a restore of an older one.
			gone := op.Error != nil && op.Error.Code == fault.NoCheckpoint && op.Kind == coordinator.OpRestore
			if op.State == coordinator.OpFailed && !gone {
				require.Fail(k.t, "an operation failed", "%s: %s", op.Kind, op.Error)
			}
		}
		return seen, seen == phase || op.Final()
	})
	k.after(jitter)
	k.d.kill()
	if id == "" {
		seen = phase
	}
	return " in phase " + seen
}
