package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
)

const secret = "t0ken-of-the-test"

func TestToken(t *testing.T) {
	s := newService(t, func(o *Options) { o.Token = secret })
	for name, headers := range map[string][]string{
		"none":            nil,
		"empty":           {"Authorization", "Bearer "},
		"wrong":           {"Authorization", "Bearer wrong"},
		"longer":          {"Authorization", "Bearer " + secret + "x"},
		"shorter":         {"Authorization", "Bearer " + secret[:len(secret)-1]},
		"other scheme":    {"Authorization", "Basic " + secret},
		"bare":            {"Authorization", secret},
		"in another case": {"Authorization", "Bearer " + strings.ToUpper(secret)},
	} {
		for _, path := range []string{"/v1/jobs", "/openapi.json", "/metrics", "/nothing"} {
			a := s.ask("GET", path, "", headers...)
			require.Equal(t, 401, a.status, "%s %s", name, path)
			f := a.fault(t)
			require.Equal(t, fault.Denied, f.Code)
			require.Contains(t, f.Hint, "COORDINATOR_TOKEN")
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
			require.NotContains(t, a.body, secret)
		}
	}
	for _, scheme := range []string{"Bearer ", "bearer "} {
		require.Equal(t, 200, s.ask("GET", "/v1/jobs", "", "Authorization", scheme+secret).status)
	}
	// With a token, the name by which the service is called doesn't matter.
	require.Equal(t, 200, s.ask("GET", "/v1/jobs", "", "Authorization", "Bearer "+secret, "Host", "keyframe.example:7070").status)
	for _, path := range []string{"/healthz", "/readyz"} {
		require.Equal(t, 200, s.ask("GET", path, "").status, path)
	}

	wrong, err := NewClient(s.srv.URL, "another")
	require.NoError(t, err)
	defer wrong.Close()
	err = wrong.Call(t.Context(), "GET", "/jobs", nil, nil)
	require.Equal(t, fault.Denied, fault.CodeOf(err))
	require.NotContains(t, err.Error(), "another")
	require.NoError(t, s.client.Call(t.Context(), "GET", "/jobs", nil, nil))
}

func TestWebPagesCantReachAServiceWithoutToken(t *testing.T) {
	s := newService(t)
	host := strings.TrimPrefix(s.srv.URL, "http://")
	port := host[strings.LastIndexByte(host, ':'):]
	for _, headers := range [][]string{
		{"Host", "evil.example"}, // a name that was rebound to 127.0.0.1
		{"Host", "evil.example" + port},
		{"Host", "127.0.0.1.evil.example"},
		{"Host", "localhost.evil.example"},
		{"Host", "10.0.0.1" + port},
		{"Host", "[fe80::1]"},
		{"Origin", "http://evil.example"},
		{"Origin", "http://evil.example" + port},
		{"Origin", "null"},
		{"Origin", "http://127.0.0.1:1"}, // another service of this machine
		{"Origin", "http://localhost" + port},
		{"Origin", "://"},
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			a := s.ask(method, "/v1/jobs/flights", "", headers...)
			require.Equal(t, 403, a.status, "%s %v", method, headers)
			require.Equal(t, fault.Denied, a.fault(t).Code)
			require.Contains(t, a.fault(t).Hint, "api.tokenFile")
		}
	}
	for _, headers := range [][]string{
		{}, {"Host", "localhost" + port}, {"Host", "localhost"}, {"Host", "127.0.0.9"}, {"Host", "[::1]" + port}, {"Host", "[::1]"},
		{"Origin", s.srv.URL}, {"Host", "localhost" + port, "Origin", "http://localhost" + port},
	} {
		require.Equal(t, 200, s.ask("GET", "/v1/jobs", "", headers...).status, "%v", headers)
	}
}

func TestOverASocketAnyHostNameWillDo(t *testing.T) {
	s := newService(t)
	path := filepath.Join(t.TempDir(), "k.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.srv.Config.Serve(l) }()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "GET /v1/version HTTP/1.1\r\nHost: whatever\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, conn.Close())
	for _, addr := range []string{"unix:" + path, "unix://" + path} {
		c, err := NewClient(addr, "")
		require.NoError(t, err)
		var v Version
		require.NoError(t, c.Call(t.Context(), "GET", "/version", nil, &v))
		require.Equal(t, "1.2.3-test", v.Version)
		c.Close()
	}
	require.NoError(t, l.Close())
	require.Error(t, <-served)
}

func TestReadyOnceEveryJobHasBeenLookedAt(t *testing.T) {
	s := newService(t)
	require.Equal(t, "ready\n", s.ask("GET", "/readyz", "").body, "without jobs")
	hold := make(chan struct{})
	s.state.mu.Lock()
	s.state.looking = hold
	s.state.mu.Unlock()
	call[Job](s, http.MethodPut, "/jobs/slow", testJob("slow"))
	a := s.ask("GET", "/readyz", "")
	require.Equal(t, 503, a.status)
	require.Equal(t, "job \"slow\" is starting\n", a.body)
	require.Equal(t, "ok\n", s.ask("GET", "/healthz", "").body, "it lives all the same")
	close(hold)
	s.health("slow", coordinator.HealthWaiting)
	require.Equal(t, 200, s.ask("GET", "/readyz", "").status)
}

// TestTheTimeForTheBodyIsNotTheHandlers: a deadline on the connection ends the
// context of a handler that takes longer than it.
func TestTheTimeForTheBodyIsNotTheHandlers(t *testing.T) {
	const limit = 40 * time.Millisecond
	got := make(chan string, 1)
	srv := httptest.NewServer(readFirst(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			got <- err.Error()
			return
		}
		select {
		case <-r.Context().Done():
			got <- "ended by " + r.Context().Err().Error()
		case <-time.After(4 * limit):
			got <- string(body)
		}
	}), limit))
	defer srv.Close()
	resp, err := srv.Client().Post(srv.URL, "application/json", strings.NewReader(`{"whole":true}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, `{"whole":true}`, <-got)

	// A body that never ends is given up.
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nonly this")
	require.NoError(t, err)
	slow, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 400, slow.StatusCode)
	text, err := io.ReadAll(slow.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "in at most 40ms")
	require.NoError(t, conn.Close())
	require.Empty(t, got, "the handler didn't run")
}
