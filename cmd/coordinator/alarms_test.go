package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
)

// post is a receiver of hooks and heartbeats.
type post struct {
	mu      sync.Mutex
	notices []alarm.Notice
	beats   int
}

func (p *post) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.HasPrefix(r.URL.Path, "/beat") {
		p.beats++
		return
	}
	var n alarm.Notice
	if json.NewDecoder(r.Body).Decode(&n) == nil {
		p.notices = append(p.notices, n)
	}
}

func (p *post) kinds() (all []coordinator.EventKind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.notices {
		all = append(all, n.Event.Kind)
	}
	return all
}

// beaten is how many heartbeats came.
func (p *post) beaten() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beats
}

// A daemon whose state is lost, and isn't restored by itself, tells a URL and a
// command; its heartbeat, sent before, is held back; and `job show` and the
// metrics say what is overdue.
func TestADaemonRaisesTheAlarm(t *testing.T) {
	r := startRedis(t)
	put(t, r.URL(), "flights", 13, "v")
	p := &post{}
	receiver := httptest.NewServer(p)
	defer receiver.Close()
	seen := filepath.Join(t.TempDir(), "seen")
	d := start(t, yaml(t, r.URL(), `alarms:
  hooks:
    - {name: chat, url: "`+receiver.URL+`/geheim", events: [state-loss, overdue]}
    - {name: pager, command: [sh, -c, 'cat >> "$0"', "`+seen+`"], events: [state-loss]}
  heartbeat: {url: "`+receiver.URL+`/beat/geheim", every: 1s}
jobs:
  - {name: flights, parallelism: 2, maxParallelism: 10, recovery: {onStateLoss: hold},
     checkpoint: {schedule: "@every 1s", timeout: 1s, tolerableMisses: 0}}`))
	wait := func(what string, f func() bool) {
		t.Helper()
		require.Eventually(t, f, 20*time.Second, 10*time.Millisecond, what)
	}
	wait("a heartbeat", func() bool { return p.beaten() > 0 })
	wait("a checkpoint", func() bool { return d.object("job", "show", "flights")["lastGoodAt"] != nil })
	require.Contains(t, d.ok("job", "show", "flights"), "a good checkpoint by ")
	r.RestartEmpty()
	wait("both kinds", func() bool {
		return slices.Contains(p.kinds(), coordinator.EventStateLost) && slices.Contains(p.kinds(), coordinator.EventCheckpointOverdue)
	})
	wait("the command", func() bool {
		b, err := os.ReadFile(seen)
		return err == nil && strings.HasSuffix(string(b), "\n") && strings.Contains(string(b), `"kind":"state_lost"`)
	})
	d.logged("the heartbeat is held back")
	require.Contains(t, d.ok("job", "show", "flights"), "OVERDUE since ")
	require.Equal(t, true, d.object("job", "show", "flights")["overdue"])
	resp, err := http.Get("http://" + d.addr + "/metrics")
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	require.Contains(t, string(text), "keyframe_checkpoint_overdue{job=\"flights\"} 1\n")
	require.Contains(t, string(text), "keyframe_hook_deliveries_total{hook=\"pager\",result=\"delivered\"} 1\n")
	require.Contains(t, string(text), "keyframe_heartbeat_held 1\n")
	require.NotContains(t, d.log.String(), "geheim")
	shown := d.ok("alarms")
	require.Regexp(t, `(?m)^hook pager \(.*sh\): 0 waiting, 1 delivered \(the last .*\), 0 given up, 0 dropped$`, shown)
	require.Contains(t, shown, "the heartbeat is held back")
	require.NotContains(t, shown, "geheim")
	all, _ := d.object("alarms")["hooks"].([]any)
	require.Len(t, all, 2)
}
