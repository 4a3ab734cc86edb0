package alarm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

func TestMain(tests *testing.M) { goleak.VerifyTestMain(tests) }

// wire is a network inside a bubble of fake time: a real HTTP server and a real
// client with pipes between them.
type wire struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newWire() *wire { return &wire{conns: make(chan net.Conn), done: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case w.conns <- far:
		return near, nil
	case <-w.done:
	case <-ctx.Done():
	}
	return nil, errors.Join(near.Close(), far.Close(), errors.New("connection refused"))
}

// receiver is the other end of hooks and heartbeats. What it answers is the
// test's to say.
type receiver struct {
	mu     sync.Mutex
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts requests from 0 on; nil is 200
	all    []request
	server *http.Server
}

// request is one request as it came in.
type request struct {
	at     time.Time
	method string
	path   string
	header http.Header
	body   string
	notice Notice
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body) // the test looks at what came
	got := request{at: time.Now(), method: req.Method, path: req.URL.Path, header: req.Header.Clone(), body: string(body)}
	_ = json.Unmarshal(body, &got.notice) // a heartbeat has none
	r.mu.Lock()
	n := len(r.all)
	r.all = append(r.all, got)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(n, w, req)
	}
}

// answers changes what is answered from now on.
func (r *receiver) answers(f func(n int, w http.ResponseWriter, r *http.Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.all...)
}

// seqs are the numbers of the notices that came, in order.
func (r *receiver) seqs() []uint64 {
	var all []uint64
	for _, q := range r.requests() {
		all = append(all, q.notice.Seq)
	}
	return all
}

// serve answers on a wire until the test ends.
func (r *receiver) serve() *wire {
	w := newWire()
	r.server = &http.Server{Handler: r}
	go func() { _ = r.server.Serve(w) }() // it ends with the server's Close
	return w
}

func (r *receiver) stop(t require.TestingT) { require.NoError(t, r.server.Close()) }

// status answers with one code.
func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// told collects the events of this package.
type told struct {
	mu  sync.Mutex
	all []coordinator.Event
}

var _ coordinator.Listener = (*told)(nil)

func (l *told) OnEvent(e coordinator.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func (l *told) kinds() []coordinator.EventKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []coordinator.EventKind
	for _, e := range l.all {
		all = append(all, e.Kind)
	}
	return all
}

func (l *told) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, _ := json.Marshal(l.all) // events can be encoded
	return string(b)
}

func event(kind coordinator.EventKind, job string) coordinator.Event {
	return coordinator.Event{At: time.Now().UTC(), Kind: kind, Job: job, Message: "of " + job}
}

func hooks(all ...config.Hook) config.Alarms { return config.Alarms{Hooks: all} }

// shut ends a dispatcher with time enough.
func shut(d *Dispatcher) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d.Close(ctx)
}
