package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const examples = "../../configs"

func readExample(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(examples, name))
	require.NoError(t, err)
	return string(b)
}

func TestEveryExampleLoads(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, paths, 3)
	for _, path := range paths {
		name := filepath.Base(path)
		if name == "tls-acl.yaml" {
			continue // its files exist on no machine: see below
		}
		f, err := Load(path)
		require.NoError(t, err, name)
		require.Empty(t, f.Warnings(), name)
		require.NotEmpty(t, f.Jobs, name)
	}
}

func TestMinimalExample(t *testing.T) {
	f, err := Load(filepath.Join(examples, "minimal.yaml"))
	require.NoError(t, err)
	want := Defaults()
	want.Jobs = []Job{Job{Name: "flights", Checkpoint: Checkpoint{Schedule: "@every 30s"}}.WithDefaults()}
	require.Equal(t, want, f)
}

// TestFullExampleShowsEveryField reads the example with its optional fields
// switched on, and looks for each field of the types.
func TestFullExampleShowsEveryField(t *testing.T) {
	text := readExample(t, "keyframe.yaml")
	for _, name := range []string{"url", "passwordFile", "passwordEnv", "caFile", "certFile", "keyFile", "path", "compactAbove", "listen", "tokenFile", "tokenEnv", "role", "file", "env", "clientCAFile", "commonName", "san", "maxImport", "audit",
		"level", "json", "ttl", "name", "prefix", "parallelism", "maxParallelism", "hash", "keyType", "ranges", "split", "schedule", "minPause",
		"timeout", "maxPause", "grade", "tracking", "incremental", "maxStall", "onStall", "maxReadRate", "selfCheckEvery", "keep", "maxAge", "onStateLoss", "topic", "group"} {
		require.Regexp(t, `(?m)(^[ #]*|[{,] ?|- )`+name+`: \S`, text, "field %s is shown", name)
	}
	f, err := Load(filepath.Join(examples, "keyframe.yaml"))
	require.NoError(t, err)
	require.Equal(t, Defaults(), File{Redis: f.Redis, Store: f.Store, API: f.API, Log: f.Log, Lease: f.Lease}, "it says the defaults")
	require.Len(t, f.Jobs, 2)
	// With what it says of defaults undone, the first job is the default job.
	first := f.Jobs[0]
	first.Parallelism, first.Checkpoint.Schedule, first.Checkpoint.MinPause = 1, "", 0
	first.Retention.MaxAge, first.Sources, first.Drill.Schedule = 0, nil, ""
	require.Equal(t, Job{Name: "flights"}.WithDefaults(), first)
}

func TestTLSExampleWithItsFiles(t *testing.T) {
	text := readExample(t, "tls-acl.yaml")
	cert, key := pair(t)
	for name, path := range map[string]string{
		"redis-password": file(t, "pw", password, 0o600), "api-token": file(t, "token", "t0ken-of-16-bytes", 0o600),
		"redis-ca.pem": cert, "redis-client.pem": cert, "redis-client.key": key, "api.pem": cert, "api.key": key,
	} {
		require.Contains(t, text, "/etc/keyframe/"+name)
		text = strings.ReplaceAll(text, "/etc/keyframe/"+name, path)
	}
	require.NotContains(t, text, "/etc/keyframe/", "each file was replaced")
	f, err := Parse([]byte(text))
	require.NoError(t, err)
	require.Empty(t, f.Warnings())
	got, err := f.RedisPassword()
	require.NoError(t, err)
	require.Equal(t, password, got)
	// As it stands, each missing file is named.
	_, err = Load(filepath.Join(examples, "tls-acl.yaml"))
	problems := problemsOf(t, err)
	require.Len(t, problems, 5)
	for i, missing := range []string{"redis-password", "redis-ca.pem", "redis-client.pem", "api-token", "api.pem"} {
		require.Contains(t, problems[i], missing)
	}
}

func TestUnitFile(t *testing.T) {
	var sections []string
	settings := map[string]string{}
	for _, line := range strings.Split(readExample(t, "keyframe.service"), "\n") {
		switch name, value, ok := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			sections = append(sections, line)
		default:
			require.True(t, ok, "line %q is no setting", line)
			settings[name] = value
		}
	}
	require.Equal(t, []string{"[Unit]", "[Service]", "[Install]"}, sections)
	for name, want := range map[string]string{
		"ExecStart":                "/usr/local/bin/coordinator run -c /etc/keyframe/keyframe.yaml",
		"ExecStartPre":             "/usr/local/bin/coordinator config check /etc/keyframe/keyframe.yaml",
		"KillSignal":               "SIGTERM",
		"RestartPreventExitStatus": "2",
		"NoNewPrivileges":          "yes",
		"ProtectSystem":            "strict",
		"StateDirectory":           "keyframe",
		"UMask":                    "0077",
	} {
		require.Equal(t, want, settings[name], name)
	}
	stop, err := strconv.Atoi(settings["TimeoutStopSec"])
	require.NoError(t, err)
	require.Greater(t, stop, 20+3, "seconds: longer than the coordinator's own deadlines together")
}
