package crash

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/snapshot"
)

// TestAFailedSyncStopsTheStoreUntilARestart has the kernel refuse to sync the
// store from the commit of a checkpoint on (I1): that checkpoint fails, nothing
// more is written, health and readiness say what to do, earlier checkpoints stay
// readable, and a restart goes on.
func TestAFailedSyncStopsTheStoreUntilARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	good := r.take()
	r.churn()
	r.rest()
	r.note()
	r.kill()
	r.begin("commit-open!eio")
	r.ready()
	op, err := r.api.Follow(t.Context(), post[api.Operation](r.daemon, path("/checkpoints"), api.CreateCheckpoint{}), nil)
	require.ErrorContains(t, err, "input/output error")
	require.ErrorContains(t, err, "check the disk and restart the coordinator")
	require.Equal(t, coordinator.OpFailed, op.State)
	r.toldOfTheStop()
	_, err = r.api.Follow(t.Context(), post[api.Operation](r.daemon, path("/checkpoints"), api.CreateCheckpoint{}), nil)
	require.ErrorContains(t, err, "restart the coordinator", "nothing more is written")
	verified := r.follow(post[api.Operation](r.daemon, path("/checkpoints/%d/verify", good), nil))
	require.True(t, verified.Verify.OK, "%v", verified.Verify.Problems)
	require.NoError(t, r.api.Download(t.Context(), path("/checkpoints/%d/archive", good), io.Discard))
	r.kill()
	r.begin("")
	r.settle()
	r.check(checkpoint)
	history := r.history()
	require.Equal(t, snapshot.StateFailed, history[len(history)-1].State)
	r.churn()
	r.take()
	r.note()
	r.check(checkpoint)
}

// toldOfTheStop demands health, readiness, metric and event of a stopped store.
func (r *rig) toldOfTheStop() {
	r.t.Helper()
	r.until("bad health", func() (string, bool) {
		h := get[api.Job](r.daemon, path("")).Health
		return string(h.State) + h.Message, h.State == coordinator.HealthStore
	})
	status, text := r.readiness()
	require.Equal(r.t, http.StatusServiceUnavailable, status)
	require.Contains(r.t, text, "restart the coordinator")
	require.Contains(r.t, r.metrics(), "keyframe_store_writable 0\n")
	r.until("the event", func() (string, bool) {
		for _, kind := range r.eventsOf() {
			if kind == coordinator.EventStoreStopped {
				return "", true
			}
		}
		return "none", false
	})
}

// metrics is what /metrics shows.
func (d *daemon) metrics() string {
	d.t.Helper()
	resp, err := http.Get("http://" + d.addr + "/metrics")
	require.NoError(d.t, err)
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	require.NoError(d.t, resp.Body.Close())
	return string(body)
}
