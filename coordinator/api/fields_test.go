package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

func TestAWrongDurationOrRateIsToldWithItsField(t *testing.T) {
	s := newService(t)
	for body, want := range map[string]string{
		`{"name":"flights","checkpoint":{"timeout":"5 parsecs"}}`:      `checkpoint.timeout: duration "5 parsecs": want a number with a unit, such as 30s, 5m or 168h`,
		`{"name":"flights","checkpoint":{"maxReadRate":"fast"}}`:       `checkpoint.maxReadRate: rate "fast": want a whole number of bytes per second with a unit, such as 50MB`,
		`{"name":"flights","retention":{"keep":3,"maxAge":"a month"}}`: `retention.maxAge: duration "a month": want a number with a unit`,
	} {
		a := s.ask(http.MethodPut, "/v1/jobs/flights", body)
		require.Equal(t, 400, a.status, a.body)
		f := a.fault(t)
		require.Equal(t, fault.Usage, f.Code)
		require.Contains(t, f.Message, want)
		require.NotContains(t, f.Message, "config.")
	}
	require.Empty(t, s.c.Jobs())
}
