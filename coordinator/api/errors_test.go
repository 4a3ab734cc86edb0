package api

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/statebackend"
)

// allCodes reads the closed list of codes from the source, so that a new one
// can't be forgotten here.
func allCodes(t testing.TB) []fault.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../fault/fault.go", nil, 0)
	require.NoError(t, err)
	var all []fault.Code
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, fault.Code(text))
		}
		return true
	})
	require.Greater(t, len(all), 15)
	return all
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	want := map[fault.Code]int{
		fault.Usage: 400, fault.Config: 400, fault.Denied: 401,
		fault.NoJob: 404, fault.NoCheckpoint: 404, fault.NoKey: 404, fault.NoOperation: 404,
		fault.Busy: 409, fault.Refused: 409, fault.NoState: 409, fault.StateLost: 409, fault.TooLarge: 413,
		fault.Problems: 422, fault.Corrupt: 422, fault.Failed: 422,
		fault.Internal: 500, fault.Permission: 502, fault.Unreachable: 502, fault.NoDaemon: 502, fault.Store: 503,
	}
	codes := allCodes(t)
	require.Len(t, want, len(codes))
	for _, c := range codes {
		status, known := want[c]
		require.True(t, known, "code %s is not in the table", c)
		require.Equal(t, status, Status(c), "code %s", c)
		require.Contains(t, errorStatuses, status, "the OpenAPI document lacks status %d of code %s", status, c)
	}
	require.Equal(t, 500, Status("no such code"))
}

func TestAnErrorInsideTheLibrarysErrorIsKept(t *testing.T) {
	inner := &Problem{Fault: fault.Error{Code: fault.Busy, Message: "m", Hint: "h"}, status: 409}
	require.Same(t, inner, layerError(422, "validation failed", errors.New("first"), inner))
	p := layerError(422, "validation failed", errors.New("a"), nil, errors.New("b")).(*Problem)
	require.Equal(t, 400, p.GetStatus(), "a request that isn't valid is the caller's mistake")
	require.Equal(t, "validation failed; a; b", p.Error())
	require.Equal(t, fault.Usage, p.Fault.Code)
	require.Equal(t, fault.Internal, layerError(500, "x").(*Problem).Fault.Code)
	require.Equal(t, fault.Denied, layerError(403, "x").(*Problem).Fault.Code)
	require.Equal(t, fault.TooLarge, layerError(413, "x").(*Problem).Fault.Code)
}

func TestErrorsOfTheLayersBelowGetTheirCode(t *testing.T) {
	p := problem(errors.Join(errors.New("look"), statebackend.ErrWrongType)).(*Problem)
	require.Equal(t, fault.Failed, p.Fault.Code)
	require.Equal(t, 422, p.status)
	require.NoError(t, problem(nil))
}

// refusal is a request with the error that it must get.
type refusal struct {
	method, path, body string
	headers            []string
	status             int
	code               fault.Code
	message            string // a part of it
}

func (r refusal) check(t *testing.T, s *service) {
	t.Helper()
	a := s.ask(r.method, r.path, r.body, r.headers...)
	f := a.fault(t)
	what := r.method + " " + r.path + " " + r.body[:min(len(r.body), 80)] + "\n" + a.body
	require.Equal(t, r.status, a.status, what)
	require.Equal(t, r.code, f.Code, what)
	require.Contains(t, f.Message, r.message, what)
}

func TestBadRequestsAreRefusedAndChangeNothing(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	before := call[Job](s, http.MethodGet, "/jobs/flights", nil)
	const job, cps, res = "/v1/jobs/flights", "/v1/jobs/flights/checkpoints", "/v1/jobs/flights/rescale"
	large := `{"name":"` + strings.Repeat("x", maxBody) + `"}`
	for _, r := range []refusal{
		{"POST", cps, `{"nme":"a"}`, nil, 400, fault.Usage, "nme"},
		{"POST", cps, `{"name":5}`, nil, 400, fault.Usage, "expected string"},
		{"POST", cps, `{"name":"a"`, nil, 400, fault.Usage, "unexpected end"},
		{"POST", cps, `{"name":"a"} {}`, nil, 400, fault.Usage, "after top-level value"},
		{"POST", cps, `[]`, nil, 400, fault.Usage, "object"},
		{"POST", cps, `null`, nil, 400, fault.Usage, "object"},
		{"POST", cps, "", nil, 400, fault.Usage, "body"},
		{"POST", cps, `{"grade":"best"}`, nil, 400, fault.Usage, `grade "best"`},
		{"POST", cps, `{"name":"17"}`, nil, 400, fault.Usage, `savepoint name "17"`},
		{"POST", cps, `{"name":"latest"}`, nil, 400, fault.Usage, `savepoint name "latest"`},
		{"POST", cps, `{"name":"live"}`, nil, 400, fault.Usage, `savepoint name "live"`},
		{"POST", cps, `{"name":"` + strings.Repeat("n", 201) + `"}`, nil, 400, fault.Usage, "200"},
		{"POST", cps, `{"note":"` + strings.Repeat("n", 2001) + `"}`, nil, 400, fault.Usage, "2000"},
		{"POST", cps, large, nil, 413, fault.TooLarge, "1048576"},
		{"POST", cps, `name=a`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, fault.Usage, "content type"},
		{"POST", cps, `{"name":"a"}`, []string{"Content-Type", "text/plain"}, 415, fault.Usage, "content type"},
		{"POST", res, `{}`, nil, 400, fault.Usage, "parallelism"},
		{"POST", res, `{"parallelism":0}`, nil, 400, fault.Usage, "1"},
		{"POST", res, `{"parallelism":32769}`, nil, 400, fault.Usage, "32768"},
		{"POST", res, `{"parallelism":1.5}`, nil, 400, fault.Usage, "integer"},
		{"POST", res, `{"parallelism":3,"split":"half"}`, nil, 400, fault.Usage, "split"},
		{"PUT", job, `{"name":"other"}`, nil, 400, fault.Usage, `"flights"`},
		{"PUT", job, `{"name":"flights","paralelism":3}`, nil, 400, fault.Usage, "paralelism"},
		{"PUT", job, `{"name":"flights","parallelism":-1}`, nil, 400, fault.Usage, "parallelism"},
		{"PUT", job, `{"name":"flights","parallelism":11,"maxParallelism":10}`, nil, 400, fault.Config, "above maxParallelism"},
		{"PUT", job, `{"name":"flights","maxParallelism":10,"checkpoint":{"schedule":"0 0 30 2 *"}}`, nil, 400, fault.Config, "0 0 30 2 *"},
		{"PUT", job, `{"name":"flights","maxParallelism":10,"checkpoint":{"timeout":"soon"}}`, nil, 400, fault.Usage, "soon"},
		{"PUT", "/v1/jobs/x", `{"name":""}`, nil, 400, fault.Usage, "name"},
		{"DELETE", job + "?purge=perhaps", "", nil, 400, fault.Usage, "purge"},
		{"GET", "/v1/operations/op-1?wait=10", "", nil, 404, fault.NoOperation, `"op-1"`},
		{"GET", job + "/keygroups", "", nil, 400, fault.Usage, "key"},
		{"GET", "/v1/nothing", "", nil, 404, fault.Usage, "GET /v1/nothing"},
		{"GET", "/", "", nil, 404, fault.Usage, "version 1.2.3-test"},
		{"PATCH", job, `{}`, nil, 404, fault.Usage, "PATCH"},
		{"POST", "/v1/jobs/flights/rekey", `{}`, nil, 404, fault.Usage, "rekey"},
	} {
		r.check(t, s)
	}
	after := call[Job](s, http.MethodGet, "/jobs/flights", nil)
	require.Equal(t, before.Config, after.Config)
	require.Len(t, call[List[Job]](s, http.MethodGet, "/jobs", nil).Items, 1)
	require.Empty(t, call[List[Detail]](s, http.MethodGet, "/jobs/flights/checkpoints", nil).Items)
}

func TestLiveRefusalsHaveTheirCodes(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	call[Job](s, http.MethodPut, "/jobs/empty", testJob("empty"))
	s.health("empty", coordinator.HealthWaiting)
	const cps = "/v1/jobs/flights/checkpoints"
	for _, r := range []refusal{
		{"GET", "/v1/jobs/none", "", nil, 404, fault.NoJob, `"none"`},
		{"GET", "/v1/jobs/none/checkpoints", "", nil, 404, fault.NoJob, `"none"`},
		{"POST", "/v1/jobs/none/undo", "", nil, 404, fault.NoJob, `"none"`},
		{"GET", cps + "/7", "", nil, 404, fault.NoCheckpoint, `"7"`},
		{"GET", cps + "/latest", "", nil, 404, fault.NoCheckpoint, "no restorable"},
		{"POST", "/v1/jobs/flights/undo", "", nil, 404, fault.NoCheckpoint, "nothing to undo"},
		{"GET", "/v1/operations/op-none", "", nil, 404, fault.NoOperation, "op-none"},
		{"DELETE", "/v1/operations/op-none", "", nil, 404, fault.NoOperation, "op-none"},
	} {
		r.check(t, s)
	}
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{Name: "sp"})
	release := s.state.holdCuts()
	t.Cleanup(release)
	held := call[Operation](s, http.MethodPost, "/jobs/flights/checkpoints", CreateCheckpoint{})
	<-s.state.entered
	for _, r := range []refusal{
		{"POST", "/v1/jobs/flights/restore", `{}`, nil, 409, fault.Busy, held.ID},
		{"POST", "/v1/jobs/flights/rescale", `{"parallelism":3}`, nil, 409, fault.Busy, held.ID},
		{"DELETE", "/v1/jobs/flights", "", nil, 409, fault.Busy, held.ID},
		{"POST", cps, `{"name":"sp"}`, nil, 409, fault.Refused, "exists already"},
		{"DELETE", cps + "/1", "", nil, 409, fault.Refused, "is needed"},
		{"PUT", "/v1/jobs/flights", `{"name":"flights","maxParallelism":20}`, nil, 409, fault.Refused, "20"},
		{"POST", "/v1/jobs/flights/rescale/plan", `{"parallelism":11}`, nil, 409, fault.Refused, "11"},
		{"GET", "/v1/operations/" + held.ID + "?wait=10", "", nil, 400, fault.Usage, `wait "10"`},
		{"GET", "/v1/operations/" + held.ID + "?wait=-1s", "", nil, 400, fault.Usage, `wait "-1s"`},
	} {
		r.check(t, s)
	}
	release()
	_, err := s.client.Follow(t.Context(), held, nil)
	require.NoError(t, err)
}

func TestFailedOperationsCarryTheirError(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	call[Job](s, http.MethodPut, "/jobs/empty", testJob("empty"))
	s.health("empty", coordinator.HealthWaiting)
	failed := func(job string) Operation {
		t.Helper()
		op, err := s.client.Follow(t.Context(), call[Operation](s, http.MethodPost, "/jobs/"+job+"/checkpoints", CreateCheckpoint{}), nil)
		require.Error(t, err)
		require.Equal(t, coordinator.OpFailed, op.State)
		require.Equal(t, op.Error.Code, fault.CodeOf(err))
		return op
	}
	require.Equal(t, fault.NoState, failed("empty").Error.Code)
	s.state.breaks(errors.Join(errors.New("user x has no right to HGETALL"), statebackend.ErrPermission))
	require.Equal(t, fault.Permission, failed("flights").Error.Code)
	s.health("flights", coordinator.HealthDenied)
	s.state.breaks(statebackend.ErrWrongType)
	require.Equal(t, fault.Failed, failed("flights").Error.Code)
	s.health("flights", coordinator.HealthDamaged)
	s.state.breaks(statebackend.ErrUnreachable)
	refusal{"POST", "/v1/jobs/flights/restore/plan", `{}`, nil, 404, fault.NoCheckpoint, "no restorable"}.check(t, s)
	s.state.breaks(nil)
	s.health("flights", coordinator.HealthOK)
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})

	held := testJob("flights")
	held.Recovery.OnStateLoss = "hold"
	call[Job](s, http.MethodPut, "/jobs/flights", held)
	s.state.Lose()
	s.health("flights", coordinator.HealthLost)
	require.Equal(t, fault.StateLost, failed("flights").Error.Code)
}
