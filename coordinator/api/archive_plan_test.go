package api

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

func TestAPlanFromAnArchiveLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := newService(t, func(o *Options) { o.Spool = dir })
	s.fill("flights", 150, 20_000)
	s.apply("flights")
	s.write("twin", 1, "other")
	s.apply("twin")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	b := s.download("flights", "latest")
	require.Greater(t, len(b), 2*maxBody)
	foretell := func(query string) (plan restore.Plan, err error) {
		err = s.client.Upload(t.Context(), "/import/plan"+query, bytes.NewReader(b), int64(len(b)), &plan)
		spooled(t, s, dir)
		return plan, err
	}
	plan, err := foretell("?job=twin&as=twin")
	require.NoError(t, err)
	require.Equal(t, "twin", plan.Job)
	require.Equal(t, "flights", plan.From)
	require.Greater(t, plan.Elements, uint64(128))
	require.Empty(t, call[List[snapshot.Checkpoint]](s, http.MethodGet, "/jobs/twin/checkpoints", nil).Items)
	require.Equal(t, `"other-0"`, s.read("twin", 3, 0))
	_, err = foretell("?job=twin")
	require.Equal(t, fault.Refused, fault.CodeOf(err), "another job's: %v", err)
	b[300] ^= 2
	_, err = foretell("?job=twin&as=twin")
	require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
}
