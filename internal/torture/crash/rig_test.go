package crash

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
)

// keep is how many checkpoints retention keeps.
const keep = 6

const settings = `redis: {url: %q}
store: {path: %q, copies: [%s]}
api: {listen: %q}
lease: {ttl: 3s}
jobs:
  - name: %s
    parallelism: %d
    maxParallelism: %d
    checkpoint: {maxPause: 1s, timeout: 30s}
    retention: {keep: %d}
`

// rig is one Redis, one store file, and what they must hold. It goes through
// many deaths, one after the other.
type rig struct {
	*daemon
	server *redistest.Server
	c      *redis.Client
	dir    string
	copies string // directory of second copies, "" for none
	n      int    // of churns, and of all that needs a name of its own

	truth     map[snapshot.ID]content // of each checkpoint that there was
	completed map[snapshot.ID]bool    // that must be there, unless retention removes them
	newest    snapshot.ID

	target  snapshot.ID // of the operation under way
	file    string      // the same
	was     live
	there   []snapshot.ID // completed checkpoints before it
	epoch   uint64        // least that it may be now
	deleted snapshot.ID
}

func newRig(t *testing.T, withCopies bool) *rig {
	t.Helper()
	r := &rig{daemon: newDaemon(t), server: redistest.Start(t), truth: map[snapshot.ID]content{}, completed: map[snapshot.ID]bool{}}
	r.c = r.server.Client()
	t.Cleanup(func() { require.NoError(t, r.c.Close()) })
	r.dir = filepath.Dir(r.store)
	if withCopies {
		r.newCopies()
	}
	r.configure(job.Name, r.store)
	populate(t, r.c)
	r.begin("")
	r.ready()
	r.take()
	t.Cleanup(func() { r.kill() })
	return r
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, addr: redistest.FreeAddr(t), config: filepath.Join(dir, "config.yaml"), store: filepath.Join(dir, "keyframe.db"), log: filepath.Join(dir, "log")}
	var err error
	d.api, err = api.NewClient("http://"+d.addr, "")
	require.NoError(t, err)
	t.Cleanup(func() {
		d.kill()
		d.api.Close()
		if t.Failed() {
			t.Logf("the coordinator's log ends with:\n%s", d.tail(4000))
		}
	})
	return d
}

// configure writes the configuration for a job and a store.
func (r *rig) configure(name, store string) {
	r.t.Helper()
	places := ""
	if r.copies != "" {
		places = fmt.Sprintf("{path: %q}", r.copies)
	}
	text := fmt.Sprintf(settings, r.server.URL(), store, places, r.addr, name, parallelism, maxGroups, keep)
	require.NoError(r.t, os.WriteFile(r.config, []byte(text), 0o600))
}

// newCopies has the next process keep copies in another directory, empty.
func (r *rig) newCopies() {
	r.t.Helper()
	r.n++
	r.copies = filepath.Join(r.dir, fmt.Sprintf("copies-%d", r.n))
	require.NoError(r.t, os.Mkdir(r.copies, 0o700))
	r.configure(job.Name, r.store)
}

func path(rest string, args ...any) string { return "/jobs/" + job.Name + fmt.Sprintf(rest, args...) }

// churn changes the state.
func (r *rig) churn() {
	r.t.Helper()
	r.n++
	churn(r.t, r.c, r.n)
}

// take takes a checkpoint of what is there now.
func (r *rig) take() snapshot.ID {
	r.t.Helper()
	op := r.follow(post[api.Operation](r.daemon, path("/checkpoints"), api.CreateCheckpoint{}))
	id := op.Checkpoint.ID
	r.know(id, readLive(r.t, r.c).content)
	return id
}

// know notes what a completed checkpoint holds.
func (r *rig) know(id snapshot.ID, c content) {
	r.truth[id], r.completed[id] = c, true
	r.newest = max(r.newest, id)
}

// marked reports whether the record says that a restore is in progress.
func (r *rig) marked() bool {
	there, err := r.c.HExists(r.t.Context(), job.Record(), "restore").Result()
	require.NoError(r.t, err)
	return there
}

// rest waits until nothing is under way: no operation, no copy, no deletion, no
// scratch job.
func (r *rig) rest() {
	r.t.Helper()
	r.until("rest", func() (string, bool) {
		for _, op := range get[api.List[api.Operation]](r.daemon, "/operations").Items {
			if !op.Final() {
				return fmt.Sprintf("%s %s", op.Kind, op.State), false
			}
		}
		s := get[api.StoreStats](r.daemon, "/store")
		for _, c := range s.Copies {
			if c.Waiting > 0 || c.Error != "" {
				return fmt.Sprintf("copies: %+v", c), false
			}
		}
		for _, cp := range r.history() {
			if cp.State == snapshot.StateInProgress {
				return fmt.Sprintf("checkpoint %d is in progress", cp.ID), false
			}
		}
		return fmt.Sprintf("%d chunks are to be removed", s.WaitingChunks), s.WaitingChunks == 0
	})
}

func (r *rig) history() []snapshot.Checkpoint {
	return get[api.List[snapshot.Checkpoint]](r.daemon, path("/checkpoints")).Items
}

// note keeps what there is before the operation.
func (r *rig) note() {
	r.t.Helper()
	r.was, r.deleted, r.there = readLive(r.t, r.c), 0, nil
	for _, cp := range r.history() {
		if cp.State == snapshot.StateCompleted {
			r.there = append(r.there, cp.ID)
		}
	}
}

// settle waits until a process that was started has done what a start does.
func (r *rig) settle() {
	r.t.Helper()
	r.ready()
	r.healthy(job.Name, r.marked)
	r.rest()
}

// checkpoints takes checkpoints until the process dies.
func (r *rig) checkpoints(each func()) {
	for range 2*keep + 2 {
		each()
		r.was = readLive(r.t, r.c)
		var op api.Operation
		if r.api.Call(r.t.Context(), http.MethodPost, path("/checkpoints"), api.CreateCheckpoint{}, &op) != nil || r.dead() {
			return
		}
		op, err := r.api.Follow(r.t.Context(), op, nil)
		if err != nil || op.Checkpoint == nil {
			return
		}
		r.know(op.Checkpoint.ID, r.was.content)
	}
}

// leftovers are files that nobody needs any more.
func (r *rig) leftovers() (left []string) {
	r.t.Helper()
	err := filepath.WalkDir(r.dir, func(p string, d os.DirEntry, err error) error {
		name := filepath.Base(p)
		for _, mark := range []string{".tmp", ".new-", ".compact-", "keyframe-import-"} {
			if strings.Contains(name, mark) {
				left = append(left, p)
			}
		}
		return err
	})
	require.NoError(r.t, err)
	return left
}
