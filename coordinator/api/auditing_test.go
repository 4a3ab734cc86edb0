package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/audit"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
)

// auditedService makes a service with tokens that writes an audit log.
func auditedService(t *testing.T) (*service, *Auditor) {
	t.Helper()
	a := NewAuditor(audit.New(filepath.Join(t.TempDir(), "audit"), audit.Options{}), func(err error) { t.Log(err) })
	s := newService(t, withKeys, func(o *Options) { o.Audit, o.Token = a, secret })
	t.Cleanup(func() {
		closed(t, a)
		r, err := a.log.Verify(context.Background())
		require.NoError(t, err)
		require.True(t, r.OK, r.Problems)
	})
	return s, a
}

// closed ends an auditor; a second time changes nothing.
func closed(t *testing.T, a *Auditor) {
	t.Helper()
	_, err := a.Close(context.Background())
	require.NoError(t, err)
}

// lines are all lines of the log without the request ids and chain, by JSON.
func lines(t testing.TB, a *Auditor) []audit.Entry {
	t.Helper()
	all, err := a.log.Read(t.Context(), audit.Query{})
	require.NoError(t, err)
	return all
}

// audited waits for a line that a test looks for.
func (s *service) audited(a *Auditor, want func(audit.Entry) bool) audit.Entry {
	s.t.Helper()
	var found audit.Entry
	require.Eventually(s.t, func() bool {
		for _, e := range lines(s.t, a) {
			if want(e) {
				found = e
				return true
			}
		}
		return false
	}, 10*time.Second, 5*time.Millisecond)
	return found
}

func TestAChangeIsWrittenDownBeforeAndAfter(t *testing.T) {
	s, a := auditedService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{Name: "before", Note: "n"})
	planned := s.ask("POST", "/v1/jobs/flights/restore/plan", "{}", as(testKeys[0])...)
	require.Equal(t, 200, planned.status, "a viewer may look")
	s.audited(a, func(e audit.Entry) bool { return e.Action == "create-checkpoint" && e.Outcome == audit.OutcomeDone })
	before := len(lines(t, a))
	r := s.ask("POST", "/v1/jobs/flights/restore", `{"checkpoint":"before","noUndo":true}`, as(testKeys[2])...)
	require.Equal(t, 202, r.status, r.body)
	id := r.header.Get(requestHeader)
	require.Len(t, id, 16)
	end := s.audited(a, func(e audit.Entry) bool {
		return e.Request == id && e.Phase == audit.PhaseEnd && e.Outcome == audit.OutcomeDone
	})
	all := lines(t, a)[before:]
	require.Len(t, all, 3)
	begin := all[0]
	require.Equal(t, audit.PhaseBegin, begin.Phase)
	require.Equal(t, []string{"anna", "token", "admin", "restore", "flights", id}, []string{begin.Principal, begin.By, begin.Role, begin.Action, begin.Job, begin.Request})
	require.True(t, strings.HasPrefix(begin.Source, "127.0.0.1:"), begin.Source)
	require.Equal(t, map[string]any{"body": map[string]any{"checkpoint": "before", "noUndo": true}}, begin.Params)
	require.InDelta(t, 1300, begin.Plan["elements"], 0, "the plan that was shown")
	require.InDelta(t, 1, begin.Plan["checkpoint"], 0)
	require.Equal(t, audit.OutcomeAccepted, all[1].Outcome)
	require.NotEmpty(t, all[1].Operation)
	require.Equal(t, all[1].Operation, end.Operation)
	require.InDelta(t, 1300, end.Plan["restored"].(map[string]any)["elements"], 0)

	// A plan is told once.
	s.done("/jobs/flights/restore", Restore{})
	again := s.audited(a, func(e audit.Entry) bool {
		return e.Action == "restore" && e.Principal == "default" && e.Phase == audit.PhaseBegin
	})
	require.Nil(t, again.Plan)
}

func TestWhatFailedSaysWhy(t *testing.T) {
	s, a := auditedService(t)
	require.Equal(t, 404, s.ask("POST", "/v1/jobs/nobody/restore", "{}", as(testKeys[2])...).status)
	all := lines(t, a)
	require.Len(t, all, 2)
	require.Equal(t, audit.OutcomeFailed, all[1].Outcome)
	require.Contains(t, all[1].Error, `"nobody"`)

	call[Job](s, http.MethodPut, "/jobs/flights", testJob("flights"))
	s.health("flights", coordinator.HealthWaiting) // without state
	_, err := s.client.Follow(t.Context(), call[Operation](s, http.MethodPost, "/jobs/flights/checkpoints", CreateCheckpoint{}), nil)
	require.Error(t, err)
	failed := s.audited(a, func(e audit.Entry) bool { return e.Action == "create-checkpoint" && e.Outcome == audit.OutcomeFailed })
	require.NotEmpty(t, failed.Error)
	require.NotEmpty(t, failed.Operation)
}

func TestWhatOnlyReadsIsNotWritten(t *testing.T) {
	s, a := auditedService(t)
	for _, path := range []string{"/version", "/jobs", "/store", "/audit", "/audit/verify", "/events"} {
		require.Equal(t, 200, s.ask("GET", "/v1"+path, "", as(testKeys[2])...).status, path)
	}
	require.Empty(t, lines(t, a))
}

func TestWhatWasRefusedIsWrittenOnceInAWhile(t *testing.T) {
	s, a := auditedService(t)
	clock := time.Now()
	a.mu.Lock()
	a.now = func() time.Time { return clock }
	a.mu.Unlock()
	for range 5 {
		require.Equal(t, 403, s.ask("POST", "/v1/jobs/flights/restore", "{}", as(testKeys[0])...).status)
		require.Equal(t, 401, s.ask("POST", "/v1/jobs/flights/restore", "{}", "Authorization", "Bearer "+secret+"x").status)
	}
	all := lines(t, a)
	require.Len(t, all, 2)
	require.Equal(t, []string{"vera", "restore"}, []string{all[0].Principal, all[0].Action})
	require.Equal(t, audit.OutcomeDenied, all[0].Outcome)
	require.Contains(t, all[0].Error, "needs the role admin")
	require.Equal(t, []string{"unknown", "authenticate"}, []string{all[1].Principal, all[1].Action})
	a.mu.Lock()
	clock = clock.Add(quiet)
	a.mu.Unlock()
	require.Equal(t, 403, s.ask("POST", "/v1/jobs/flights/restore", "{}", as(testKeys[0])...).status)
	all = lines(t, a)
	require.Len(t, all, 3)
	require.InDelta(t, 4, all[2].Params["notWrittenBefore"], 0)
	b, err := os.ReadFile(a.log.Path())
	require.NoError(t, err)
	require.NotContains(t, string(b), secret)
	require.NotContains(t, string(b), "the-token-of")
}

// TestWithoutAnAuditLogNothingIsChanged: it fails closed, and says so.
func TestWithoutAnAuditLogNothingIsChanged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	a := NewAuditor(audit.New(filepath.Join(dir, "audit"), audit.Options{}), nil)
	t.Cleanup(func() { closed(t, a) })
	s := newService(t, func(o *Options) { o.Audit = a })
	r := s.ask("PUT", "/v1/jobs/flights", `{"name":"flights"}`)
	require.Equal(t, 503, r.status, r.body)
	require.Equal(t, fault.Store, r.fault(t).Code)
	require.Contains(t, r.fault(t).Message, "apply-job was not begun")
	require.Contains(t, r.fault(t).Hint, "/readyz")
	_, err := s.c.Job("flights")
	require.Equal(t, fault.NoJob, fault.CodeOf(err))
	ready := s.ask("GET", "/readyz", "")
	require.Equal(t, 503, ready.status)
	require.Contains(t, ready.body, "changes are refused")
	require.Equal(t, 200, s.ask("GET", "/v1/jobs", "").status, "reads go on")
	require.Equal(t, 200, s.ask("GET", "/healthz", "").status, "it lives")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.Equal(t, 200, s.ask("PUT", "/v1/jobs/flights", `{"name":"flights"}`).status, "without a restart")
	require.Equal(t, byLoopback, lines(t, a)[0].Principal)
	// Its end is lost, which is told, and what follows is refused.
	require.NoError(t, os.Rename(filepath.Join(dir, "audit"), filepath.Join(dir, "elsewhere")))
	require.Equal(t, 503, s.ask("POST", "/v1/jobs/flights/pause", "").status)
}

// TestReadingsGoOnWithoutAnAuditLog: they are what saves checkpoints from a disk
// that is full. Who asked is told elsewhere then.
func TestReadingsGoOnWithoutAnAuditLog(t *testing.T) {
	told := make(chan error, 10)
	a := NewAuditor(audit.New(filepath.Join(t.TempDir(), "absent", "audit"), audit.Options{}), func(err error) { told <- err })
	t.Cleanup(func() { closed(t, a) })
	s := newService(t, func(o *Options) { o.Audit = a })
	require.Equal(t, 503, s.ask("POST", "/v1/store/compact", "").status)
	require.Empty(t, told)
	require.Equal(t, 200, s.ask("POST", "/v1/store/verify", "").status)
	require.ErrorContains(t, <-told, `store-verify by "loopback"`)
	require.ErrorContains(t, <-told, "can't be written", "its end")
	for action := range readings {
		require.NoError(t, a.begin(&caller{action: action}), action)
		<-told
	}
}

func TestWhatTheCoordinatorDoesByItself(t *testing.T) {
	_, a := auditedService(t)
	a.OnEvent(coordinator.Event{Kind: coordinator.EventRecoveryAttempt, Job: "flights", ID: 7, Message: "again"})
	a.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointCompleted, Job: "flights", ID: 8, Message: "not a change"})
	a.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointRemoved, Job: "flights", ID: 6, Reason: "on request"})
	a.OnEvent(coordinator.Event{Kind: coordinator.EventCheckpointRemoved, Job: "flights", ID: 5, Reason: "keep", Message: "removed"})
	head, err := a.Close(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, head.Seq)
	all := lines(t, a)
	require.Len(t, all, 2)
	require.Equal(t, []string{"coordinator", "recovery_attempt", "flights"}, []string{all[0].Principal, all[0].Action, all[0].Job})
	require.Equal(t, map[string]any{"message": "removed", "checkpoint": float64(5)}, all[1].Params)
}

func TestPagesOfTheAuditLog(t *testing.T) {
	s, a := auditedService(t)
	for i := range 130 {
		_, err := a.log.Append(audit.Entry{Phase: audit.PhaseNote, Principal: "p", By: "token", Action: fmt.Sprintf("a-%d", i), Job: fmt.Sprintf("job-%d", i%2)})
		require.NoError(t, err)
	}
	page := call[AuditPage](s, http.MethodGet, "/audit", nil)
	require.Len(t, page.Items, defaultPage)
	require.EqualValues(t, 130, page.Last)
	require.EqualValues(t, 31, page.Items[0].Seq)
	require.Len(t, call[AuditPage](s, http.MethodGet, "/audit?limit=1000", nil).Items, 130)
	require.EqualValues(t, 5, call[AuditPage](s, http.MethodGet, "/audit?after=4&limit=2", nil).Items[0].Seq)
	require.EqualValues(t, 1, call[AuditPage](s, http.MethodGet, "/audit?first=true&limit=2", nil).Items[0].Seq)
	require.EqualValues(t, 129, call[AuditPage](s, http.MethodGet, "/audit?job=job-0&limit=1", nil).Items[0].Seq)
	require.Equal(t, 400, s.ask("GET", "/v1/audit?limit=1001", "", as(testKeys[2])...).status)
	require.True(t, call[audit.Report](s, http.MethodGet, "/audit/verify", nil).OK)
	none := newService(t)
	require.Equal(t, 409, none.ask("GET", "/v1/audit", "").status)
	require.Equal(t, 409, none.ask("GET", "/v1/audit/verify", "").status)
}

func TestSecretsInParametersAreNotRepeated(t *testing.T) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(`{"hooks":[{"url":"https://u:s3cret@hooks.example/T0/s3cret?k=s3cret","command":["curl","s3cret"]}],
		"plain":"https://hooks.example","socket":"unix:///s3cret","bad":"x://%zz s3cret","token":"s3cret","api_Key":"s3cret","Headers":{"a":"s3cret"},
		"note":"`+strings.Repeat("ü", 500)+`","n":7,"b":true,"x":null}`), &v))
	out, err := json.Marshal(redact(v))
	require.NoError(t, err)
	require.NotContains(t, string(out), "s3cret")
	for _, want := range []string{"https://hooks.example/" + hidden, `"plain":"https://hooks.example"`, "(1000 bytes)", `"n":7`, `"b":true`, `"x":null`} {
		require.Contains(t, string(out), want)
	}
	deep := any("end")
	long := map[string]any{}
	for i := range 1000 {
		deep = []any{deep}
		long[fmt.Sprint("k", i)] = i
	}
	require.Less(t, len(fmt.Sprint(redact(deep))), 100)
	require.Len(t, redact(long), maxParams+1)
	require.Len(t, redact([]any{make([]any, 1000)}).([]any)[0], maxParams+1)
}

func TestMemoryOfAnAuditorIsBounded(t *testing.T) {
	a := NewAuditor(audit.New(filepath.Join(t.TempDir(), "audit"), audit.Options{}), nil)
	for i := range 3 * maxPlans {
		a.remember(&caller{action: "plan-restore", job: fmt.Sprint(i)}, restore.Plan{})
	}
	require.LessOrEqual(t, len(a.plans), maxPlans)
	_, err := a.Close(t.Context())
	require.NoError(t, err)
}
