package alarm

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// sent sends one body to a URL, over the real network.
func sent(t *testing.T, target string, headers ...config.Header) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, context.DeadlineExceeded)
	defer cancel()
	return newPost(config.Hook{URL: target, Headers: headers}, Options{Version: "v"}).send(ctx, []byte("{}\n"))
}

func TestWhatAReceiverMayAnswer(t *testing.T) {
	other := &receiver{}
	elsewhere := httptest.NewServer(other)
	defer elsewhere.Close()
	r := &receiver{}
	server := httptest.NewServer(r)
	defer server.Close()
	var at atomic.Int64
	r.answers(func(_ int, w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/arrived":
		case strings.HasPrefix(req.URL.Path, "/far"):
			http.Redirect(w, req, elsewhere.URL+"/geheim", int(at.Load()))
		case req.URL.Path == "/loop":
			http.Redirect(w, req, "/loop", int(at.Load()))
		case req.URL.Path == "/near":
			http.Redirect(w, req, "/arrived", int(at.Load()))
		case req.URL.Path == "/flood":
			w.WriteHeader(int(at.Load()))
			for range 1000 {
				if _, err := io.WriteString(w, strings.Repeat("geheim", 1000)); err != nil {
					return
				}
			}
		default:
			w.WriteHeader(int(at.Load()))
		}
	})
	for _, c := range []struct {
		path string
		code int
		want string // "" for delivered
	}{
		{"/x", 200, ""}, {"/x", 202, ""}, {"/x", 204, ""},
		{"/x", 400, "it answered 400 Bad Request"}, {"/x", 404, "404"}, {"/x", 429, "429"}, {"/x", 500, "500"}, {"/x", 304, "it answered 304 and points to nowhere"},
		{"/flood", 200, ""}, {"/flood", 500, "500"},
		{"/near", 307, ""}, {"/near", 308, ""},
		{"/near", 301, "it answered 301 and points to " + server.URL}, {"/near", 302, "302"}, {"/near", 303, "303"}, // they would make a GET of it
		{"/far", 307, "it answered 307 and points to " + elsewhere.URL + ": set the URL"}, {"/far", 301, "301"},
		{"/loop", 307, "307"},
	} {
		at.Store(int64(c.code))
		err := sent(t, server.URL+c.path)
		if c.want == "" {
			require.NoError(t, err, "%+v", c)
			continue
		}
		require.ErrorContains(t, err, c.want, "%+v", c)
		require.NotContains(t, err.Error(), "geheim")
	}
	require.Empty(t, other.requests(), "nothing was sent to another host")
	for _, q := range r.requests() {
		require.Equal(t, "POST", q.method)
		require.Equal(t, "{}\n", q.body)
	}
}

func TestAReceiverThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	for _, target := range []string{
		"http://geheim:geheim@" + addr + "/geheim?geheim", "https://" + addr + "/geheim", "http://no-such-host.invalid/geheim",
	} {
		err := sent(t, target)
		require.Error(t, err, target)
		require.NotContains(t, err.Error(), "geheim")
	}
	// One that takes connections and says nothing, and one that is no HTTP.
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, io.ErrNoProgress)
	defer cancel()
	err = newPost(config.Hook{URL: "http://" + mute.Addr().String() + "/geheim"}, Options{}).send(ctx, []byte("{}"))
	require.ErrorIs(t, err, io.ErrNoProgress)
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer garbage.Close()
	go func() {
		if c, err := garbage.Accept(); err == nil {
			// Once it is asked: what comes before is an idle connection's.
			_, _ = c.Read(make([]byte, 64))
			_, _ = io.WriteString(c, "SSH-2.0-x\r\n\r\n") // the test looks at the other end
			_ = c.Close()
		}
	}()
	err = sent(t, "http://"+garbage.Addr().String()+"/geheim")
	require.ErrorContains(t, err, "malformed HTTP")
	require.NotContains(t, err.Error(), "geheim")
}

func TestACertificateThatNobodyTrustsIsRefused(t *testing.T) {
	r := &receiver{}
	server := httptest.NewUnstartedServer(r)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of the handshake
	server.StartTLS()
	defer server.Close()
	err := sent(t, server.URL+"/geheim")
	require.ErrorContains(t, err, "certificate")
	require.NotContains(t, err.Error(), "geheim")
	require.Empty(t, r.requests())
}

// Secrets are read anew for each try, so that a changed file counts; what is
// wrong with them is told without them.
func TestHeadersAndURLsFromFiles(t *testing.T) {
	r := &receiver{}
	server := httptest.NewServer(r)
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	t.Setenv("ALARM_KEY", "from-env")
	spec := config.Hook{URLFile: write("url", server.URL+"/one\n"), Headers: []config.Header{
		{Name: "Authorization", File: write("token", "Bearer first\n")}, {Name: "X-Key", Env: "ALARM_KEY"}, {Name: "X-Source", Value: "keyframe"}}}
	p := newPost(spec, Options{})
	require.Equal(t, server.URL, p.target())
	require.NoError(t, p.send(t.Context(), []byte("{}")))
	write("url", server.URL+"/two\n")
	write("token", "Bearer second\n")
	require.NoError(t, p.send(t.Context(), []byte("{}")))
	got := r.requests()
	require.Equal(t, []string{"/one", "/two"}, []string{got[0].path, got[1].path})
	require.Equal(t, "Bearer first", got[0].header.Get("Authorization"))
	require.Equal(t, "Bearer second", got[1].header.Get("Authorization"))
	require.Equal(t, "from-env", got[0].header.Get("X-Key"))
	require.Equal(t, "keyframe", got[0].header.Get("X-Source"))

	write("token", "gehe\x01im\n")
	err := p.send(t.Context(), []byte("{}"))
	require.ErrorContains(t, err, "no HTTP header carries")
	require.NotContains(t, err.Error(), "im")
	require.NoError(t, os.Remove(filepath.Join(dir, "token")))
	require.ErrorContains(t, p.send(t.Context(), []byte("{}")), "can't be read")
	write("url", "geheim\n")
	err = p.send(t.Context(), []byte("{}"))
	require.ErrorContains(t, err, "it is no URL")
	require.NotContains(t, err.Error(), "geheim")
	require.Equal(t, "(no URL)", newPost(spec, Options{}).target())
	require.Len(t, r.requests(), 2)
}

func TestThePathOfAHeartbeatThatFails(t *testing.T) {
	r := &receiver{}
	server := httptest.NewServer(r)
	defer server.Close()
	u, err := url.Parse(server.URL + "/ping/a%2Fb?x=1")
	require.NoError(t, err)
	w := newWeb(Options{}, func() (*url.URL, error) { c := *u; return &c, nil }, nil)
	require.NoError(t, w.ask(t.Context(), "GET", "", nil))
	require.NoError(t, w.ask(t.Context(), "GET", "/fail", nil))
	require.Equal(t, "/ping/a/b", r.requests()[0].path)
	require.Equal(t, "/ping/a/b/fail", r.requests()[1].path)
	require.Empty(t, r.requests()[0].header.Get("Content-Type"))
}

// A notice's message is bounded, whatever a panic says.
func TestALongMessageIsCut(t *testing.T) {
	n := Notice{Event: coordinator.Event{Kind: coordinator.EventJobPanicked, Message: strings.Repeat("π", maxMessage)}}
	b, err := n.encode()
	require.NoError(t, err)
	require.Less(t, len(b), maxMessage+1000)
	require.Contains(t, string(b), "ππ …")
	require.True(t, strings.HasSuffix(string(b), "}\n"))
	require.Len(t, n.Event.Message, 2*maxMessage, "the event is left alone")
}
