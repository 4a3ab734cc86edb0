package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

const (
	tokenOne = "0123456789abcdef-one"
	tokenTwo = "0123456789abcdef-two"
)

func TestRolesHoldTheOnesBefore(t *testing.T) {
	for i, has := range Roles {
		for k, need := range Roles {
			require.Equal(t, i >= k, has.Holds(need), "%s for %s", has, need)
		}
		require.False(t, has.Holds("owner"))
		require.False(t, has.Holds(""))
		require.False(t, Role("").Holds(has))
		require.False(t, Role("owner").Holds(has))
	}
	require.False(t, Role("").Holds(""))
}

func TestTokensOfTheConfiguration(t *testing.T) {
	t.Setenv("KEYFRAME_TEST_TWO", tokenTwo)
	f, err := Parse(fmt.Appendf(nil, `
api:
  listen: 0.0.0.0:7070
  tokenFile: %q
  tokens:
    - {name: alice, role: viewer, file: %q}
    - {name: bob, role: operator, env: KEYFRAME_TEST_TWO}
audit: {path: /var/lib/audit}
`, file(t, "default", "the-default-token-of-16\n", 0o600), file(t, "one", tokenOne+"\n", 0o644)))
	require.NoError(t, err)
	keys, err := f.API.Keys()
	require.NoError(t, err)
	require.Equal(t, []Key{{DefaultToken, RoleAdmin, "the-default-token-of-16"}, {"alice", RoleViewer, tokenOne}, {"bob", RoleOperator, tokenTwo}}, keys)
	for _, printed := range []string{fmt.Sprint(keys), fmt.Sprintf("%+v %#v %q %s", keys, keys[1], keys[2], &keys[0]), f.String()} {
		require.NotContains(t, printed, "0123456789")
		require.NotContains(t, printed, "the-default-token")
	}
	require.Equal(t, "/var/lib/audit", f.AuditPath())
	require.Equal(t, "keyframe.db.audit", Defaults().AuditPath())
	warnings := strings.Join(f.Warnings(), "\n")
	require.Contains(t, warnings, "api.tokens[0].file")
	require.Contains(t, warnings, "mode 0644")
	keys, err = Defaults().API.Keys()
	require.NoError(t, err)
	require.Empty(t, keys)
}

func TestWrongTokensAreRefused(t *testing.T) {
	one, two := file(t, "one", tokenOne, 0o600), file(t, "two", tokenTwo, 0o600)
	for name, c := range map[string]struct {
		api  API
		want []string
	}{
		"short":           {API{Tokens: []Token{{"a", RoleAdmin, file(t, "short", "fifteen-charact", 0o600), ""}}}, []string{"api.tokens[0].file", "shorter than 16"}},
		"short default":   {API{TokenFile: file(t, "short", "fifteen-charact", 0o600)}, []string{"api.tokenFile", "shorter than 16"}},
		"with spaces":     {API{TokenFile: file(t, "spaces", "sixteen characters", 0o600)}, []string{"api.tokenFile", "no HTTP header"}},
		"with umlauts":    {API{TokenFile: file(t, "umlauts", "sechzehn-zeichen-ü", 0o600)}, []string{"api.tokenFile", "no HTTP header"}},
		"equal":           {API{Tokens: []Token{{"a", RoleAdmin, one, ""}, {"b", RoleViewer, file(t, "again", tokenOne, 0o600), ""}}}, []string{"api.tokens[1].file", "same token as api.tokens[0].file"}},
		"as the default":  {API{TokenFile: one, Tokens: []Token{{"b", RoleViewer, file(t, "again", tokenOne, 0o600), ""}}}, []string{"same token as api.tokenFile"}},
		"same name":       {API{Tokens: []Token{{"a", RoleAdmin, one, ""}, {"a", RoleViewer, two, ""}}}, []string{"api.tokens[1].name", "api.tokens[0] has the same name"}},
		"named default":   {API{TokenFile: one, Tokens: []Token{{"default", RoleAdmin, two, ""}}}, []string{"api.tokens[0].name", "same name"}},
		"no name":         {API{Tokens: []Token{{" ", RoleAdmin, one, ""}}}, []string{"give the token a name"}},
		"no role":         {API{Tokens: []Token{{"a", "", one, ""}}}, []string{"api.tokens[0].role", "viewer, operator, admin"}},
		"unknown role":    {API{Tokens: []Token{{"a", "root", one, ""}}}, []string{"api.tokens[0].role", `"root"`}},
		"no place":        {API{Tokens: []Token{{"a", RoleAdmin, "", ""}}}, []string{"file or env"}},
		"two places":      {API{Tokens: []Token{{"a", RoleAdmin, one, "X"}}}, []string{"keep one"}},
		"missing file":    {API{Tokens: []Token{{"a", RoleAdmin, "/nowhere/at/all", ""}}}, []string{"api.tokens[0].file", "no such file"}},
		"missing env":     {API{Tokens: []Token{{"a", RoleAdmin, "", "KEYFRAME_NOT_SET"}}}, []string{"api.tokens[0].env", "is not set"}},
		"writable to all": {API{Tokens: []Token{{"a", RoleAdmin, file(t, "open", tokenOne, 0o666), ""}}}, []string{"anybody may write it"}},
	} {
		f := Defaults()
		c.api.Listen, c.api.MaxImport = f.API.Listen, f.API.MaxImport
		f.API = c.api
		err := f.Validate()
		problems := problemsOf(t, err)
		require.Len(t, problems, 1, name)
		for _, want := range c.want {
			require.Contains(t, problems[0], want, name)
		}
		require.Equal(t, fault.Config, fault.CodeOf(err))
		require.NotContains(t, problems[0], "0123456789", name)
		require.NotContains(t, problems[0], "fifteen", name)
	}
	f := Defaults()
	f.API.Tokens = []Token{{"a", RoleAdmin, "/nowhere/at/all", ""}}
	_, err := f.API.Keys()
	require.Equal(t, fault.Config, fault.CodeOf(err))
	require.ErrorContains(t, err, `api.tokens[0].file "/nowhere/at/all"`)
}

func TestClientCertificatesOfTheConfiguration(t *testing.T) {
	cert, key := pair(t)
	good := API{Listen: "0.0.0.0:7070", MaxImport: DefaultMaxImport, CertFile: cert, KeyFile: key, ClientCAFile: cert, ClientCerts: []ClientCert{
		{CommonName: "alice", Role: RoleAdmin}, {SAN: "alice", Role: RoleViewer}, {SAN: "spiffe://x/y", Role: RoleOperator}}}
	f := Defaults()
	f.API = good
	require.NoError(t, f.Validate(), "certificates do instead of tokens")
	require.Equal(t, "spiffe://x/y", good.ClientCerts[2].Name())
	for name, c := range map[string]struct {
		change func(*API)
		want   string
	}{
		"no TLS":     {func(a *API) { a.CertFile, a.KeyFile = "", "" }, "client certificates need TLS"},
		"a socket":   {func(a *API) { a.Listen = "unix:/run/k.sock" }, "api.listen is a socket"},
		"no CA":      {func(a *API) { a.ClientCAFile, a.ClientCerts = "", a.ClientCerts[:1] }, "set api.clientCAFile"},
		"CA unread":  {func(a *API) { a.ClientCAFile = "/nowhere/ca.pem" }, "api.clientCAFile"},
		"CA is none": {func(a *API) { a.ClientCAFile = key }, "no PEM certificate"},
		"both names": {func(a *API) { a.ClientCerts = []ClientCert{{"a", "b", RoleAdmin}} }, "commonName or san"},
		"no name":    {func(a *API) { a.ClientCerts = []ClientCert{{"", "", RoleAdmin}} }, "commonName or san"},
		"bad role":   {func(a *API) { a.ClientCerts = []ClientCert{{"a", "", "root"}} }, "api.clientCerts[0].role"},
		"named twice": {func(a *API) {
			a.ClientCerts = append(a.ClientCerts[:2:2], ClientCert{CommonName: "alice", Role: RoleViewer})
		}, "api.clientCerts[0] is for the same name"},
		"nobody": {func(a *API) {
			a.ClientCerts, a.Listen = nil, "127.0.0.1:0"
		}, "nobody could do anything"},
	} {
		f.API = good
		c.change(&f.API)
		problems := problemsOf(t, f.Validate())
		require.Len(t, problems, 1, "%s: %v", name, problems)
		require.Contains(t, problems[0], c.want, name)
	}
}
