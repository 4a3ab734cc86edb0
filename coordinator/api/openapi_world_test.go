package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/audit"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// world is a server with two jobs and what is needed to ask it anything.
type world struct {
	*service
	audit   *Auditor
	doc     *spec
	codes   []fault.Code
	dir     string // of backups and of what is spooled
	archive []byte
	logged  safeBuffer // what the HTTP server says
	count   atomic.Int64

	mu      sync.Mutex
	success map[string]int // by operation
	refusal map[string]int // as somebody who may ask
}

// safeBuffer is written by many.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newWorld makes flights, whose second checkpoint is far smaller than the
// first, and twin, with a savepoint.
func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{dir: tb.TempDir(), success: map[string]int{}, refusal: map[string]int{}}
	w.audit = NewAuditor(audit.New(filepath.Join(tb.TempDir(), "audit"), audit.Options{}), func(err error) { tb.Error(err) })
	w.service = newService(tb, withKeys, func(o *Options) { o.Audit, o.Token, o.Spool = w.audit, secret, w.dir })
	w.srv.Config.ErrorLog = log.New(&w.logged, "", 0)
	tb.Cleanup(func() {
		_, err := w.audit.Close(context.Background())
		require.NoError(tb, err)
		require.NotContains(tb, w.logged.String(), "panic")
	})
	w.codes = allCodes(tb)
	a := w.ask("GET", "/openapi.json", "", as(testKeys[0])...)
	require.Equal(tb, 200, a.status)
	var err error
	w.doc, err = readSpec(a.body)
	require.NoError(tb, err)
	w.heal()
	return w
}

// heal brings the jobs back: what was asked before may have changed, deleted or
// paused them.
func (w *world) heal() {
	w.quiet()
	for _, j := range w.c.Jobs() {
		if j.Name != "flights" && j.Name != "twin" {
			require.NoError(w.t, w.c.DeleteJob(w.t.Context(), j.Name, true), j.Name)
		}
	}
	for _, name := range []string{"flights", "twin"} {
		w.healJob(name)
	}
	if w.archive == nil {
		w.archive = w.download("twin", "latest")
	}
	for _, e := range w.files() {
		require.NoError(w.t, os.Remove(filepath.Join(w.dir, e)))
	}
}

func (w *world) healJob(name string) {
	want := testJob(name)
	j, err := w.c.Job(name)
	if err != nil || !reflect.DeepEqual(j.Config, want) || j.Paused || j.Health.State != "ok" || j.Last == nil || j.Parallelism != want.Parallelism {
		if err != nil { // its history may still be there
			_, err = w.c.Apply(w.t.Context(), want)
			require.NoError(w.t, err)
		}
		require.NoError(w.t, w.c.DeleteJob(w.t.Context(), name, true), name)
		w.wipe(want.Key())
		w.write(name, 140, name)
		w.apply(name)
		w.done("/jobs/"+name+"/checkpoints", CreateCheckpoint{})
		if name == "flights" {
			w.shrink(name, 140)
			w.done("/jobs/"+name+"/checkpoints", CreateCheckpoint{Name: "gold"})
		}
	}
}

// wipe removes everything of a job that nobody leads any more.
func (w *world) wipe(job statebackend.Job) {
	for _, key := range w.state.Keys() {
		if strings.HasPrefix(string(key), job.Root()+":") {
			_, err := w.state.Do(w.t.Context(), statebackend.Command(statebackend.OpDel, string(key)))
			require.NoError(w.t, err)
		}
	}
}

// shrink removes most fields of a job's state.
func (w *world) shrink(name string, n int) {
	job := testJob(name)
	for g := range job.MaxParallelism {
		state := job.Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: "count"}, "total")
		var cmds []statebackend.Cmd
		for i := 5; i < n; i++ {
			cmds = append(cmds, statebackend.Command(statebackend.OpHDel, state, fmt.Sprintf("s:key-%d", i)))
		}
		_, err := w.state.Do(w.t.Context(), cmds...)
		require.NoError(w.t, err)
	}
}

// quiet waits until nothing is under way.
func (w *world) quiet() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return !slices.ContainsFunc(w.c.Operations(""), func(o Operation) bool { return !o.Final() })
	}, 30*time.Second, time.Millisecond, "operations end")
}

func (w *world) lastOperation() string {
	if all := w.c.Operations(""); len(all) > 0 {
		return all[0].ID
	}
	return "op-1"
}

func (w *world) backupFile() string {
	return filepath.Join(w.dir, fmt.Sprintf("backup-%d.db", w.count.Add(1)))
}

func (w *world) files() (names []string) {
	entries, err := os.ReadDir(w.dir)
	require.NoError(w.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// seen is what somebody must leave as it is: an operator the jobs' definitions
// and state, who has less than that also their histories and this disk. Only
// what doesn't move by itself.
func (w *world) seen(by config.Role) string {
	if by.Holds(admin) {
		return ""
	}
	all := []any{w.values()}
	for _, j := range w.c.Jobs() {
		all = append(all, j.Name, j.Config)
		if !by.Holds(operator) {
			cps, err := w.c.Checkpoints(w.t.Context(), j.Name)
			require.NoError(w.t, err)
			all = append(all, j.Paused, j.Undo, j.Epoch, cps, w.files())
		}
	}
	b, err := json.Marshal(all)
	require.NoError(w.t, err)
	return string(b)
}

// values are all elements of both jobs' state.
func (w *world) values() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"flights", "twin"} {
		for g := range testJob(name).MaxParallelism {
			state := testJob(name).Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: "count"}, "total")
			require.NoError(w.t, w.state.Each(w.t.Context(), state, snapshot.TypeHash, func(e snapshot.Element) error {
				out[fmt.Sprintf("%s %d %s", name, g, e.Field)] = string(e.Value)
				return nil
			}))
		}
	}
	return out
}

// safe reports whether a request may be sent from a test: a backup goes to any
// file of this machine.
func (w *world) safe(r request) bool {
	var b Backup
	if r.op.OperationID != "store-backup" || json.Unmarshal([]byte(r.body), &b) != nil {
		return true
	}
	return !filepath.IsAbs(b.File) || strings.HasPrefix(filepath.Clean(b.File), w.dir+"/backup-")
}

// send makes a request as it is, byte for byte.
func (w *world) send(r request) (answer, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, w.srv.URL, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	host := strings.TrimPrefix(w.srv.URL, "http://")
	req.URL = &url.URL{Scheme: "http", Host: host, Opaque: "//" + host + r.target}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := w.srv.Client().Transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(data)}, joinClose(err, resp.Body)
}

func joinClose(err error, c io.Closer) error {
	if err != nil {
		_ = c.Close() // the first error says more
		return err
	}
	return c.Close()
}

// roleOf is what a token may do, "" for none.
func roleOf(token string) config.Role {
	for _, k := range testKeys {
		if k.Secret == token {
			return k.Role
		}
	}
	return ""
}

// judge holds an answer against the document.
func (w *world) judge(t require.TestingT, r request, a answer) {
	for _, k := range testKeys {
		require.NotContains(t, a.body, k.Secret, "%s", r)
	}
	require.NotContains(t, a.body, secret, "%s", r)
	if a.header.Get(versionHeader) == "" {
		require.Contains(t, []int{400, 414, 431, 501, 505}, a.status, "the HTTP library refuses only what is no HTTP: %s: %s", r, a.body)
		return
	}
	if r.method == http.MethodHead {
		return // it has no body
	}
	if a.status < 300 && r.method != r.op.method {
		return // another operation of the document
	}
	documented, ok := r.op.Responses[fmt.Sprint(a.status)]
	require.True(t, ok, "%s: status %d is not in the document: %s", r, a.status, a.body)
	if a.status >= 300 {
		w.judgeError(t, r, a)
		return
	}
	if _, binary := documented.Content[archiveType]; binary {
		require.Equal(t, archiveType, a.header.Get("Content-Type"))
		w.tell(w.success, r)
		return
	}
	require.Contains(t, a.header.Get("Content-Type"), "application/json", "%s", r)
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v), "%s: %s", r, a.body)
	require.Empty(t, w.doc.conforms(v, documented.Content["application/json"].Schema, "answer"), "%s: %.2000s", r, a.body)
	w.tell(w.success, r)
}

func (w *world) judgeError(t require.TestingT, r request, a answer) {
	var p struct{ Error *fault.Error }
	require.Equal(t, "application/json", a.header.Get("Content-Type"), "%s: %s", r, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &p), "%s: %s", r, a.body)
	require.NotNil(t, p.Error, "%s: %s", r, a.body)
	require.Contains(t, w.codes, p.Error.Code, "%s: %s", r, a.body)
	require.NotEmpty(t, p.Error.Message, "%s", r)
	require.Less(t, a.status, 500, "%s: %s", r, a.body)
	if r.token == testKeys[2].Secret {
		w.tell(w.refusal, r)
	}
	if need := config.Role(r.op.Role); !roleOf(r.token).Holds(need) && r.method == r.op.method {
		require.NotEqual(t, 409, a.status, "who may not is told nothing: %s: %s", r, a.body)
	}
}

func (w *world) tell(of map[string]int, r request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of[r.op.OperationID]++
}
