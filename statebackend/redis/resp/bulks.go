package resp

import "fmt"

// lendMost is up to how many bytes a group of bulks is lent, its headers
// included: so it always fits into the buffer.
const (
	lendMost   = 64 << 10
	lendDigits = 5 // of that number
)

// Bulks appends to into the bodies of the bulks that come next, in groups of
// width: as many groups as are in the buffer, but no more than most bulks. It
// waits for one group. It gives none when the next group can't be lent, since
// a part of it is no bulk, nil, malformed, or long: Next reads what it is. The
// bodies are valid until the next call on the connection.
//
// It is what a loop of Next and ReadBulk does, at a fraction of the cost.
func (c *Conn) Bulks(into [][]byte, width, most int) ([][]byte, error) {
	if err := c.settled(); err != nil {
		return into, err
	}
	for {
		had := len(into)
		var state cut
		into, state = c.lend(into, width, most)
		if len(into) > had || state != cutShort || most < width {
			return into, nil
		}
		if err := c.fill(); err != nil {
			return into, c.fail(fmt.Errorf("read reply: %w", eof(err)))
		}
	}
}

// lend takes whole groups out of the buffer.
func (c *Conn) lend(into [][]byte, width, most int) ([][]byte, cut) {
	for most -= width; most >= 0; most -= width {
		at, had := c.at, len(into)
		for range width {
			from, to, state := cutBulk(c.in[at:c.end])
			if at+to-c.at > lendMost {
				state = cutOther
			}
			if state != cutWhole {
				return into[:had], state
			}
			into = append(into, c.in[at+from:at+to:at+to])
			at += to + len("\r\n")
		}
		c.at = at
	}
	return into, cutWhole
}

// cut is what cutBulk found.
type cut uint8

const (
	cutWhole cut = iota
	cutShort     // it may be a bulk, and more bytes will tell
	cutOther     // it is something else
)

// cutBulk finds the body of a bulk at the beginning of b. Of one that is short
// to tells where it will end, as far as that is known.
func cutBulk(b []byte) (from, to int, state cut) {
	if len(b) > 0 && b[0] != '$' {
		return 0, 0, cutOther
	}
	n, i := 0, 1
	for most := min(len(b), 2+lendDigits); i < most; i++ {
		digit := b[i] - '0'
		if digit > 9 {
			break
		}
		if n = n*10 + int(digit); n > lendMost {
			return 0, 0, cutOther
		}
	}
	if i+1 >= len(b) && i <= 1+lendDigits {
		return 0, 0, cutShort
	}
	if i == 1 || i > 1+lendDigits || b[i] != '\r' || b[i+1] != '\n' {
		return 0, 0, cutOther
	}
	from, to = i+2, i+2+n
	if to+2 > len(b) {
		return from, to, cutShort
	}
	if b[to] != '\r' || b[to+1] != '\n' {
		return 0, 0, cutOther
	}
	return from, to, cutWhole
}
