package resp

import (
	"errors"
	"io"
)

// Sizes of buffers in bytes. The read buffer is also the longest line (status,
// error text, number) that is accepted; it begins small, as most connections
// are only asked short questions, and grows when reads fill it.
const (
	firstBuffer = 16 << 10
	readBuffer  = 256 << 10
	writeBuffer = 64 << 10
)

// errFull says that nothing more fits into the read buffer.
var errFull = errors.New("read buffer is full")

// buffered is what was read and not yet taken.
func (c *Conn) buffered() []byte { return c.in[c.at:c.end] }

// fill waits for more behind what is buffered, which it may move.
func (c *Conn) fill() error {
	if c.later != nil {
		return c.later
	}
	filled := c.end == len(c.in)
	if c.at > 0 {
		c.end = copy(c.in, c.in[c.at:c.end])
		c.at = 0
	}
	if filled && len(c.in) < readBuffer {
		larger := make([]byte, max(firstBuffer, 4*len(c.in)))
		copy(larger, c.in[:c.end])
		c.in = larger
	}
	if c.end == len(c.in) {
		return errFull
	}
	for range 100 { // as bufio does: a reader that gives nothing again and again is broken
		n, err := c.nc.Read(c.in[c.end:])
		c.end += n
		if n > 0 {
			c.later = err // of the next call
			return nil
		}
		if err != nil {
			c.later = err
			return err
		}
	}
	return io.ErrNoProgress
}

// need waits until n bytes are buffered, n far below readBuffer.
func (c *Conn) need(n int) error {
	for c.end-c.at < n {
		if err := c.fill(); err != nil {
			return err
		}
	}
	return nil
}

// readFull fills b: what is buffered first, then past the buffer what is as
// long as that.
func (c *Conn) readFull(b []byte) (n int, err error) {
	for {
		m := copy(b[n:], c.buffered())
		c.at += m
		if n += m; n == len(b) {
			return n, nil
		}
		if len(b)-n >= len(c.in) && len(c.in) > 0 && c.later == nil {
			m, err := io.ReadFull(c.nc, b[n:])
			return n + m, err
		}
		if err := c.fill(); err != nil {
			return n, err
		}
	}
}

// put appends to what is to be sent, and sends when that is much.
func (c *Conn) put(b []byte) error {
	if len(b) < writeBuffer {
		c.out = append(c.out, b...)
		return c.spill()
	}
	if err := c.send(); err != nil {
		return err
	}
	return c.write(b)
}

// spill sends when much is waiting.
func (c *Conn) spill() error {
	if len(c.out) < writeBuffer {
		return nil
	}
	return c.send()
}

// send sends what is waiting.
func (c *Conn) send() error {
	if len(c.out) == 0 {
		return nil
	}
	err := c.write(c.out)
	c.out = c.out[:0]
	return err
}

func (c *Conn) write(b []byte) error {
	n, err := c.nc.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}
