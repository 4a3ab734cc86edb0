package api

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

func TestHowACheckpointIsToBeTaken(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	const cps = "/jobs/flights/checkpoints"
	cp := s.done(cps, CreateCheckpoint{VerifyLive: true}).Checkpoint
	require.False(t, cp.SelfChecked)
	require.Contains(t, cp.FullReason, "the first since the coordinator began")
	cp = s.done(cps, CreateCheckpoint{VerifyLive: true}).Checkpoint
	require.Equal(t, "what has been written since checkpoint 1 isn't known: this state store doesn't track writes", cp.FullReason)

	for grade, code := range map[snapshot.Grade]fault.Code{"fenced": fault.Refused, "replica": fault.Refused, "quiet": fault.Refused, "best": fault.Usage} {
		a := s.ask(http.MethodPost, "/v1"+cps, `{"grade":"`+string(grade)+`"}`)
		require.Equal(t, code, a.fault(t).Code, grade)
	}
	a := s.ask(http.MethodPost, "/v1"+cps, `{"grade":"precopy"}`)
	require.Equal(t, http.StatusAccepted, a.status, "what can't be done here is told by the attempt")

	detail := s.ask(http.MethodGet, "/v1"+cps+"/2", "")
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(detail.body), &fields))
	require.Equal(t, false, fields["incremental"])
	require.InDelta(t, 1, fields["layers"], 0)
	require.InDelta(t, 2, fields["chunks"], 0, "of state, and of bookkeeping")
}

func TestAJobsWayOfTakingCheckpointsComesBackAsItWas(t *testing.T) {
	s := newService(t)
	a := s.ask(http.MethodPut, "/v1/jobs/flights", `{"name":"flights","checkpoint":{"grade":"precopy","incremental":false,"maxStall":"7ms","onStall":"fail","maxReadRate":"50MB","selfCheckEvery":0}}`)
	require.Equal(t, http.StatusOK, a.status, a.body)
	c := call[Job](s, http.MethodGet, "/jobs/flights", nil).Config.Checkpoint
	require.False(t, c.Increments())
	require.Zero(t, c.SelfCheck())
	require.EqualValues(t, 50_000_000, c.MaxReadRate)
	require.Equal(t, "7ms", c.MaxStall.String())
	a = s.ask(http.MethodPut, "/v1/jobs/flights", `{"name":"flights"}`)
	require.Equal(t, http.StatusOK, a.status, a.body)
	c = call[Job](s, http.MethodGet, "/jobs/flights", nil).Config.Checkpoint
	require.True(t, c.Increments())
	require.Equal(t, config.DefaultSelfCheck, c.SelfCheck())
	for _, wrong := range []string{`{"maxReadRate":50}`, `{"maxReadRate":"fast"}`, `{"onStall":"pray"}`, `{"maxStall":"-1s"}`, `{"selfCheckEvery":-1}`, `{"incremental":"yes"}`} {
		a = s.ask(http.MethodPut, "/v1/jobs/flights", `{"name":"flights","checkpoint":`+wrong+`}`)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", wrong, a.body)
		a.fault(t)
	}
}
