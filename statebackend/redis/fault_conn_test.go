package redis

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
)

var errCut = fmt.Errorf("cut by the test: %w", syscall.ECONNRESET)

// fault cuts every connection of a backend at its k-th command: before the
// server gets it, or after the server has answered it and before we hear.
type fault struct {
	mu     sync.Mutex
	left   int // commands that still go through
	silent bool
	cut    bool
	seen   int // commands so far
}

func (f *fault) wrap(nc net.Conn) net.Conn { return &faultConn{Conn: nc, f: f} }

// take reports whether the next command goes through, and whether it is the
// last whose answer must be swallowed.
func (f *fault) take() (pass, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return false, false
	}
	f.seen++
	f.left--
	if f.left > 0 {
		return true, false
	}
	f.cut = true
	return f.silent, f.silent
}

func (f *fault) isCut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut
}

// faultConn splits what is written into commands.
type faultConn struct {
	net.Conn
	f       *fault
	pending []byte // an unfinished command
	swallow bool   // the command whose answer we must not hear was on this connection
}

func (c *faultConn) Write(b []byte) (int, error) {
	c.pending = append(c.pending, b...)
	for {
		n := commandLength(c.pending)
		if n == 0 {
			return len(b), nil
		}
		pass, last := c.f.take()
		if pass {
			if _, err := c.Conn.Write(c.pending[:n]); err != nil {
				return 0, err
			}
		}
		c.pending = append([]byte(nil), c.pending[n:]...)
		if last {
			c.swallow = true
			var answer [64 << 10]byte
			// Whatever comes means that the server got to this command or to
			// one before it; the Read of the commands before is lost too.
			_, err := c.Conn.Read(answer[:])
			return 0, errors.Join(errCut, err, c.Conn.Close())
		}
		if !pass {
			return 0, errors.Join(errCut, c.Conn.Close())
		}
	}
}

func (c *faultConn) Read(b []byte) (int, error) {
	if c.f.isCut() {
		return 0, errors.Join(errCut, c.Conn.Close())
	}
	return c.Conn.Read(b)
}

// commandLength is the length of the first whole command in b, 0 when it
// isn't whole yet.
func commandLength(b []byte) int {
	line := func(at int) (n, next int) {
		end := bytes.Index(b[at:], []byte("\r\n"))
		if end < 0 {
			return 0, -1
		}
		n, err := strconv.Atoi(string(b[at+1 : at+end]))
		if err != nil {
			panic("not a command: " + strconv.Quote(string(b[at:at+end])))
		}
		return n, at + end + 2
	}
	if len(b) == 0 {
		return 0
	}
	args, at := line(0)
	for ; at > 0 && args > 0; args-- {
		var size int
		if size, at = line(at); at < 0 {
			return 0
		}
		if at += size + 2; at > len(b) {
			return 0
		}
		if args > 1 && at == len(b) {
			return 0
		}
	}
	return max(0, at)
}
