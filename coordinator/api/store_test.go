package api

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/snapshot/storetest"
)

func TestUpkeepOfTheStore(t *testing.T) {
	s := newService(t)
	s.write("flights", 150, "v")
	s.apply("flights")
	for range 3 {
		s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	}
	file := filepath.Join(t.TempDir(), "copy.db")
	backup := s.done("/store/backup", Backup{File: file})
	require.Equal(t, coordinator.OpBackup, backup.Kind)
	require.Empty(t, backup.Job)
	require.Equal(t, file, backup.Backup.File)
	require.Equal(t, 3, backup.Backup.Checkpoints)
	require.Positive(t, backup.Backup.Bytes)
	copied, err := bolt.Open(t.Context(), file, bolt.Options{})
	require.NoError(t, err)
	storetest.MustBeClean(t, copied)
	require.NoError(t, copied.Close())

	compacted := s.done("/store/compact", nil)
	require.Equal(t, coordinator.OpCompact, compacted.Kind)
	stats := call[snapshot.StoreStats](s, http.MethodGet, "/store", nil)
	require.Equal(t, stats.FileBytes, compacted.Compact.AfterBytes)
	require.InDelta(t, float64(stats.FileBytes)/float64(stats.LiveBytes), stats.Ratio, 1e-9)
	require.Equal(t, 3, stats.Checkpoints)
	ops := call[List[Operation]](s, http.MethodGet, "/operations", nil).Items
	require.Equal(t, []string{compacted.ID, backup.ID}, []string{ops[0].ID, ops[1].ID})
	events := call[List[coordinator.Event]](s, http.MethodGet, "/events", nil).Items
	require.Equal(t, coordinator.EventStoreCompacted, events[0].Kind)
	require.Equal(t, compacted.ID, events[0].Operation)
}

func TestBackupsThatAreRefused(t *testing.T) {
	s := newService(t)
	there := filepath.Join(t.TempDir(), "there")
	require.NoError(t, os.WriteFile(there, []byte("mine"), 0o600))
	for _, r := range []refusal{
		{"POST", "/v1/store/backup", `{"file":"copy.db"}`, nil, 400, fault.Usage, "no absolute path"},
		{"POST", "/v1/store/backup", `{"file":""}`, nil, 400, fault.Usage, "length"},
		{"POST", "/v1/store/backup", `{}`, nil, 400, fault.Usage, "file"},
		{"POST", "/v1/store/backup", `{"file":"/x","to":"/y"}`, nil, 400, fault.Usage, "unexpected"},
		{"POST", "/v1/store/backup", "", nil, 400, fault.Usage, "body"},
	} {
		r.check(t, s)
	}
	for file, code := range map[string]fault.Code{there: fault.Refused, there + "/under/a/file": fault.Store} {
		op, err := s.client.Follow(t.Context(), call[Operation](s, "POST", "/store/backup", Backup{File: file}), nil)
		require.Equal(t, code, fault.CodeOf(err), file)
		require.ErrorContains(t, err, file)
		require.Equal(t, coordinator.OpFailed, op.State)
	}
	b, err := os.ReadFile(there)
	require.NoError(t, err)
	require.Equal(t, "mine", string(b))
}
