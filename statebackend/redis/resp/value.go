package resp

import (
	"errors"
	"fmt"
)

// ErrTooLarge (wrapped) says that a reply was larger than the caller allowed.
// It ends the connection.
var ErrTooLarge = errors.New("reply is too large")

// Value is a whole reply in memory.
type Value struct {
	Kind  Kind
	Int   int64
	Nil   bool
	Bytes []byte  // of a bulk or a status; the caller's own
	Array []Value // of an array
	Err   *Error  // of an error reply inside an array
}

// String is the text of a bulk or a status.
func (v Value) String() string { return string(v.Bytes) }

// maxDepth bounds nested arrays; no command of Redis comes near it.
const maxDepth = 32

// valueCost is what one reply costs of the limit beside its bytes: about what
// a Value takes in memory.
const valueCost = 96

// Reply reads one whole reply into memory. An error reply at its top is given
// as an *Error; one inside an array is in its Value. limit bounds the memory
// in bytes: a larger reply ends the connection with ErrTooLarge.
func (c *Conn) Reply(limit int64) (Value, error) {
	left := limit
	v, err := c.value(&left, 0)
	if err != nil {
		return Value{}, err
	}
	if v.Err != nil {
		return Value{}, v.Err
	}
	return v, nil
}

func (c *Conn) value(left *int64, depth int) (Value, error) {
	h, err := c.Next()
	if err != nil {
		return Value{}, err
	}
	v := Value{Kind: h.Kind, Int: h.Int, Err: h.Err, Nil: h.Nil()}
	size := int64(valueCost) + int64(len(h.Text))
	if h.Kind == Bulk && h.Len > 0 {
		size += h.Len
	}
	if *left -= size; *left < 0 {
		return Value{}, c.fail(fmt.Errorf("%w: over the limit by %d bytes", ErrTooLarge, -*left))
	}
	switch {
	case v.Nil:
	case h.Kind == Simple:
		v.Bytes = []byte(h.Text)
	case h.Kind == Bulk:
		v.Bytes = make([]byte, h.Len) // within the limit
		if _, err := c.ReadBulk(v.Bytes); err != nil {
			return Value{}, err
		}
	case h.Kind == Array:
		v.Array, err = c.array(h.Len, left, depth+1)
	}
	return v, err
}

func (c *Conn) array(n int64, left *int64, depth int) ([]Value, error) {
	if depth > maxDepth {
		return nil, c.fail(fmt.Errorf("%w: arrays nested %d deep", ErrProtocol, depth))
	}
	if n > *left/valueCost {
		return nil, c.fail(fmt.Errorf("%w: array of %d elements", ErrTooLarge, n))
	}
	// Grown by what arrives, not by what was announced.
	all := make([]Value, 0, min(n, 1024))
	for range n {
		v, err := c.value(left, depth)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// Call sends one command and reads its reply, when no other is outstanding.
func (c *Conn) Call(limit int64, args ...string) (Value, error) {
	if err := c.Command(args...); err != nil {
		return Value{}, err
	}
	if err := c.Flush(); err != nil {
		return Value{}, err
	}
	return c.Reply(limit)
}
