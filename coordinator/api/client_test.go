package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

func newClient(t *testing.T, addr string) *Client {
	t.Helper()
	c, err := NewClient(addr, secret)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// absent calls an address that has no coordinator and gives the error.
func absent(t *testing.T, addr string) *fault.Error {
	t.Helper()
	err := newClient(t, addr).Call(t.Context(), http.MethodPost, "/jobs/flights/pause", nil, nil)
	require.Equal(t, fault.NoDaemon, fault.CodeOf(err), "%v", err)
	require.NotContains(t, err.Error(), secret)
	f := fault.As(err)
	require.Contains(t, f.Message, addr)
	require.NotEmpty(t, f.Hint)
	return f
}

func TestNothingListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	f := absent(t, "http://"+addr)
	require.Contains(t, f.Message, "connection refused")
	require.Contains(t, f.Hint, "coordinator run")
	require.Contains(t, f.Hint, "COORDINATOR_ADDR")
	absent(t, "https://"+addr)
	absent(t, "unix:"+filepath.Join(t.TempDir(), "none.sock"))
	require.Contains(t, absent(t, "http://no-such-host.invalid:7070").Message, "no-such-host.invalid")
}

// listen serves each connection with bytes of its own and ends it.
func listen(t *testing.T, reply func(conn net.Conn, r *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				// Whole, or the reply would be lost in a reset.
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					reply(conn, r)
				}
				_ = conn.Close() // the client sees what it gets
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		serving.Wait()
	})
	return "http://" + l.Addr().String()
}

// greeted answers a greeting as a coordinator does, and leaves the rest.
func greeted(reply func(net.Conn)) func(net.Conn, *http.Request) {
	return func(c net.Conn, r *http.Request) {
		if r.URL.Path == "/healthz" {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", versionHeader)
			return
		}
		reply(c)
	}
}

func TestWhatSaysNothingIsNotWaitedFor(t *testing.T) {
	addr := listen(t, func(c net.Conn, _ *http.Request) {
		_, _ = c.Read(make([]byte, 1)) // until the client hangs up
	})
	c := newClient(t, addr)
	c.patience = 30 * time.Millisecond
	err := c.Call(t.Context(), "GET", "/jobs", nil, nil)
	require.Equal(t, fault.NoDaemon, fault.CodeOf(err))
	require.Equal(t, "what listens at "+addr+" says nothing (waited 30ms)", err.Error())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, newClient(t, addr).Call(ctx, "GET", "/jobs", nil, nil), context.Canceled)
}

func TestOnlyACoordinatorGetsTheToken(t *testing.T) {
	asked := make(chan *http.Request, 9)
	addr := listen(t, func(c net.Conn, r *http.Request) {
		asked <- r
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	})
	absent(t, addr)
	require.Equal(t, "/healthz", (<-asked).URL.Path)
	require.Empty(t, asked)
}

func TestSomethingElseListens(t *testing.T) {
	serve := func(h http.HandlerFunc) string {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		return srv.URL
	}
	for name, addr := range map[string]string{
		"a JSON service": serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"items":[]}`) }),
		"a JSON service's error": serve(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"code":"busy"}}`, http.StatusConflict)
		}),
		"a web server":            serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello") }),
		"one that has no page":    serve(http.NotFound),
		"one that redirects":      serve(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }),
		"another service's error": serve(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"error":"nope"}`, http.StatusBadRequest) }),
		"a server that fails": serve(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat("x", 5000), http.StatusInternalServerError)
		}),
		"a Redis": listen(t, func(c net.Conn, _ *http.Request) {
			fmt.Fprint(c, "-ERR wrong number of arguments for 'get' command\r\n")
		}),
		"one that says nothing": listen(t, func(net.Conn, *http.Request) {}),
	} {
		f := absent(t, addr)
		require.Less(t, len(f.Message), 500, name)
		if !strings.Contains(f.Hint, "coordinator run") {
			require.Equal(t, "is something else listening there?", f.Hint, name)
		}
	}
}

func TestTheServerDiesInTheMiddleOfItsAnswer(t *testing.T) {
	addr := listen(t, greeted(func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"name\":\"fli")
	}))
	f := absent(t, addr)
	require.Contains(t, f.Message, "broke off its answer")
	require.Contains(t, f.Hint, "log")
}

func TestACallThatIsCancelledSaysWhy(t *testing.T) {
	addr := listen(t, greeted(func(c net.Conn) {
		// Headers only: the client waits for the body until it is cancelled.
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		_, _ = c.Read(make([]byte, 1)) // until the client hangs up
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- newClient(t, addr).Call(ctx, "GET", "/jobs", nil, nil) }()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestTLS(t *testing.T) {
	s := newService(t)
	secure := httptest.NewUnstartedServer(s.srv.Config.Handler)
	secure.StartTLS()
	defer secure.Close()
	f := absent(t, secure.URL)
	require.Contains(t, f.Message, "certificate")
	require.Contains(t, f.Hint, "SSL_CERT_FILE")

	trusting := newClient(t, secure.URL)
	trusting.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	var v Version
	require.NoError(t, trusting.Call(t.Context(), "GET", "/version", nil, &v))
	require.Equal(t, "1.2.3-test", v.Version)

	plain := absent(t, strings.Replace(secure.URL, "https", "http", 1))
	require.Contains(t, plain.Message, "HTTPS server")
	toPlain := absent(t, strings.Replace(s.srv.URL, "http", "https", 1))
	require.Contains(t, toPlain.Hint, "http://")
}

func TestAddresses(t *testing.T) {
	for _, addr := range []string{"", "http://", "ftp://h:1", "http://h:1/v1", "http://h:1?x=1", "http://h:1#x", "::", "http://:7070", "unix:"} {
		_, err := NewClient(addr, "")
		require.Equal(t, fault.Usage, fault.CodeOf(err), "%q", addr)
		require.NotEmpty(t, fault.As(err).Hint)
	}
	_, err := NewClient("http://user:"+secret+"@h:7070", "")
	require.Equal(t, fault.Usage, fault.CodeOf(err))
	require.NotContains(t, err.Error(), secret)
	_, err = NewClient("http://user:"+secret+"@h:7070/%zz", "")
	require.Equal(t, fault.Usage, fault.CodeOf(err))
	require.NotContains(t, err.Error(), secret)

	s := newService(t)
	host := strings.TrimPrefix(s.srv.URL, "http://")
	for _, addr := range []string{s.srv.URL, s.srv.URL + "/", host} {
		require.NoError(t, newClient(t, addr).Call(t.Context(), "GET", "/jobs", nil, nil), addr)
	}
}

func TestFollowShowsEachStatus(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	release := s.state.holdCuts()
	t.Cleanup(release)
	op := call[Operation](s, "POST", "/jobs/flights/checkpoints", CreateCheckpoint{})
	<-s.state.entered
	seen := 0
	end, err := s.client.Follow(t.Context(), op, func(o Operation) {
		require.Equal(t, op.ID, o.ID)
		if seen++; seen == 3 {
			release()
		}
	})
	require.NoError(t, err)
	require.True(t, end.Final())
	require.Greater(t, seen, 3)
}
