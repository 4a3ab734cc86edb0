package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/metrics"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// wire is a state store that can be cut off and held.
type wire struct {
	*memory.Store
	mu      sync.Mutex
	lookErr error
	entered chan struct{} // a cut has begun
	leave   chan struct{} // nil: cuts aren't held
	looking chan struct{} // nil: looks aren't held
}

func (w *wire) Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error) {
	w.mu.Lock()
	err, hold := w.lookErr, w.looking
	w.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return statebackend.Glimpse{}, context.Cause(ctx)
		}
	}
	if err != nil {
		return statebackend.Glimpse{}, err
	}
	return w.Store.Look(ctx, job)
}

func (w *wire) Cut(ctx context.Context, r statebackend.CutRequest, s snapshot.Sink) (statebackend.Cut, error) {
	w.mu.Lock()
	hold := w.leave
	w.mu.Unlock()
	if hold != nil {
		w.entered <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
			return statebackend.Cut{}, context.Cause(ctx)
		}
	}
	return w.Store.Cut(ctx, r, s)
}

// breaks makes every look at a job fail with err, or work again.
func (w *wire) breaks(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookErr = err
}

// holdCuts keeps cuts from going on until the returned function is called.
func (w *wire) holdCuts() (release func()) {
	hold := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave = hold
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.leave == hold {
			w.leave = nil
			close(hold)
		}
	}
}

// damagedStore gives some chunks with one byte changed.
type damagedStore struct {
	snapshot.Store
	bad *sync.Map
}

func (d damagedStore) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	data, err := d.Store.Chunk(ctx, id)
	if _, bad := d.bad.Load(id); bad && err == nil {
		data[len(data)-1] ^= 0x40
	}
	return data, err
}

// service is the API over a real coordinator, store file and state store.
type service struct {
	t       testing.TB
	state   *wire
	db      *bolt.DB
	damaged sync.Map // snapshot.ChunkID → true: reads give another byte
	c       *coordinator.Coordinator
	metrics *metrics.Metrics
	srv     *httptest.Server
	client  *Client
	options Options
}

func newService(t testing.TB, change ...func(*Options)) *service {
	t.Helper()
	s := &service{t: t, state: &wire{Store: memory.New(memory.Options{}), entered: make(chan struct{}, 16)}, metrics: metrics.New(time.Now)}
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "keyframe.db"), bolt.Options{})
	require.NoError(t, err)
	s.db = db
	events := &EventLog{}
	s.c = coordinator.New(coordinator.Options{
		Store: damagedStore{db, &s.damaged}, Journal: db.Journal(), Backend: s.state, Poll: 20 * time.Millisecond,
		Listener: coordinator.Listeners{events, s.metrics}, Upkeep: db,
	})
	s.metrics.Watch(s.c.Jobs, s.c.StoreStats)
	require.NoError(t, s.c.Start(t.Context()))
	o := Options{Coordinator: s.c, Events: events, Metrics: s.metrics.Handler(), Version: "1.2.3-test"}
	for _, f := range change {
		f(&o)
	}
	s.options = o
	s.srv = httptest.NewUnstartedServer(nil)
	s.srv.Config = NewServer(o)
	s.srv.Start()
	s.client, err = NewClient(s.srv.URL, o.Token)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

// reconfigure serves the same coordinator with other options from now on.
func (s *service) reconfigure(change func(*Options)) {
	s.t.Helper()
	s.srv.CloseClientConnections()
	s.client.Close()
	s.srv.Close()
	change(&s.options)
	s.srv = httptest.NewUnstartedServer(nil)
	s.srv.Config = NewServer(s.options)
	s.srv.Start()
	client, err := NewClient(s.srv.URL, s.options.Token)
	require.NoError(s.t, err)
	s.client = client
}

// close ends with a store that has no problems.
func (s *service) close() {
	s.client.Close()
	s.srv.Client().CloseIdleConnections()
	s.srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(s.t, s.c.Stop(ctx))
	problems, err := s.db.Check(ctx)
	require.NoError(s.t, err)
	require.Empty(s.t, problems)
	require.NoError(s.t, s.db.Close())
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// fault is the error of an answer, which must have the shape of all errors.
func (a answer) fault(t *testing.T) fault.Error {
	t.Helper()
	require.Equal(t, "application/json", a.header.Get("Content-Type"), a.body)
	var p struct {
		Error *struct {
			Code    fault.Code `json:"code"`
			Message string     `json:"message"`
			Hint    *string    `json:"hint"`
		} `json:"error"`
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(a.body)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&p), a.body)
	require.NotNil(t, p.Error, a.body)
	require.NotEmpty(t, p.Error.Message, a.body)
	f := fault.Error{Code: p.Error.Code, Message: p.Error.Message}
	if p.Error.Hint != nil {
		f.Hint = *p.Error.Hint
	}
	return f
}

// ask makes a request as it is; headers are name, value, name, value…
func (s *service) ask(method, path, body string, headers ...string) answer {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = bytes.NewReader([]byte(body))
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.srv.URL+path, in)
	require.NoError(s.t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := s.srv.Client().Do(req)
	require.NoError(s.t, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	return answer{resp.StatusCode, resp.Header, string(data)}
}

func testJob(name string) config.Job {
	return config.Job{Name: name, Parallelism: 2, MaxParallelism: 10}.WithDefaults()
}

// write puts n fields under each key group of a job.
func (s *service) write(name string, n int, value string) {
	s.t.Helper()
	job := testJob(name)
	key := job.Key()
	for g := range job.MaxParallelism {
		state := key.StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: g, Operator: "count"}, "total")
		cmds := []statebackend.Cmd{
			statebackend.Command(statebackend.OpSAdd, key.Index(), state),
			statebackend.Command(statebackend.OpHSet, key.Registry(), state, "java.lang.String|1"),
		}
		for i := range n {
			cmds = append(cmds, statebackend.Command(statebackend.OpHSet, state, fmt.Sprintf("s:key-%d", i), fmt.Sprintf("%q", fmt.Sprintf("%s-%d", value, i))))
		}
		_, err := s.state.Do(s.t.Context(), cmds...)
		require.NoError(s.t, err)
	}
}

// read gives one field back.
func (s *service) read(name string, group, i int) string {
	s.t.Helper()
	state := testJob(name).Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: group, Operator: "count"}, "total")
	r, err := s.state.Do(s.t.Context(), statebackend.Command(statebackend.OpHGet, state, fmt.Sprintf("s:key-%d", i)))
	require.NoError(s.t, err)
	return string(r[0].Bytes)
}

// call uses the client.
func call[T any](s *service, method, path string, in any) T {
	s.t.Helper()
	var out T
	require.NoError(s.t, s.client.Call(s.t.Context(), method, path, in, &out))
	return out
}

// done starts an operation and follows it to its good end.
func (s *service) done(path string, in any) Operation {
	s.t.Helper()
	op, err := s.client.Follow(s.t.Context(), call[Operation](s, http.MethodPost, path, in), nil)
	require.NoError(s.t, err)
	require.Equal(s.t, coordinator.OpDone, op.State)
	return op
}

// apply adds a job and waits until it has been looked at.
func (s *service) apply(name string) {
	s.t.Helper()
	call[Job](s, http.MethodPut, "/jobs/"+Segment(name), testJob(name))
	s.health(name, coordinator.HealthOK)
}

// health waits until a job's health is as given.
func (s *service) health(name string, want coordinator.HealthState) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		j, err := s.c.Job(name)
		return err == nil && j.Health.State == want
	}, 10*time.Second, 5*time.Millisecond, "health %s of %s", want, name)
}
