package crash

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// creating is the first start of a coordinator: a store of its own, and a job
// of its own on the same Redis.
var creating = operation{name: "first start",
	between: func(r *rig) {
		r.n++
		dir := filepath.Join(r.dir, fmt.Sprintf("first-%d", r.n))
		require.NoError(r.t, os.Mkdir(dir, 0o700))
		r.file = filepath.Join(dir, "keyframe.db")
		r.configure(fmt.Sprintf("first-%d", r.n), r.file)
	},
	restart: func(r *rig) {
		r.ready()
		// The process that was killed left no half store to the ordinary one,
		// which runs on the new file now; then the old one goes on.
		require.Empty(r.t, r.leftovers())
		r.withCopy(r.file, func(*bolt.DB) {})
		r.kill()
		r.configure(job.Name, r.store)
		r.begin("")
		r.settle()
	},
	again: takeAgain,
}

// extra is a job that is added while the coordinator runs.
func extra(r *rig) string { return fmt.Sprintf("extra-%d", r.n) }

var applying = operation{name: "apply of a new job",
	prepare: func(r *rig) {
		root := job.Prefix + ":" + extra(r)
		require.NoError(r.t, r.c.SAdd(r.t.Context(), root+":stateKeys", root+":x").Err())
		require.NoError(r.t, r.c.HSet(r.t.Context(), root+":x", "f", "v").Err())
	},
	start: func(r *rig) {
		r.ask(http.MethodPut, "/jobs/"+extra(r), config.Job{Name: extra(r), MaxParallelism: maxGroups})
		r.ended()
	},
	after: func(r *rig) {
		r.healthy(extra(r), func() bool { return false })
		record, err := r.c.HGetAll(r.t.Context(), job.Prefix+":"+extra(r)+":coordinator").Result()
		require.NoError(r.t, err)
		require.NotEmpty(r.t, record["incarnation"])
		require.Equal(r.t, "1", record["epoch"])
		r.forgetExtra()
	},
	again: func(r *rig) {
		spec := config.Job{Name: extra(r), MaxParallelism: maxGroups}
		call[api.Job](r.daemon, http.MethodPut, "/jobs/"+extra(r), spec)
		r.forgetExtra()
	},
}

// forgetExtra removes the added job and its keys.
func (r *rig) forgetExtra() {
	r.t.Helper()
	call[any](r.daemon, http.MethodDelete, "/jobs/"+extra(r), nil)
	for _, name := range scan(r.t, r.c) {
		if strings.HasPrefix(name, job.Prefix+":"+extra(r)+":") {
			require.NoError(r.t, r.c.Unlink(r.t.Context(), name).Err())
		}
	}
}

// salvaging starts on a store whose beginning is zeroed.
var salvaging = operation{name: "salvage",
	prepare: func(r *rig) { r.take() },
	between: func(r *rig) { hurt(r, r.store) },
	after:   salvaged,
	again:   takeAgain,
}

// inChild is salvaging whose child dies.
var inChild = operation{name: "the child of a salvage", prepare: salvaging.prepare, between: salvaging.between, child: true,
	after: salvaged, again: takeAgain}

func hurt(r *rig, file string) {
	r.t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(r.t, err)
	_, err = f.WriteAt(make([]byte, 8192), 0)
	require.NoError(r.t, err)
	require.NoError(r.t, f.Close())
}

// salvaged demands that the damaged file is kept and that no checkpoint is lost.
// A salvage may find what was deleted before: it is pinned then.
func salvaged(r *rig) {
	r.t.Helper()
	asides, err := bolt.Asides(r.store)
	require.NoError(r.t, err)
	require.NotEmpty(r.t, asides, "the damaged file is kept")
	listed := map[snapshot.ID]bool{}
	for _, cp := range r.history() {
		listed[cp.ID] = cp.State == snapshot.StateCompleted
		if listed[cp.ID] {
			r.completed[cp.ID] = true
		}
	}
	j := get[api.Job](r.daemon, path(""))
	require.Contains(r.t, strings.Join(j.Health.Warnings, "\n"), asides[len(asides)-1], "the job's health says where the damaged file is")
	require.Len(r.t, get[api.StoreStats](r.daemon, "/store").Damaged, len(asides))
	if strings.Contains(r.tail(1<<20), "the damaged store is replaced") { // by this start
		require.Contains(r.t, r.eventsOf(), coordinator.EventStoreSalvaged)
		require.Regexp(r.t, `salvaged at .*: \d+ checkpoints were kept, 0 are lost`, j.Health.Warnings)
	}
	require.Contains(r.t, r.metrics(), fmt.Sprintf("keyframe_store_damaged_files %d\n", len(asides)))
	for _, id := range r.there {
		require.True(r.t, listed[id], "checkpoint %d was whole in the damaged store", id)
	}
}

// byHand is the salvage of a file beside a coordinator that runs.
var byHand = operation{name: "salvage by hand",
	command: []string{"store", "salvage", "STORE", "-f", "FILE"},
	prepare: func(r *rig) {
		r.target, r.file = r.take(), filepath.Join(r.dir, "salvaged.db")
		r.rest()
		data, err := os.ReadFile(r.store)
		require.NoError(r.t, err)
		require.NoError(r.t, os.WriteFile(r.store+".hurt", data, 0o600))
		hurt(r, r.store+".hurt")
	},
	after: func(r *rig) {
		r.wholeBackup()
		// The first start on it removes its other name.
		db, err := bolt.Open(r.t.Context(), r.file, bolt.Options{})
		require.NoError(r.t, err)
		require.NoError(r.t, db.Close())
		require.NoError(r.t, os.Remove(r.file))
	},
	again: func(r *rig) {
		state, out := r.command(binary, "", "store", "salvage", r.store+".hurt", "-f", r.file)
		require.Zero(r.t, state.ExitCode(), out)
		r.wholeBackup()
		require.NoError(r.t, os.Remove(r.file))
	},
}

// age makes files that a process has left look old.
func (r *rig) age() {
	r.t.Helper()
	old := time.Now().Add(-2 * time.Hour)
	for _, p := range r.leftovers() {
		require.NoError(r.t, os.Chtimes(p, old, old))
	}
}

// eventsOf are the kinds of events that a coordinator remembers, newest first.
func (r *rig) eventsOf() (kinds []coordinator.EventKind) {
	for _, e := range get[api.List[coordinator.Event]](r.daemon, "/events?limit=500").Items {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}
