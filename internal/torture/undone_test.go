package torture

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

const onDemandJobs = `
  - {name: torture, parallelism: 2, maxParallelism: 16}
`

// A Redis that saved its state before a restore or a rescale and comes back
// with it afterwards must not undo what was reported as done, nor have it
// checkpointed as if nothing had happened.
func TestWhatWasDoneIsNotUndoneByAnOlderRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	memory, c := &replays{}, patient(server)
	populate(t, c)
	f := newFleet(c, true, memory)
	f.start(t)
	d := newDaemon(t, server, onDemandJobs)
	d.start()
	take := func() snapshot.Checkpoint {
		t.Helper()
		d.write(f)
		return must[snapshot.Checkpoint](d, "checkpoint", "create", job.Name)
	}
	holds := func(id snapshot.ID, why string) {
		t.Helper()
		d.run("restore", job.Name, "--dry-run") // it makes the coordinator look now; what the plan says doesn't matter
		d.healthy(job.Name)
		now := readLive(t, c, job)
		d.withStore(func(db *bolt.DB) {
			want, _ := reading(t, db, id)
			require.Empty(t, want.differences(now.content, now.now), "checkpoint %d and the live state, %s", id, why)
		})
		require.Empty(t, violations(now.content, bulk(), memory))
	}
	wanted := take()
	unwanted := take()
	server.Do("SAVE")
	must[restore.Result](d, "restore", job.Name, "--checkpoint", wanted.ID.String(), "--no-undo", "--yes")
	server.Restart()
	holds(wanted.ID, "after a Redis of before the restore came back")

	server.Do("SAVE")
	d.write(f) // lost: the server itself says when it saves
	server.Restart()
	holds(wanted.ID, "after a Redis of after the restore came back")

	res := must[restore.Result](d, "restore", job.Name, "--checkpoint", unwanted.ID.String(), "--yes")
	server.Do("SAVE")
	undone := must[restore.Result](d, "undo", job.Name, "--yes")
	require.Equal(t, res.Undo, undone.Checkpoint)
	server.Restart()
	holds(res.Undo, "after a Redis of before the undo came back")
	server.RestartEmpty()
	holds(res.Undo, "after a Redis came back empty")

	server.Do("SAVE")
	scaled := must[rescaler.Result](d, "rescale", job.Name, "--parallelism", "5", "--yes")
	server.Restart()
	holds(scaled.Checkpoint, "after a Redis of before the rescale came back")
	require.Equal(t, 5, get[api.Job](d, jobPath(job.Name)).Parallelism)
	require.Contains(t, c.Get(t.Context(), job.Assignment()).Val(), `"parallelism":`+strconv.Itoa(5))
	d.stop()
}

// write lets the writers make some steps, and holds them.
func (d *daemon) write(f *fleet) {
	d.t.Helper()
	goal := f.steps.Load() + 2000
	f.open()
	d.until("writes", func() (string, bool) { n := f.steps.Load(); return strconv.FormatInt(n, 10), n >= goal })
	f.hold()
}
