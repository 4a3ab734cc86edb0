package redis

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// pendingPrefix begins the names of the keys that carry pending entries. No
// key that a checkpoint carries under its own name in the source section
// begins with it.
const pendingPrefix = "pending\x00"

// PendingKey names the list in the source section that carries the pending
// entries of one consumer group in one stream, in the order of their ids:
//
//	"pending" NUL {len(stream) in decimal} NUL {stream} {group}
//
// The length makes the name unambiguous whatever bytes stream and group hold.
// Each item is as [EncodePending] writes it. A group without pending entries
// has no such key.
func PendingKey(stream, group string) []byte {
	name := append([]byte(pendingPrefix), strconv.Itoa(len(stream))...)
	name = append(name, 0)
	name = append(name, stream...)
	return append(name, group...)
}

// ParsePendingKey takes apart what PendingKey made; false when it is another
// key.
func ParsePendingKey(name []byte) (stream, group string, ok bool) {
	rest, ok := bytes.CutPrefix(name, []byte(pendingPrefix))
	if !ok {
		return "", "", false
	}
	digits, rest, ok := bytes.Cut(rest, []byte{0})
	if !ok {
		return "", "", false
	}
	n, err := strconv.Atoi(string(digits))
	if err != nil || n < 0 || n > len(rest) || strconv.Itoa(n) != string(digits) {
		return "", "", false
	}
	return string(rest[:n]), string(rest[n:]), true
}

// Pending is an entry of a stream that was delivered to a consumer of a group
// and not acknowledged.
type Pending struct {
	ID          string // of the entry: {ms}-{seq}
	Consumer    string // any bytes
	DeliveredAt int64  // ms since 1970 by the server's clock, of the last delivery
	Deliveries  int64  // how often it was delivered
}

// EncodePending writes an entry as an item of its list:
//
//	{id} SP {delivered at, ms} SP {deliveries} SP {consumer}
//
// with decimal numbers; the consumer's bytes are the rest of the item.
func EncodePending(p Pending) ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	b := append([]byte(p.ID), ' ')
	b = strconv.AppendInt(b, p.DeliveredAt, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, p.Deliveries, 10)
	b = append(b, ' ')
	return append(b, p.Consumer...), nil
}

// DecodePending reads what EncodePending wrote; any other bytes are an error.
func DecodePending(item []byte) (Pending, error) {
	parts := bytes.SplitN(item, []byte{' '}, 4)
	if len(parts) != 4 {
		return Pending{}, badPending(item, errors.New("want four parts"))
	}
	at, err := strconv.ParseInt(string(parts[1]), 10, 64)
	if err != nil {
		return Pending{}, badPending(item, err)
	}
	n, err := strconv.ParseInt(string(parts[2]), 10, 64)
	if err != nil {
		return Pending{}, badPending(item, err)
	}
	p := Pending{ID: string(parts[0]), Consumer: string(parts[3]), DeliveredAt: at, Deliveries: n}
	if err := p.validate(); err != nil {
		return Pending{}, badPending(item, err)
	}
	return p, nil
}

func badPending(item []byte, why error) error {
	return fmt.Errorf("pending entry %.80q: %w", item, why)
}

func (p Pending) validate() error {
	if _, _, ok := parseStreamID(p.ID); !ok {
		return fmt.Errorf("id %q: want {ms}-{seq}", p.ID)
	}
	if p.DeliveredAt < 0 || p.Deliveries < 0 {
		return fmt.Errorf("delivered %d times, at %d ms: want no negative numbers", p.Deliveries, p.DeliveredAt)
	}
	return nil
}

// parseStreamID takes a stream entry's id apart.
func parseStreamID(id string) (ms, seq uint64, ok bool) {
	left, right, found := bytes.Cut([]byte(id), []byte{'-'})
	if !found {
		return 0, 0, false
	}
	ms, ok = parseDigits(left)
	if !ok {
		return 0, 0, false
	}
	seq, ok = parseDigits(right)
	return ms, seq, ok
}

// parseDigits reads a decimal number without a sign.
func parseDigits(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		d := uint64(c - '0')
		if c < '0' || c > '9' || n > (math.MaxUint64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
