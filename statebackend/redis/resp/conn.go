// Package resp is a small RESP2 client connection for pipelined bulk work with
// bounded memory: commands are streamed out, replies are streamed in.
//
// A [Conn] never holds more of a reply than its buffers and what the caller
// asked for, whatever lengths the server announces. Anything that isn't RESP2
// is an error, and an error of the connection (unlike an error reply, which is
// an [Error]) is final: the stream's place is lost, so every later call gives
// the same error.
package resp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// ErrProtocol (wrapped) says that the peer sent something that isn't RESP2.
var ErrProtocol = errors.New("not a RESP2 reply")

// ErrMisuse (wrapped) says that the caller broke the order of calls.
var ErrMisuse = errors.New("resp: calls out of order")

// Stopped is the error of a call that its context has ended. It is the
// context's cause; what the network said of being cut off is only told.
type Stopped struct {
	Cause error // of the context
	After error
}

// Error tells both.
func (e *Stopped) Error() string { return fmt.Sprintf("%v (%v)", e.Cause, e.After) }

// Unwrap gives the cause alone: the network is not to blame.
func (e *Stopped) Unwrap() error { return e.Cause }

// Conn is one connection. It is used by one goroutine; only Close and
// SetDeadline may be called from another.
type Conn struct {
	nc net.Conn

	in      []byte // buffer of what was read: in[at:end] is to be taken
	at, end int
	later   error  // of the network, behind what is buffered
	out     []byte // to be sent

	err error // sticky

	argsLeft int   // arguments of the open command that are still to come
	argLeft  int64 // bytes of the streamed argument that are still to come
	argOpen  bool

	bodyLeft int64 // bytes of the open bulk body that are still to be read
	bodyOpen bool

	mu       sync.Mutex
	deadline time.Time
	stopped  error // why a bound context ended
}

// NewConn takes over an open, authenticated network connection.
func NewConn(nc net.Conn) *Conn {
	return &Conn{nc: nc}
}

// Close closes the network connection. It may be called twice and from
// another goroutine, whose read or write then fails.
func (c *Conn) Close() error {
	if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close connection: %w", err)
	}
	return nil
}

// Err is the error that ended the connection, nil while it works.
func (c *Conn) Err() error { return c.err }

// SetDeadline ends every read and write that is not done by t; the zero time
// takes the deadline back. It has no effect once a bound context has ended.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.stopped != nil {
		return nil
	}
	if err := c.nc.SetDeadline(t); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	return nil
}

// Bind makes the end of ctx end the reads and writes of the connection, whose
// error is then a [Stopped] with the context's cause. release ends the binding; it may be
// called twice. A connection that was ended this way stays dead.
func (c *Conn) Bind(ctx context.Context) (release func()) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stopped = context.Cause(ctx)
		// Fails only on a closed connection, whose reads fail anyway.
		_ = c.nc.SetDeadline(time.Unix(1, 0))
	})
	return func() { stop() }
}

// fail makes err the connection's final error.
func (c *Conn) fail(err error) error {
	if c.err != nil {
		return c.err
	}
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	if stopped != nil {
		err = &Stopped{Cause: stopped, After: err}
	}
	c.err = err
	return c.err
}

func (c *Conn) misuse(what string) error {
	return c.fail(fmt.Errorf("%w: %s", ErrMisuse, what))
}
