package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"keyframe/coordinator/fault"
)

// Bounds of how many are served at once.
const (
	// MaxConnections may be open; the next ones are told to come later.
	MaxConnections = 512
	// refusals is how many more are kept open to be told so; further ones are
	// closed without a word.
	refusals = 64
	// maxRequests may be under way at once over all connections.
	maxRequests = 1024
)

// Limit bounds the open connections of a listener that NewServer serves. It
// goes beneath TLS.
func Limit(l net.Listener, most int) net.Listener { return &limited{Listener: l, most: int64(most)} }

type limited struct {
	net.Listener
	most int64
	open atomic.Int64
}

var _ net.Listener = (*limited)(nil)

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := l.open.Add(1)
		if n > l.most+refusals {
			l.open.Add(-1)
			_ = c.Close() // nothing was said on it
			continue
		}
		return &limitedConn{Conn: c, from: l, over: n > l.most}, nil
	}
}

// limitedConn is a connection that is counted until it is closed.
type limitedConn struct {
	net.Conn
	from *limited
	over bool // it is only told to come later
	once sync.Once
}

var _ net.Conn = (*limitedConn)(nil)

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.once.Do(func() { c.from.open.Add(-1) })
	return c.Conn.Close()
}

type overKey struct{}

// markOver tells the requests of a connection that is one too many.
func markOver(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if l, ok := c.(*limitedConn); ok && l.over {
		return context.WithValue(ctx, overKey{}, true)
	}
	return ctx
}

// bounded answers 503 to what is over the bounds.
func bounded(next http.Handler, most int64) http.Handler {
	var running atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer running.Add(-1)
		over := r.Context().Value(overKey{}) != nil
		if n := running.Add(1); n <= most && !over {
			next.ServeHTTP(w, r)
			return
		}
		what := "requests are under way"
		if over {
			what = "connections are open"
		}
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, fault.New(fault.Busy, "try again in a moment, and see who holds so many", "too many %s", what))
	})
}
