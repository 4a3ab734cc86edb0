package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"keyframe/statebackend/redis/resp"
)

// dial opens a raw connection from the same options as the client's:
// authenticated, on the right database, named. Each read and write of it may
// wait for the store's timeout without progress, then fails.
func (b *Backend) dial(ctx context.Context) (*resp.Conn, error) {
	return b.dialPatient(ctx, b.addr.timeout)
}

// dialPatient is dial for a command that may take the server longer.
func (b *Backend) dialPatient(ctx context.Context, timeout time.Duration) (*resp.Conn, error) {
	return b.dialThrough(ctx, timeout, func(nc net.Conn) net.Conn { return nc })
}

// dialLimited is dial for reading no faster than a limiter allows.
func (b *Backend) dialLimited(ctx context.Context, limit *limiter) (*resp.Conn, error) {
	return b.dialThrough(ctx, b.addr.timeout, func(nc net.Conn) net.Conn { return &limitedConn{Conn: nc, limit: limit} })
}

func (b *Backend) dialThrough(ctx context.Context, timeout time.Duration, wrap func(net.Conn) net.Conn) (*resp.Conn, error) {
	nc, err := b.connect(ctx)
	if err != nil {
		return nil, b.mapError(ended(ctx, err), "connect")
	}
	conn := resp.NewConn(wrap(&stallConn{Conn: nc, timeout: timeout}))
	release := conn.Bind(ctx)
	err = b.greet(conn)
	release()
	if err != nil {
		_ = conn.Close() // the greeting's error is the one that counts
		return nil, b.mapError(err, "connect")
	}
	return conn, nil
}

// greet makes a connection ours, on the store's database.
func (b *Backend) greet(conn *resp.Conn) error { return b.greetIn(conn, b.addr.db) }

// greetIn sends AUTH, SELECT and CLIENT SETNAME in one go.
func (b *Backend) greetIn(conn *resp.Conn, db int) error {
	var cmds [][]string
	if b.addr.password != "" {
		// As go-redis says it: then a server without a password takes any.
		user := b.addr.user
		if user == "" {
			user = "default"
		}
		cmds = append(cmds, []string{"AUTH", user, b.addr.password})
	}
	if db != 0 {
		cmds = append(cmds, []string{"SELECT", strconv.Itoa(db)})
	}
	cmds = append(cmds, []string{"CLIENT", "SETNAME", clientName})
	for _, cmd := range cmds {
		if err := conn.Command(cmd...); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	var first error
	for i, cmd := range cmds {
		h, err := conn.Next()
		if err != nil {
			return err
		}
		// The name is for people who look at CLIENT LIST: a user may lack
		// the right to set it, and nothing depends on it. But it is the last
		// command, and also tells that the server wants a password.
		cosmetic := i == len(cmds)-1 && h.Err != nil && h.Err.Code == "NOPERM"
		if h.Err != nil && first == nil && !cosmetic {
			first = fmt.Errorf("%s: %w", cmd[0], h.Err)
		}
	}
	return first
}

// stallConn fails a read or write that makes no progress for the timeout, and
// keeps to the deadline that is set from outside.
type stallConn struct {
	net.Conn
	timeout time.Duration

	mu   sync.Mutex
	hard time.Time // zero for none
}

func (c *stallConn) Read(b []byte) (int, error) {
	if err := c.arm(c.Conn.SetReadDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *stallConn) Write(b []byte) (int, error) {
	if err := c.arm(c.Conn.SetWriteDeadline); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *stallConn) arm(set func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(c.timeout)
	if !c.hard.IsZero() && c.hard.Before(at) {
		at = c.hard
	}
	return set(at)
}

// SetDeadline is a deadline that progress doesn't move.
func (c *stallConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hard = t
	return c.Conn.SetDeadline(t)
}

// isReply tells an error reply of the server, after which a connection goes
// on, from an error of the connection.
func isReply(err error) bool {
	var e *resp.Error
	return errors.As(err, &e)
}
