package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// clientName is what our connections are called in CLIENT LIST.
const clientName = "keyframe"

// Backend is the state store of one Redis server. Safe for concurrent use.
type Backend struct {
	addr   address
	client *redis.Client
	// wrap lets tests stand between us and the server: it is applied to each
	// connection. nil in the product.
	wrap   atomic.Pointer[func(net.Conn) net.Conn]
	tracks *trackers
}

// quiet stops go-redis from logging: what goes wrong is returned.
var quiet = sync.OnceFunc(logging.Disable)

// Open checks the configuration and, unless it is Lazy, that the server
// answers. Errors: ErrInvalidConfig, ErrAuth, ErrUnreachable (all wrapped);
// none of them contains a password.
func Open(ctx context.Context, c Config) (*Backend, error) {
	addr, err := parse(c)
	if err != nil {
		return nil, err
	}
	quiet()
	b := &Backend{addr: addr}
	if b.tracks, err = newTrackers(b, c.Tracking); err != nil {
		return nil, err
	}
	b.client = redis.NewClient(&redis.Options{
		Network: addr.network, Addr: addr.addr, DB: addr.db,
		Username: addr.user, Password: addr.password,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return b.connect(ctx) },
		OnConnect: func(ctx context.Context, cn *redis.Conn) error {
			// For people who look at CLIENT LIST; a user may lack the right.
			_ = cn.ClientSetName(ctx, clientName).Err()
			return nil
		},
		Protocol: 2, DisableIdentity: true,
		// A command whose answer was lost may have been executed: whether it
		// may be sent again is for the caller to know.
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: addr.timeout, ReadTimeout: addr.timeout, WriteTimeout: addr.timeout,
		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	b.client.AddHook(endedHook{})
	if c.Lazy {
		return b, nil
	}
	if err := b.client.Ping(ctx).Err(); err != nil {
		_ = b.client.Close() // the error of the ping is the one that counts
		return nil, b.mapError(err, "connect")
	}
	return b, nil
}

// Server is the address for a checkpoint's identity: scheme://host:port/db,
// never with a user or a password.
func (b *Backend) Server() string { return b.addr.server() }

// Close detaches from the server's stream of writes and frees the connections. Calls after it fail with ErrClosed.
func (b *Backend) Close() error {
	err := b.tracks.close()
	if err := errors.Join(err, b.client.Close()); err != nil {
		return b.mapError(err, "close")
	}
	return nil
}

func (b *Backend) connect(ctx context.Context) (net.Conn, error) {
	nc, err := b.addr.connect(ctx)
	if wrap := b.wrap.Load(); err == nil && wrap != nil {
		nc = (*wrap)(nc)
	}
	return nc, err
}

// connect opens one connection, with TLS where the address says so.
func (a address) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, a.network, a.addr)
	if err != nil || a.tls == nil {
		return conn, err
	}
	secure := tls.Client(conn, a.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake's error is the one that counts
		return nil, &tlsError{err}
	}
	return secure, nil
}

// tlsError is a failed TLS handshake, told apart for its remedy.
type tlsError struct{ err error }

func (e *tlsError) Error() string {
	return fmt.Sprintf("TLS handshake: %v (does the server speak TLS on this port, with a certificate of this authority?)", e.err)
}

func (e *tlsError) Unwrap() error { return e.err }
