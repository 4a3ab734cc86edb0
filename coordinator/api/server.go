package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// Options is what the API serves and how.
type Options struct {
	Coordinator *coordinator.Coordinator
	Events      *EventLog
	Metrics     http.Handler // GET /metrics
	Version     string
	Token       string // "" asks for none: loopback and unix sockets only
}

// Limits on requests and answers.
const (
	maxBody       = 1 << 20
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxWait       = 30 * time.Second // of a long poll
)

// NewServer is an http.Server for the API, to be served on any listener.
func NewServer(o Options) *http.Server {
	// There is no ReadTimeout: it would end the context of a handler that
	// takes longer, such as a long poll or the plan of a large restore.
	return &http.Server{
		Handler: Handler(o), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
}

// Handler is the whole API as a handler.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	register(newAPI(mux, o.Version), o)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, http.StatusNotFound, fault.New(fault.Usage, describeHint, "this coordinator (version %s) has no %s %s", o.Version, r.Method, r.URL.EscapedPath()))
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober may be gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { ready(w, r, o.Coordinator) })
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	return signed(cmp.Or(o.Version, "unknown"), guard(o.Token, readFirst(mux, bodyTimeout)))
}

// versionHeader is on every answer: by it the client knows a coordinator.
const versionHeader = "Keyframe-Version"

func signed(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		next.ServeHTTP(w, r)
	})
}

// readFirst reads the whole body before the handler runs: bounded in size, and
// in time, which must not bound what the handler then does.
func readFirst(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		conn := http.NewResponseController(w)
		// A writer without deadlines is a test's; its bodies are in memory.
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			writeProblem(w, http.StatusRequestEntityTooLarge, fault.New(fault.TooLarge, "", "the request is larger than %d bytes", maxBody))
			return
		case err != nil:
			writeProblem(w, http.StatusBadRequest, fault.Wrap(err, fault.Usage, "send it again", "read the request (in at most %s)", limit))
			return
		}
		_ = conn.SetReadDeadline(time.Time{}) // as above
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

func newAPI(mux *http.ServeMux, version string) huma.API {
	c := huma.DefaultConfig("Keyframe coordinator", version)
	c.DocsPath = "" // its page would load scripts from another host
	c.CreateHooks = nil
	c.Components.Schemas = schemas()
	c.Info.Description = "Checkpoint, restore and rescale the state of streaming jobs."
	return humago.New(mux, c)
}

// ready answers 200 once every job has been looked at, while the checkpoint
// store answers.
func ready(w http.ResponseWriter, r *http.Request, c *coordinator.Coordinator) {
	if _, err := c.StoreStats(r.Context()); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "checkpoint store: %v\n", err) // the prober may be gone
		return
	}
	for _, j := range c.Jobs() {
		if j.Health.State == coordinator.HealthStarting {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintf(w, "job %q is starting\n", j.Name) // the prober may be gone
			return
		}
	}
	_, _ = w.Write([]byte("ready\n")) // the prober may be gone
}

// guard asks for the token where there is one. Where there is none, it keeps
// web pages of other hosts from reaching a loopback address through the
// operator's browser.
func guard(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		if token == "" {
			if !(overSocket(r) || localHost(r.Host)) || !sameOrigin(r) {
				writeProblem(w, http.StatusForbidden, fault.New(fault.Denied, "call it as 127.0.0.1, localhost or through its socket, or set api.tokenFile", "host %q or origin %q is not served without a token", r.Host, r.Header.Get("Origin")))
				return
			}
		} else if got := sha256.Sum256([]byte(bearer(r))); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(w, http.StatusUnauthorized, fault.New(fault.Denied, "set COORDINATOR_TOKEN to the token of this coordinator", "the API token is missing or wrong"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bearer is the token that a request carries, "" when it carries none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// overSocket reports whether the request came through a unix socket, which no
// web page can reach.
func overSocket(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && at.Network() == "unix"
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

func versionOf(version string) Version {
	return Version{Version: version, Go: runtime.Version(), Format: snapshot.FormatVersion}
}

// waitFor gives the status of an operation, after at most wait when it hasn't
// ended.
func waitFor(ctx context.Context, op *coordinator.Operation, wait time.Duration) coordinator.Status {
	ctx, cancel := context.WithTimeout(ctx, min(wait, maxWait))
	defer cancel()
	// The error is the context's: then the status says how far it is.
	s, _ := op.Wait(ctx)
	return s
}
