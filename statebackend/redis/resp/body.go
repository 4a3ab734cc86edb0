package resp

import "fmt"

// BodyLeft is how many bytes of the open bulk are still unread.
func (c *Conn) BodyLeft() int64 { return c.bodyLeft }

// Chunk lends the next bytes of the open bulk, between 1 and limit of them,
// or none (nil) when the body has ended. They are valid until the next call
// on the connection.
func (c *Conn) Chunk(limit int) ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	if !c.bodyOpen {
		return nil, nil
	}
	if c.bodyLeft == 0 {
		return nil, c.endBody()
	}
	if c.at == c.end {
		if err := c.fill(); err != nil {
			return nil, c.fail(fmt.Errorf("read reply: %w", eof(err)))
		}
	}
	n := int(min(int64(c.end-c.at), c.bodyLeft, int64(max(limit, 1))))
	b := c.in[c.at : c.at+n : c.at+n]
	c.at += n
	c.bodyLeft -= int64(n)
	return b, nil
}

// ReadBulk fills buf from the open bulk as far as its body goes and gives how
// many bytes that were; 0 when the body has ended.
func (c *Conn) ReadBulk(buf []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if !c.bodyOpen || (c.bodyLeft > 0 && len(buf) == 0) {
		return 0, nil
	}
	n, err := c.readFull(buf[:min(int64(len(buf)), c.bodyLeft)])
	if err != nil {
		return n, c.fail(fmt.Errorf("read reply: %w", eof(err)))
	}
	if c.bodyLeft -= int64(n); c.bodyLeft == 0 {
		return n, c.endBody()
	}
	return n, nil
}

// Skip reads the rest of the open bulk and drops it.
func (c *Conn) Skip() error {
	for c.bodyOpen {
		if _, err := c.Chunk(readBuffer); err != nil {
			return err
		}
	}
	return c.err
}

// SkipReply reads one whole reply, nested as it may be, and drops it. An
// error reply at its top is given as an *Error.
func (c *Conn) SkipReply() error {
	top, err := c.Next()
	if err != nil {
		return err
	}
	if err := c.Skip(); err != nil {
		return err
	}
	for left := elements(top); left > 0; left-- {
		h, err := c.Next()
		if err != nil {
			return err
		}
		if err := c.Skip(); err != nil {
			return err
		}
		if left += elements(h); left > maxSkip {
			return c.fail(fmt.Errorf("%w: nested arrays of over %d elements", ErrProtocol, int64(maxSkip)))
		}
	}
	if top.Err != nil {
		return top.Err
	}
	return nil
}

// maxSkip keeps SkipReply's count from overflowing.
const maxSkip = 1 << 50

// elements is how many replies follow a header.
func elements(h Header) int64 {
	if h.Kind == Array {
		return max(h.Len, 0)
	}
	return 0
}

// endBody reads the CR LF behind a bulk.
func (c *Conn) endBody() error {
	c.bodyOpen = false
	if err := c.need(2); err != nil {
		return c.fail(fmt.Errorf("read reply: %w", eof(err)))
	}
	if end := c.in[c.at : c.at+2]; end[0] != '\r' || end[1] != '\n' {
		return c.fail(fmt.Errorf("%w: %q behind a bulk", ErrProtocol, end))
	}
	c.at += 2
	return nil
}
