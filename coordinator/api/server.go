package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"reflect"
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
	Token       string // "" asks for none: loopback and unix sockets only
}

// Limits on requests and answers.
const (
	maxBody       = 1 << 20
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxWait       = 30 * time.Second // of a long poll
)

// NewServer is an http.Server for the API, to be served on any listener.
func NewServer(o Options) *http.Server {
	return &http.Server{
		Handler: Handler(o), ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
}

// Handler is the whole API as a handler.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	register(newAPI(mux, o.Version), o)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober may be gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, o.Coordinator) })
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	return guard(o.Token, http.MaxBytesHandler(mux, maxBody))
}

func newAPI(mux *http.ServeMux, version string) huma.API {
	huma.NewError = layerError
	c := huma.DefaultConfig("Keyframe coordinator", version)
	c.DocsPath = "" // its page would load scripts from another host
	c.CreateHooks = nil
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[config.Duration](), reflect.TypeFor[string]())
	c.Components.Schemas.RegisterTypeAlias(reflect.TypeFor[snapshot.ChunkID](), reflect.TypeFor[string]())
	c.Info.Description = "Checkpoint, restore and rescale the state of streaming jobs."
	return humago.New(mux, c)
}

// ready answers 200 once every job has been looked at.
func ready(w http.ResponseWriter, c *coordinator.Coordinator) {
	for _, j := range c.Jobs() {
		if j.Health.State == coordinator.HealthStarting {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("job " + j.Name + " is starting\n")) // the prober may be gone
			return
		}
	}
	_, _ = w.Write([]byte("ready\n")) // the prober may be gone
}

// guard asks for the token where there is one. Where there is none, it keeps
// web pages of other hosts from reaching a loopback address through the
// operator's browser.
func guard(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		if token == "" {
			if !localHost(r.Host) || !sameOrigin(r) {
				writeProblem(w, fault.New(fault.Denied, "call it as 127.0.0.1, localhost or through its socket, or set api.tokenFile", "host %q or origin %q is not served without a token", r.Host, r.Header.Get("Origin")))
				return
			}
		} else if got := sha256.Sum256([]byte(r.Header.Get("Authorization"))); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			writeProblem(w, fault.New(fault.Denied, "set COORDINATOR_TOKEN to the token of this coordinator", "the API token is missing or wrong"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || host == unixHost {
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
