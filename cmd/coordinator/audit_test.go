package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/audit"
	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
)

// guarded is a coordinator with TLS, tokens and certificates, beside a Redis
// with a password, all in one folder.
type guarded struct {
	*process
	dir, store string
	r          *redistest.Server
	certs      *redistest.Certificates
	tokens     map[string]string
}

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{dir: t.TempDir(), r: startRedis(t), certs: redistest.NewCertificates(t), tokens: map[string]string{}}
	g.store = filepath.Join(g.dir, "keyframe.db")
	put(t, g.r.URL(), "flights", 130, "v")
	var tokens []string
	for name, role := range map[string]string{"vera": "viewer", "otto": "operator", "anna": "admin"} {
		g.tokens[name] = testToken + "-of-" + name
		tokens = append(tokens, fmt.Sprintf("{name: %s, role: %s, file: %q}", name, role, write(t, name, g.tokens[name])))
	}
	g.process = launch(t, fmt.Sprintf(`redis: {url: "redis://%s/0", passwordFile: %q}
store: {path: %q}
log: {json: true, level: trace}
api:
  listen: %q
  certFile: %q
  keyFile: %q
  clientCAFile: %q
  clientCerts: [{san: localhost, role: operator}]
  tokens: [%s]
%s
`, g.r.Addr, write(t, "password", testPassword+"\n"), g.store, freeAddr(t), g.certs.CertFile, g.certs.KeyFile, g.certs.CAFile, strings.Join(tokens, ", "), flightsJob))
	g.env["COORDINATOR_ADDR"], g.env["COORDINATOR_CA_FILE"] = "https://"+g.addr, g.certs.CAFile
	g.as("anna").health("flights", "ok")
	return g
}

// as is a shell with the token of somebody, "" for none.
func (g *guarded) as(name string) *service {
	s := newShell(g.t, g.env["COORDINATOR_ADDR"])
	s.env["COORDINATOR_CA_FILE"], s.env["COORDINATOR_TOKEN"] = g.certs.CAFile, g.tokens[name]
	return &service{shell: s}
}

// TestWhoDidWhatIsToldAndNoSecretIs is a day with three people and a
// certificate: what each may do, what the audit log says of it, and that no
// password or token is in any output or file.
func TestWhoDidWhatIsToldAndNoSecretIs(t *testing.T) {
	g := startGuarded(t)
	vera, otto, anna := g.as("vera"), g.as("otto"), g.as("anna")
	require.Equal(t, fault.Denied, g.as("").refused(exitRefused, "job", "list").Code)
	require.Contains(t, vera.refused(exitRefused, "checkpoint", "create", "flights").Message, `needs the role operator; token "vera" has viewer`)
	otto.ok("checkpoint", "create", "--name", "evening", "flights")
	require.Contains(t, otto.refused(exitRefused, "restore", "flights", "--yes").Message, "needs the role admin")
	require.Contains(t, otto.refused(exitRefused, "audit").Message, "needs the role admin")
	anna.ok("restore", "flights", "--yes", "--no-undo")

	byCert := g.as("")
	byCert.ok("checkpoint", "create", "flights", "--cert-file", g.certs.CertFile, "--key-file", g.certs.KeyFile)
	require.Contains(t, byCert.refused(exitUsage, "job", "list", "--cert-file", g.certs.CertFile).Hint, "--key-file")

	items := anna.object("audit", "flights", "--limit", "1000")["items"].([]any)
	var got []string
	for _, i := range items {
		e := i.(map[string]any)
		got = append(got, fmt.Sprintf("%s %s %v", e["principal"], e["action"], e["outcome"]))
	}
	for _, want := range []string{
		"vera create-checkpoint denied", "otto create-checkpoint <nil>", "otto create-checkpoint done", "otto restore denied",
		"anna restore <nil>", "anna restore accepted", "anna restore done", "localhost create-checkpoint done",
	} {
		require.Contains(t, got, want)
	}
	table := anna.ok("audit", "--job", "flights")
	require.Contains(t, table, "SEQ")
	require.Contains(t, table, "elements")
	require.Contains(t, anna.ok("audit", "verify"), "0 problems")
	require.Equal(t, fault.Usage, anna.refused(exitUsage, "audit", "--limit", "0").Code)
	require.Equal(t, fault.Usage, anna.refused(exitUsage, "audit", "a", "--job", "b").Code)

	export := filepath.Join(g.dir, "evening.archive")
	otto.ok("checkpoint", "export", "flights", "evening", "-f", export)
	outputs := map[string]string{"cmdline": slurp(t, fmt.Sprintf("/proc/%d/cmdline", g.cmd.Process.Pid))}
	for _, line := range []string{"job show flights", "job list", "checkpoint list flights", "checkpoint show flights evening", "store stats"} {
		outputs[line] = vera.ok(append([]string{"-o", "json"}, strings.Fields(line)...)...)
	}
	g.r.Kill()
	vera.health("flights", "unreachable")
	outputs["of a dead Redis"] = vera.ok("-o", "json", "job", "show", "flights")
	g.signal(syscall.SIGTERM)
	require.Equal(t, 0, g.exit())
	outputs["log"] = g.log.String()
	require.NoError(t, filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			outputs[path] = slurp(t, path)
		}
		return err
	}))
	require.Contains(t, outputs, g.store)
	require.Contains(t, outputs, g.store+".audit")
	require.Contains(t, outputs, export)
	for what, text := range outputs {
		require.False(t, strings.Contains(text, testPassword), "the password is in %s", what)
		require.False(t, strings.Contains(text, testToken), "a token is in %s", what)
	}
	require.Contains(t, outputs["log"], `"hash"`)
	verifyAlone(t, g.shell, g.store+".audit")
}

func slurp(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

// verifyAlone follows a log without a coordinator, whole and with a name
// changed.
func verifyAlone(t *testing.T, s *shell, path string) {
	t.Helper()
	require.Contains(t, s.ok("audit", "verify", path), "0 problems")
	text := slurp(t, path)
	forged := write(t, "forged", strings.Replace(text, `"anna"`, `"otto"`, 1))
	r := s.run("audit", "verify", forged, "-o", "json")
	require.Equal(t, exitProblems, r.code, r.err)
	var report audit.Report
	one(t, r.out, &report)
	require.False(t, report.OK)
	require.Len(t, report.Problems, 1)
	require.Equal(t, exitProblems, s.run("audit", "verify", forged).code)
	require.Equal(t, fault.Usage, s.refused(exitUsage, "audit", "verify", filepath.Join(t.TempDir(), "none")).Code)
	require.Equal(t, fault.Usage, s.refused(exitUsage, "audit", "verify", path, "more").Code)
}

func TestNothingInTheLogSteersATerminal(t *testing.T) {
	var out bytes.Buffer
	w := cleanLog{&out}
	for in, want := range map[string]string{
		"plain\n": "plain\n", "a\tb\n": "a\tb\n", "\x1b[31mred\x07\n": `\x1b[31mred\x07` + "\n", "a\rb\n": `a\x0db` + "\n", "\u202ex\n": `\x202ex` + "\n", "日本\n": "日本\n", "\x00\x7f\u0085": `\x00\x7f\x85`,
	} {
		out.Reset()
		n, err := w.Write([]byte(in))
		require.NoError(t, err)
		require.Equal(t, len(in), n)
		require.Equal(t, want, out.String())
	}
}
