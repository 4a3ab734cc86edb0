package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// limitedService serves at most n connections.
func limitedService(t *testing.T, n int) (addr string) {
	t.Helper()
	s := newService(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.srv.Config.Serve(Limit(l, n)) }()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.Error(t, <-served)
	})
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // most are closed already
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

func get(t *testing.T, c net.Conn) (status int, body string, err error) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return 0, "", err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(r.Body)
	require.NoError(t, r.Body.Close())
	return r.StatusCode, string(b), err
}

func TestConnectionsBeyondTheLimitAreToldToComeLater(t *testing.T) {
	const n = 5
	addr := limitedService(t, n)
	var open []net.Conn
	for range n {
		c := dial(t, addr)
		status, _, err := get(t, c)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		open = append(open, c)
	}
	over := dial(t, addr)
	status, body, err := get(t, over)
	require.NoError(t, err)
	require.Equal(t, 503, status)
	require.Contains(t, body, "too many connections are open")
	_, _, err = get(t, over)
	require.Error(t, err, "it is closed")
	status, _, err = get(t, open[0])
	require.NoError(t, err)
	require.Equal(t, 200, status, "who is there goes on")
	require.NoError(t, open[1].Close())
	require.Eventually(t, func() bool {
		c := dial(t, addr)
		defer func() { _ = c.Close() }() // it was answered
		status, _, err := get(t, c)
		return err == nil && status == 200
	}, 10*time.Second, 5*time.Millisecond, "there is room again")
}

func TestFarBeyondTheLimitConnectionsAreClosed(t *testing.T) {
	addr := limitedService(t, 2)
	for range 2 + refusals {
		dial(t, addr)
	}
	require.Eventually(t, func() bool {
		_, _, err := get(t, dial(t, addr))
		return err != nil
	}, 10*time.Second, time.Millisecond)
}

func TestRequestsBeyondTheLimitAreToldToComeLater(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(bounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	}), 2))
	defer srv.Close()
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			r, err := srv.Client().Get(srv.URL)
			if err == nil {
				err = r.Body.Close()
			}
			ended <- err
		}()
		<-entered
	}
	r, err := srv.Client().Get(srv.URL)
	require.NoError(t, err)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "1", r.Header.Get("Retry-After"))
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Contains(t, string(b), "too many requests are under way")
	require.NoError(t, r.Body.Close())
	close(leave)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	go func() { <-entered }()
	r, err = srv.Client().Get(srv.URL)
	require.NoError(t, err)
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, r.Body.Close())
}

// hostileNames are what a path parameter may be made of to lead elsewhere.
var hostileNames = []string{
	"a/b", "../../etc/passwd", "..", ".", "a\x00b", "a\nb", "a\r\nSet-Cookie: x", "{a}", "{", "}", "a*", "[a]", "a\\b", "%2e%2e", "a:b", "a:stateKeys",
	"a:coordinator:lease", "\x1b[31m", "\u202e", "\xff\xfe", "日本", " ", "'; DROP", "a?b=c", "a#b", "a&b", strings.Repeat("x", 10000), strings.Repeat("ü", 5000),
}

// TestStrangeNamesInEveryPath asks each route of the document with each name in
// each parameter: an answer of the right shape, no error of the server, nothing
// in the state store.
func TestStrangeNamesInEveryPath(t *testing.T) {
	s := newService(t)
	s.write("flights", 3, "v")
	s.apply("flights")
	n := 0
	eachRoute(t, func(path string, op *huma.Operation) {
		for _, p := range op.Parameters {
			if p.In != "path" || op.OperationID == "import-checkpoint" {
				continue
			}
			for _, name := range hostileNames {
				url := strings.ReplaceAll(path, "{"+p.Name+"}", Segment(name))
				url = strings.NewReplacer("{job}", "flights", "{checkpoint}", "latest", "{id}", "op-1").Replace(url)
				a := s.ask(op.Method, url, bodyFor(op))
				n++
				require.Contains(t, []int{400, 404, 409}, a.status, "%s %s: %s", op.Method, url, a.body)
				require.NotEqual(t, fault.Internal, a.fault(t).Code, a.body)
				for _, c := range a.body {
					require.True(t, c >= ' ' || c == '\n', "a control character in %q", a.body)
				}
				for k, v := range a.header {
					require.NotContains(t, k+strings.Join(v, ""), "\n")
				}
				require.Empty(t, a.header.Get("Set-Cookie"))
			}
		}
	})
	require.Greater(t, n, 20*len(hostileNames))
	require.Equal(t, `"v-1"`, s.read("flights", 3, 1))
	require.Len(t, s.c.Jobs(), 1)
}

// bodyFor is a body that names no existing thing.
func bodyFor(op *huma.Operation) string {
	if op.RequestBody == nil {
		return ""
	}
	if op.OperationID == "apply-job" {
		return `{"name":"another"}` // what is in the path must be in the body too
	}
	if strings.Contains(op.OperationID, "rescale") {
		return `{"parallelism":3}`
	}
	return "{}"
}
