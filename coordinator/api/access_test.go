package api

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
)

var testKeys = []config.Key{
	{Name: "vera", Role: viewer, Secret: "the-token-of-vera-viewer"},
	{Name: "otto", Role: operator, Secret: "the-token-of-otto-operator"},
	{Name: "anna", Role: admin, Secret: "the-token-of-anna-admin"},
}

func withKeys(o *Options) { o.Keys = testKeys }

// as is the header of a key.
func as(k config.Key) []string { return []string{"Authorization", "Bearer " + k.Secret} }

// eachRoute gives every route of the API with its declaration.
func eachRoute(t *testing.T, f func(path string, op *huma.Operation)) {
	t.Helper()
	a := newAPI(http.NewServeMux(), "v")
	register(a, Options{})
	n := 0
	for path, item := range a.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch, item.Head, item.Options, item.Trace} {
			if op != nil {
				n++
				f(path, op)
			}
		}
	}
	require.Greater(t, n, 30)
}

// TestEveryRouteDeclaresItsRole fails for a route that was registered without
// one of viewer, operator and admin: give it as the last argument of add, or
// call declare.
func TestEveryRouteDeclaresItsRole(t *testing.T) {
	eachRoute(t, func(path string, op *huma.Operation) {
		declared, _ := op.Extensions[roleExtension].(string)
		require.Contains(t, config.Roles, config.Role(declared), "%s %s declares no role", op.Method, path)
		require.Equal(t, config.Role(declared), needOf(op))
	})
}

func TestARouteThatDeclaresNoRoleIsAnAdmins(t *testing.T) {
	for method, want := range map[string]config.Role{"GET": viewer, "POST": admin, "PUT": admin, "DELETE": admin, "PATCH": admin, "": admin} {
		require.Equal(t, want, needOf(&huma.Operation{Method: method}), method)
		wrong := &huma.Operation{Method: method, Extensions: map[string]any{roleExtension: "everybody"}}
		require.Equal(t, want, needOf(wrong), method)
	}
}

// TestRolesOfTheRoutes holds what each role may do.
func TestRolesOfTheRoutes(t *testing.T) {
	got := map[config.Role][]string{}
	eachRoute(t, func(_ string, op *huma.Operation) { got[needOf(op)] = append(got[needOf(op)], op.OperationID) })
	for role, ids := range map[config.Role]string{
		viewer:   "version list-operations show-operation list-events list-jobs show-job key-groups list-checkpoints show-checkpoint store-stats show-alarms plan-restore plan-rescale",
		operator: "abort-operation pause-job resume-job create-checkpoint verify-checkpoint pin-checkpoint unpin-checkpoint drill doctor store-verify export-checkpoint plan-restore-archive",
		admin: "apply-job delete-job adopt-state unmark-job delete-checkpoint restore rescale undo store-compact store-backup import-checkpoint " +
			"list-audit verify-audit",
	} {
		require.Subset(t, got[role], strings.Fields(ids), role)
	}
	for _, id := range got[viewer] {
		require.Regexp(t, `^(version|key-groups|store-stats|(list|show|plan)-.*|[a-z]+-status)$`, id, "a viewer only reads")
	}
}

// TestEachRoleGetsWhatItMayAndNoMore asks every route as everybody: who may not
// gets 403 before anything else is looked at.
func TestEachRoleGetsWhatItMayAndNoMore(t *testing.T) {
	s := newService(t, withKeys)
	eachRoute(t, func(path string, op *huma.Operation) {
		need := needOf(op)
		url := strings.NewReplacer("{job}", "nobody", "{checkpoint}", "7", "{id}", "op-0").Replace(path)
		for _, k := range testKeys {
			if k.Role.Holds(need) && (op.OperationID == "import-checkpoint" || op.OperationID == "plan-restore-archive") {
				continue // its body is no JSON
			}
			a := s.ask(op.Method, url, "{}", as(k)...)
			if k.Role.Holds(need) {
				require.NotContains(t, []int{401, 403}, a.status, "%s %s as %s", op.Method, url, k.Role)
				continue
			}
			require.Equal(t, 403, a.status, "%s %s as %s: %s", op.Method, url, k.Role, a.body)
			f := a.fault(t)
			require.Equal(t, fault.Denied, f.Code)
			require.Contains(t, f.Message, "needs the role "+string(need))
			require.Contains(t, f.Message, "\""+k.Name+"\" has "+string(k.Role))
			require.NotContains(t, a.body, k.Secret)
		}
		require.Equal(t, 401, s.ask(op.Method, url, "{}").status)
		require.Equal(t, 401, s.ask(op.Method, url, "{}", "Authorization", "Bearer nobodys").status)
	})
}

func TestTokensOfOtherLengthsAndOrders(t *testing.T) {
	ring := newKeyring(testKeys)
	for _, k := range testKeys {
		p, ok := ring.owner(k.Secret)
		require.True(t, ok)
		require.Equal(t, Principal{Name: k.Name, By: byToken, Role: k.Role}, p)
		for _, wrong := range []string{k.Secret[1:], k.Secret + " ", " " + k.Secret, strings.ToUpper(k.Secret), ""} {
			_, ok := ring.owner(wrong)
			require.False(t, ok, wrong)
		}
	}
	_, ok := newKeyring(nil).owner("")
	require.False(t, ok, "no tokens are no token")
	_, ok = newKeyring(nil).owner("x")
	require.False(t, ok)
}

func TestARequestWithoutAPrincipalMayDoNothing(t *testing.T) {
	mux := http.NewServeMux()
	register(newAPI(mux, "v"), Options{})
	s := newService(t)
	s.srv.Config.Handler = mux // without the guard
	require.Equal(t, 403, s.ask("GET", "/v1/version", "").status)
	require.Equal(t, 403, s.ask("POST", "/v1/jobs/x/restore", "{}").status)
	require.Nil(t, callerOf(context.Background()))
}

func TestNamesInCertificates(t *testing.T) {
	cert := &x509.Certificate{DNSNames: []string{"a.example"}, EmailAddresses: []string{"a@example"}}
	cert.Subject.CommonName = "alice"
	rules := []config.ClientCert{{CommonName: "a.example", Role: admin}, {SAN: "alice", Role: admin}, {SAN: "a@example", Role: viewer}, {CommonName: "alice", Role: admin}}
	p, ok := certOwner(rules, cert)
	require.True(t, ok)
	require.Equal(t, Principal{Name: "a@example", By: byCertificate, Role: viewer}, p, "a common name is no alternative name, nor the other way round")
	_, ok = certOwner(rules[:2], cert)
	require.False(t, ok)
	_, ok = certOwner([]config.ClientCert{{Role: admin}}, &x509.Certificate{})
	require.False(t, ok, "an empty rule is nobody's")
}
