package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// Options is what the API serves and how.
type Options struct {
	Coordinator *coordinator.Coordinator
	Events      *EventLog
	Metrics     http.Handler // GET /metrics
	Version     string
	Token       string // of an admin, beside Keys
	// Keys are the tokens, ClientCerts the certificates that callers may come
	// with. Without any, only loopback and unix sockets are served.
	Keys []config.Key
	// Keyring holds Keys and can be given others while requests are served; nil
	// has them stay.
	Keyring     *Keyring
	ClientCerts []config.ClientCert
	Audit       *Auditor // nil writes no audit log
	// Alarms tells how hooks and heartbeats stand; nil is without any.
	Alarms func() Alarms
	// Spool is the directory in which an archive is kept while it is imported,
	// best that of the store; the system's for temporary files when empty.
	Spool string
	// MaxImport is the largest archive in bytes that may be imported;
	// config.DefaultMaxImport when 0.
	MaxImport int64
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
		ConnContext: markOver,
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
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { ready(w, r, o) })
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	return signed(cmp.Or(o.Version, "unknown"), bounded(newGate(o).guard(exact(readFirst(mux, bodyTimeout))), maxRequests))
}

// versionHeader is on every answer: by it the client knows a coordinator.
const versionHeader = "Keyframe-Version"

func signed(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		next.ServeHTTP(w, r)
	})
}

// exact refuses paths that the mux would answer with a redirect to another one
// (an empty name, "..", a doubled slash): the API never redirects, and what was
// meant for one thing must not reach another.
func exact(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := r.URL.EscapedPath()
		clean := path.Clean("/" + at)
		if strings.HasSuffix(at, "/") && clean != "/" {
			clean += "/"
		}
		if clean != at {
			writeProblem(w, http.StatusNotFound, fault.New(fault.Usage, "escape names in paths, and leave none empty; "+describeHint, "there is no path %s", at))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// readFirst reads the whole body before the handler runs: bounded in size, and
// in time, which must not bound what the handler then does.
func readFirst(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || streamed(r) {
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
		if c := callerOf(r.Context()); c != nil {
			c.body = body
		}
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
// store answers and changes can be written down.
func ready(w http.ResponseWriter, r *http.Request, o Options) {
	c := o.Coordinator
	if err := o.Audit.Check(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "changes are refused: %v\n", err) // the prober may be gone
		return
	}
	stats, err := c.StoreStats(r.Context())
	if err == nil && stats.Stopped != "" {
		err = errors.New(stats.Stopped)
	}
	if err != nil {
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
