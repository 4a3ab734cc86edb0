package crash

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
	"keyframe/snapshot/bolt"
)

func takeAgain(r *rig) { r.take() }

var checkpoint = operation{name: "checkpoint",
	start: func(r *rig) { r.ask(http.MethodPost, path("/checkpoints"), api.CreateCheckpoint{}) },
	again: takeAgain,
}

// retention takes checkpoints until one has to go.
var retention = operation{name: "retention",
	start: func(r *rig) { r.checkpoints(r.churn) },
	again: takeAgain,
}

// merging takes increments until their layers are merged.
var merging = operation{name: "merging of layers",
	start: func(r *rig) { r.checkpoints(r.churn) },
	again: takeAgain,
}

// anOlderOne has a checkpoint that is neither the newest nor the state.
func anOlderOne(r *rig) {
	r.target = r.take()
	r.churn()
}

var deletion = operation{name: "deletion",
	prepare: func(r *rig) {
		anOlderOne(r)
		r.take()
		r.churn()
	},
	between: func(r *rig) { r.deleted = r.target },
	start:   func(r *rig) { r.ask(http.MethodDelete, path("/checkpoints/%d", r.target), nil) },
	again: func(r *rig) {
		for _, cp := range r.history() {
			if cp.ID == r.target {
				call[any](r.daemon, http.MethodDelete, path("/checkpoints/%d", r.target), nil)
			}
		}
	},
	after: func(r *rig) { r.copiesFit() },
}

var restoring = operation{name: "restore", restores: true,
	prepare: anOlderOne,
	start:   func(r *rig) { r.ask(http.MethodPost, path("/restore"), api.Restore{Checkpoint: r.target.String()}) },
	again: func(r *rig) {
		r.follow(post[api.Operation](r.daemon, path("/restore"), api.Restore{Checkpoint: r.target.String()}))
		require.Empty(r.t, r.truth[r.target].differences(readLive(r.t, r.c).content), "the restored state")
	},
}

var undoing = operation{name: "undo", restores: true,
	prepare: func(r *rig) {
		anOlderOne(r)
		before := readLive(r.t, r.c).content
		op := r.follow(post[api.Operation](r.daemon, path("/restore"), api.Restore{Checkpoint: r.target.String()}))
		r.target = op.Restore.Undo
		r.know(r.target, before)
		r.churn()
	},
	start: func(r *rig) { r.ask(http.MethodPost, path("/undo"), nil) },
	again: func(r *rig) {
		r.target = get[api.Job](r.daemon, path("")).Undo
		r.follow(post[api.Operation](r.daemon, path("/undo"), nil))
		require.Empty(r.t, r.truth[r.target].differences(readLive(r.t, r.c).content), "the state of undo")
	},
}

// recovering starts on state that is lost.
var recovering = operation{name: "recovery", restores: true,
	prepare: func(r *rig) { r.target = r.take() },
	between: loseState,
	again: func(r *rig) {
		r.target = r.take()
		loseState(r)
		r.until("recovery", func() (string, bool) {
			now := readLive(r.t, r.c)
			diff := r.truth[r.target].differences(now.content)
			return fmt.Sprint(diff), len(diff) == 0
		})
		r.healthy(job.Name, r.marked)
	},
}

func loseState(r *rig) {
	for _, name := range scan(r.t, r.c) {
		if _, foreign := r.was.foreign[name]; !foreign {
			require.NoError(r.t, r.c.Unlink(r.t.Context(), name).Err())
		}
	}
}

// other is a parallelism that isn't the one now.
func other(r *rig) api.Rescale {
	p := get[api.Job](r.daemon, path("")).Parallelism
	return api.Rescale{Parallelism: p%3 + 1}
}

var rescaling = operation{name: "rescale", rescales: true,
	start: func(r *rig) { r.ask(http.MethodPost, path("/rescale"), other(r)) },
	again: func(r *rig) { r.follow(post[api.Operation](r.daemon, path("/rescale"), other(r))) },
}

var drilling = operation{name: "drill",
	prepare: func(r *rig) { r.take() },
	start:   func(r *rig) { r.ask(http.MethodPost, path("/drill"), nil); r.ended() },
	again: func(r *rig) {
		op := r.follow(post[api.Operation](r.daemon, path("/drill"), nil))
		require.True(r.t, op.Drill.Equal, "%v", op.Drill.Differences)
	},
}

// starting dies by its start alone.
var starting = operation{name: "start", again: takeAgain}

var renewing = operation{name: "renewal of the lease", start: func(r *rig) { r.ended() }, again: takeAgain}

var stopping = operation{name: "stop",
	start: func(r *rig) { require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM)) },
	again: takeAgain,
}

var compacting = operation{name: "compaction",
	prepare: func(r *rig) { r.take() },
	start:   func(r *rig) { r.ask(http.MethodPost, "/store/compact", nil); r.ended() },
	again:   func(r *rig) { r.follow(post[api.Operation](r.daemon, "/store/compact", nil)) },
}

var backingUp = operation{name: "backup",
	prepare: func(r *rig) {
		r.target, r.file = r.take(), filepath.Join(r.dir, "backup.db")
		require.NoError(r.t, os.RemoveAll(r.file))
	},
	start: func(r *rig) { r.ask(http.MethodPost, "/store/backup", api.Backup{File: r.file}); r.ended() },
	after: func(r *rig) {
		// Whole or not there; a part is taken over by the next backup.
		if _, err := os.Stat(r.file); err == nil {
			r.wholeBackup()
		}
		r.backUp()
		r.wholeBackup()
	},
	again: func(r *rig) { r.backUp() },
}

// backUp makes a backup in the place of the one that may be there.
func (r *rig) backUp() {
	r.t.Helper()
	require.NoError(r.t, os.RemoveAll(r.file))
	r.follow(post[api.Operation](r.daemon, "/store/backup", api.Backup{File: r.file}))
}

func (r *rig) wholeBackup() {
	r.t.Helper()
	r.withCopy(r.file, func(db *bolt.DB) {
		require.Empty(r.t, r.truth[r.target].differences(reading(r, db, r.target)), "checkpoint %d in the backup", r.target)
	})
}

// exporting dies in the command that writes the file.
var exporting = operation{name: "export",
	command: []string{"checkpoint", "export", job.Name, "ID", "-f", "FILE"},
	prepare: func(r *rig) {
		r.target = r.take()
		r.n++
		r.file = filepath.Join(r.dir, fmt.Sprintf("export-%d.kfa", r.n))
	},
	after: func(r *rig) {
		if _, err := os.Stat(r.file); err == nil {
			wholeArchive(r, r.file)
			require.NoError(r.t, os.Remove(r.file))
		}
		r.age()
		r.exported()
	},
	again: func(r *rig) {
		require.NoError(r.t, os.Remove(r.file))
		r.exported()
	},
}

func (r *rig) exported() {
	r.t.Helper()
	state, out := r.command(binary, "", "checkpoint", "export", job.Name, r.target.String(), "-f", r.file)
	require.Zero(r.t, state.ExitCode(), out)
	wholeArchive(r, r.file)
}

func wholeArchive(r *rig, file string) {
	r.t.Helper()
	a, err := archive.Open(file)
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, a.Close()) }()
	problems, err := a.Verify(r.t.Context())
	require.NoError(r.t, err)
	require.Empty(r.t, problems, file)
	var rec snapshot.Recorder
	require.NoError(r.t, snapshot.Walk(r.t.Context(), a, a.Manifest(), &rec))
	require.Empty(r.t, r.truth[a.Manifest().Checkpoint.ID].differences(recorded(&rec)), file)
}

// copying dies in the copy that follows a checkpoint.
var copying = operation{name: "copy",
	start: func(r *rig) { r.ask(http.MethodPost, path("/checkpoints"), api.CreateCheckpoint{}); r.ended() },
	after: func(r *rig) { r.copiesFit() },
	again: takeAgain,
}

// beginningCopies starts with a directory that is new.
var beginningCopies = operation{name: "new directory of copies",
	between: func(r *rig) { r.newCopies() },
	after:   func(r *rig) { r.copiesFit() },
	again:   takeAgain,
}

// copiesFit demands a whole copy of each completed checkpoint, and no other.
func (r *rig) copiesFit() {
	r.t.Helper()
	if r.copies == "" {
		return
	}
	want := 0
	for _, cp := range r.history() {
		if cp.State == snapshot.StateCompleted {
			want++
			r.truthOf(cp)
		}
	}
	files, err := filepath.Glob(filepath.Join(r.copies, "*", "*.kfa"))
	require.NoError(r.t, err)
	require.Len(r.t, files, want, "copies")
	for _, f := range files {
		wholeArchive(r, f)
	}
}

// truthOf knows a checkpoint that the operation has made.
func (r *rig) truthOf(cp snapshot.Checkpoint) {
	if r.truth[cp.ID] == nil {
		r.know(cp.ID, r.was.content)
	}
}

var importing = operation{name: "import",
	prepare: func(r *rig) {
		anOlderOne(r)
		var archived bytes.Buffer
		require.NoError(r.t, r.api.Download(r.t.Context(), path("/checkpoints/%d/archive", r.target), &archived))
		r.file = filepath.Join(r.dir, "import.kfa")
		require.NoError(r.t, os.WriteFile(r.file, archived.Bytes(), 0o600))
		r.take()
		call[any](r.daemon, http.MethodDelete, path("/checkpoints/%d", r.target), nil)
		delete(r.completed, r.target)
	},
	start: func(r *rig) { _, _ = r.upload(); r.ended() },
	again: func(r *rig) {
		op, err := r.upload()
		require.NoError(r.t, err)
		op = r.follow(op)
		require.NotZero(r.t, op.Import.Checkpoint)
	},
}

func (r *rig) upload() (op api.Operation, err error) {
	data, err := os.ReadFile(r.file)
	require.NoError(r.t, err)
	err = r.api.Upload(r.t.Context(), "/import?job="+job.Name, bytes.NewReader(data), int64(len(data)), &op)
	return op, err
}
