package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/doctor"
	"keyframe/statebackend"
)

func TestDoctorReportsAllThatIsWrong(t *testing.T) {
	s := newService(t)
	s.write("flights", 140, "v")
	s.apply("flights")
	r, err := s.client.Doctor(t.Context(), "flights", "1ms")
	require.NoError(t, err)
	groups := 0
	for _, f := range r.Findings { // the fixture puts every key in each group
		require.Contains(t, []doctor.Code{doctor.CodeKeyGroup, doctor.CodeDuplicate}, f.Code)
		require.Equal(t, doctor.Error, f.Severity)
		groups++
	}
	require.Equal(t, groups, r.Errors)
	key := testJob("flights").Key()
	stray := key.Root() + ":cg:g:topic:in:p:0:state:count:stray\xff"
	_, err = s.state.Do(t.Context(), statebackend.Command(statebackend.OpHSet, stray, "s:x", "1"))
	require.NoError(t, err)
	r, err = s.client.Doctor(t.Context(), "flights", "1ms")
	require.NoError(t, err)
	var found []doctor.Finding
	for _, f := range r.Findings {
		if f.Code == doctor.CodeUnindexed {
			found = append(found, f)
		}
	}
	require.Len(t, found, 1)
	require.Equal(t, []string{`"streaming:runtime:flights:cg:g:topic:in:p:0:state:count:stray\xff"`}, found[0].Where)
	require.Equal(t, "flights", r.Job)

	for path, status := range map[string]int{
		"/v1/jobs/nobody/doctor": http.StatusNotFound, "/v1/jobs/flights/doctor?watch=soon": http.StatusBadRequest,
		"/v1/jobs/flights/doctor?watch=2m": http.StatusBadRequest, "/v1/jobs/flights/doctor?watch=-1s": http.StatusBadRequest,
	} {
		require.Equal(t, status, s.ask(http.MethodGet, path, "").status, path)
	}
}
