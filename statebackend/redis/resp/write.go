package resp

import (
	"fmt"
	"strconv"
)

// Command writes a whole command into the buffer. Nothing is sent before the
// buffer is full or Flush is called.
func (c *Conn) Command(args ...string) error {
	if err := c.BeginCommand(len(args)); err != nil {
		return err
	}
	for _, a := range args {
		if err := c.ArgString(a); err != nil {
			return err
		}
	}
	return nil
}

// BeginCommand opens a command of n arguments, its name among them; exactly n
// calls of Arg, ArgString, ArgInt or ArgHeader follow.
func (c *Conn) BeginCommand(n int) error {
	if err := c.ready(); err != nil {
		return err
	}
	if n < 1 {
		return c.misuse("a command has at least one argument")
	}
	c.argsLeft = n
	c.header('*', int64(n))
	return nil
}

// Arg writes one argument. The bytes may be reused after the call.
func (c *Conn) Arg(b []byte) error {
	if err := c.ArgHeader(int64(len(b))); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// ArgString writes one argument.
func (c *Conn) ArgString(s string) error {
	if err := c.ArgHeader(int64(len(s))); err != nil || s == "" {
		return err
	}
	c.argLeft = 0
	if len(s) < writeBuffer {
		c.out = append(c.out, s...)
		return c.closeArg()
	}
	if err := c.put([]byte(s)); err != nil {
		return c.fail(fmt.Errorf("write: %w", err))
	}
	return c.closeArg()
}

// ArgInt writes a number in decimal as one argument.
func (c *Conn) ArgInt(n int64) error {
	var digits [20]byte
	return c.Arg(strconv.AppendInt(digits[:0], n, 10))
}

// ArgHeader opens one argument of size bytes, which calls of Write bring, in
// as many pieces as they like (none for size 0).
func (c *Conn) ArgHeader(size int64) error {
	if c.err != nil {
		return c.err
	}
	switch {
	case c.argOpen:
		return c.misuse(fmt.Sprintf("%d bytes of the last argument are missing", c.argLeft))
	case c.argsLeft == 0:
		return c.misuse("more arguments than the command was opened with")
	case size < 0:
		return c.misuse(fmt.Sprintf("argument of %d bytes", size))
	}
	c.argsLeft--
	c.argOpen, c.argLeft = true, size
	c.header('$', size)
	if size == 0 {
		return c.closeArg()
	}
	return nil
}

// Write brings bytes of the argument that ArgHeader opened.
func (c *Conn) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(b) == 0 {
		return 0, nil
	}
	if !c.argOpen || int64(len(b)) > c.argLeft {
		return 0, c.misuse(fmt.Sprintf("%d bytes written where an argument takes %d", len(b), c.argLeft))
	}
	if err := c.put(b); err != nil {
		return 0, c.fail(fmt.Errorf("write: %w", err))
	}
	if c.argLeft -= int64(len(b)); c.argLeft == 0 {
		return len(b), c.closeArg()
	}
	return len(b), nil
}

// Flush sends what is buffered. The last command must be whole.
func (c *Conn) Flush() error {
	if err := c.ready(); err != nil {
		return err
	}
	if err := c.send(); err != nil {
		return c.fail(fmt.Errorf("write: %w", err))
	}
	return nil
}

// ready checks that no command is open.
func (c *Conn) ready() error {
	if c.err != nil {
		return c.err
	}
	if c.argOpen || c.argsLeft != 0 {
		return c.misuse(fmt.Sprintf("the last command lacks %d arguments, its last argument %d bytes", c.argsLeft, c.argLeft))
	}
	return nil
}

func (c *Conn) closeArg() error {
	c.argOpen = false
	c.out = append(c.out, '\r', '\n')
	if err := c.spill(); err != nil {
		return c.fail(fmt.Errorf("write: %w", err))
	}
	return nil
}

func (c *Conn) header(kind byte, n int64) {
	c.out = append(c.out, kind)
	c.out = strconv.AppendInt(c.out, n, 10)
	c.out = append(c.out, '\r', '\n')
}
