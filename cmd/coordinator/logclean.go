package main

import (
	"bytes"
	"fmt"
	"io"
)

// cleanLog keeps what others have named from steering the terminal that shows
// the log: control characters but line ends and tabs are written as \xNN.
type cleanLog struct{ to io.Writer }

var _ io.Writer = cleanLog{}

// Write implements io.Writer.
func (c cleanLog) Write(b []byte) (int, error) {
	if bytes.IndexFunc(b, steers) < 0 {
		return c.to.Write(b)
	}
	var out bytes.Buffer
	for _, r := range string(b) {
		if steers(r) {
			fmt.Fprintf(&out, `\x%02x`, r)
			continue
		}
		out.WriteRune(r)
	}
	if _, err := c.to.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// steers reports whether a character does something else than being shown:
// controls, and those that turn the direction of what follows.
func steers(r rune) bool {
	return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
