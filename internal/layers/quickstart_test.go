package layers

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/config"
	"keyframe/internal/redistest"
)

// isJobFile tells a block that is the file of one job by its first line.
func isJobFile(text string) bool { return strings.HasPrefix(text, "# job.yaml\n") }

func TestYAMLOfTheReadmesLoads(t *testing.T) {
	var before []any
	for _, name := range readmes {
		var now []any
		for _, text := range ofLanguage(t, readDoc(t, name), "yaml") {
			if isJobFile(text) {
				job, err := config.ParseJob([]byte(text))
				require.NoError(t, err, name)
				now = append(now, job)
				continue
			}
			file, err := config.Parse([]byte(text))
			require.NoError(t, err, name)
			require.NotEmpty(t, file.Jobs)
			now = append(now, file)
		}
		if before != nil {
			require.Equal(t, before, now, "%s has another configuration", name)
		}
		before = now
	}
	minimal, err := config.Load(filepath.Join(root, "configs", "minimal.yaml"))
	require.NoError(t, err)
	require.Equal(t, minimal, before[0], "configs/minimal.yaml is what the README shows")
}

// TestRequestsOfTheReadmesExist holds the table of the API to the OpenAPI
// document.
func TestRequestsOfTheReadmesExist(t *testing.T) {
	h := api.Handler(api.Options{Coordinator: coordinator.New(coordinator.Options{}), Events: &api.EventLog{}})
	rec, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/openapi.json", nil)
	req.Host = "127.0.0.1:7070"
	h.ServeHTTP(rec, req)
	require.Equal(t, http.StatusOK, rec.Code)
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &doc))
	requestOf := regexp.MustCompile("`(GET|POST|PUT|DELETE) (/v1[^`]*)`")
	for _, name := range readmes {
		all := requestOf.FindAllStringSubmatch(readDoc(t, name), -1)
		require.Greater(t, len(all), 15, name)
		for _, m := range all {
			require.Contains(t, doc.Paths[m[2]], strings.ToLower(m[1]), "%s: %s", name, m[0])
		}
	}
}

// quickStart is the shell blocks under the heading of the quick start: what is
// done before the coordinator runs, and what beside it.
func quickStart(t *testing.T) (before, beside string) {
	t.Helper()
	_, rest, ok := strings.Cut(readDoc(t, "README.md"), "\n## Quick start")
	require.True(t, ok)
	section, _, ok := strings.Cut(rest, "\n## ")
	require.True(t, ok)
	running := false
	for _, text := range ofLanguage(t, section, "sh") {
		switch {
		case strings.HasPrefix(text, "coordinator run "):
			require.False(t, running)
			running = true
		case running:
			beside += text
		default:
			before += text
		}
	}
	require.NotEmpty(t, before)
	require.NotEmpty(t, beside)
	return strings.Replace(before, "make build\n", "", 1), beside
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// sandbox runs the quick start beside a private Redis.
type sandbox struct {
	dir   string
	api   string
	redis string
	env   []string
}

func newSandbox(t *testing.T) *sandbox {
	s := &sandbox{dir: t.TempDir(), api: freeAddress(t), redis: redistest.Start(t).Addr}
	s.env = append(os.Environ(), "PATH="+program(t)+":"+os.Getenv("PATH"), "COORDINATOR_ADDR=http://"+s.api)
	minimal, err := os.ReadFile(filepath.Join(root, "configs", "minimal.yaml"))
	require.NoError(t, err)
	// No tick of the schedule gets in the way.
	text := strings.Replace(string(minimal), "@every 30s", "@every 24h", 1) +
		"redis: {url: redis://" + s.redis + "/0}\napi: {listen: \"" + s.api + "\"}\n"
	require.NoError(t, os.Mkdir(filepath.Join(s.dir, "configs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "configs", "minimal.yaml"), []byte(text), 0o600))
	return s
}

// sh runs a piece of shell as the reader would, with the private addresses.
func (s *sandbox) sh(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, port, err := net.SplitHostPort(s.redis)
	require.NoError(t, err)
	script = strings.ReplaceAll(script, "redis-cli ", "redis-cli -p "+port+" ")
	script = strings.ReplaceAll(script, "127.0.0.1:6379", s.redis)
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)
	return string(out)
}

// start runs the daemon until the test ends it.
func (s *sandbox) start(t *testing.T) (stop func()) {
	t.Helper()
	cmd := exec.Command(filepath.Join(program(t), "coordinator"), "run", "-c", "configs/minimal.yaml")
	cmd.Dir, cmd.Env = s.dir, s.env
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			_ = cmd.Process.Kill() // the test has failed
			_ = cmd.Wait()
		}
	})
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + s.api + "/readyz")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, 30*time.Second, 20*time.Millisecond)
	return func() {
		stopped = true
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), log.String())
	}
}

// TestTheQuickStartWorks types in what the README tells to type in.
func TestTheQuickStartWorks(t *testing.T) {
	before, beside := quickStart(t)
	s := newSandbox(t)
	out := s.sh(t, before)
	require.Contains(t, out, "configs/minimal.yaml is right")
	stop := s.start(t)
	out = s.sh(t, beside)
	for _, want := range []string{
		"savepoint 1 before-upgrade completed", "checkpoint 1 is whole", "checkpoint 1 is live",
		"\n9.49\n", "rescaled from 1 to 3", `"parallelism":3`, "checkpoint 3 is live",
	} {
		require.Contains(t, out, want)
	}
	require.Contains(t, s.sh(t, "coordinator discover --redis redis://127.0.0.1:6379/0"), "flights")
	// And the sentence after it: the state that is flushed comes back.
	s.sh(t, "redis-cli FLUSHALL")
	require.Eventually(t, func() bool {
		return strings.Contains(s.sh(t, "redis-cli HGETALL streaming:runtime:flights:coordinator"), "incarnation")
	}, 30*time.Second, 100*time.Millisecond)
	stop()
}

// TestTheDemoShowsWhatTheReadmesShow runs the demo as fast as it goes, and
// looks for the lines of the excerpt that depend on no clock.
func TestTheDemoShowsWhatTheReadmesShow(t *testing.T) {
	out, code := run(t, t.TempDir(), "coordinator", "demo", "--rate", "0")
	require.Equal(t, 0, code, out)
	trimmed := regexp.MustCompile(`(?m) +$`).ReplaceAllString(out, "")
	found := 0
	for _, name := range readmes {
		for line := range strings.Lines(ofLanguage(t, readDoc(t, name), "text")[0]) {
			line = strings.TrimRight(line, "\n")
			_, what, timed := strings.Cut(line, " flights  ")
			switch {
			case timed && strings.HasPrefix(what, "rescaled"), timed && strings.HasPrefix(what, "ALL STATE"):
				require.Contains(t, out, what)
			case !timed && strings.Contains(line, " min "), strings.HasPrefix(line, " AIRPORT"):
				require.Contains(t, trimmed, line)
			default:
				continue
			}
			found++
		}
	}
	require.Equal(t, 2*6, found)
}
