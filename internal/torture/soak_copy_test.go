package torture

import (
	"bufio"
	"bytes"
	le "encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"keyframe/statebackend"
)

// fact is what a key holds, in a few numbers: the sum is over all elements,
// and over their order where that counts.
type fact struct {
	kind   string
	expire int64 // ms since 1970, 0 for none
	count  int
	sum    uint64
}

// add takes one element: a hash's field with its value, a zset's member with
// its score as bits.
func (f *fact) add(ordered bool, parts ...[]byte) {
	var d xxhash.Digest
	d.Reset()
	for _, p := range parts {
		var n [8]byte
		le.LittleEndian.PutUint64(n[:], uint64(len(p)))
		_, _ = d.Write(n[:]) // never fails
		_, _ = d.Write(p)
	}
	if ordered {
		f.sum *= 0x9e3779b97f4a7c15
	}
	f.sum += d.Sum64()
	f.count++
}

func scoreBits(x float64) []byte {
	var b [8]byte
	le.LittleEndian.PutUint64(b[:], math.Float64bits(x))
	return b[:]
}

// copied is the whole of a job, read over a connection of the test's own. It
// is read as fast as it comes and understood later: writers wait meanwhile.
type copied struct {
	at      time.Time // by our clock, after the last read
	took    time.Duration
	names   []string // of the index, then the job's own keys
	indexed int
	kinds   []string
	expires []int64
	values  []byte // replies, one for each name that exists
	sums    []byte // DEBUG DIGEST-VALUE of each, when asked for
}

const (
	sentinel = "the end of what was asked"
	noKind   = "none"
)

// plainConn is a connection that asks many things and reads all answers as
// bytes.
type plainConn struct {
	conn net.Conn
	buf  []byte
}

func dialPlain(addr string) (*plainConn, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &plainConn{conn: conn}, conn.SetDeadline(time.Now().Add(30 * time.Second))
}

func appendCommand(b []byte, words ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n", len(w))
		b = append(append(b, w...), '\r', '\n')
	}
	return b
}

// ask sends commands and gives the answers to all of them.
func (c *plainConn) ask(commands []byte) ([]byte, error) {
	commands = appendCommand(commands, "ECHO", sentinel)
	sent := make(chan error, 1)
	go func() {
		_, err := c.conn.Write(commands)
		sent <- err
	}()
	end := fmt.Appendf(nil, "$%d\r\n%s\r\n", len(sentinel), sentinel)
	var all []byte
	if c.buf == nil {
		c.buf = make([]byte, 1<<20)
	}
	for !bytes.HasSuffix(all, end) {
		n, err := c.conn.Read(c.buf)
		all = append(all, c.buf[:n]...)
		if err != nil {
			return nil, fmt.Errorf("copy: %w", err)
		}
	}
	return all[:len(all)-len(end)], <-sent
}

// copyJob reads a job whole.
func copyJob(addr string, j statebackend.Job, digests bool) (*copied, error) {
	began := time.Now()
	c, err := dialPlain(addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.conn.Close() }() // all was read
	out := &copied{}
	index, err := c.ask(appendCommand(nil, "SMEMBERS", j.Index()))
	if err != nil {
		return nil, err
	}
	if out.names, err = (&answers{bufio.NewReader(bytes.NewReader(index))}).list(); err != nil {
		return nil, err
	}
	out.indexed = len(out.names)
	out.names = append(out.names, j.Registry(), j.OperatorStates(), j.Assignment())
	if err := out.readKinds(c); err != nil {
		return nil, err
	}
	if err := out.readValues(c, digests); err != nil {
		return nil, err
	}
	out.at = time.Now()
	out.took = out.at.Sub(began)
	return out, nil
}

func (o *copied) readKinds(c *plainConn) error {
	var ask []byte
	for _, name := range o.names {
		ask = appendCommand(appendCommand(ask, "TYPE", name), "PEXPIRETIME", name)
	}
	got, err := c.ask(ask)
	if err != nil {
		return err
	}
	a := &answers{bufio.NewReader(bytes.NewReader(got))}
	for range o.names {
		kind, err := a.one()
		if err != nil {
			return err
		}
		text, err := a.one()
		if err != nil {
			return err
		}
		at, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return err
		}
		o.kinds, o.expires = append(o.kinds, string(kind)), append(o.expires, max(at, 0))
	}
	return nil
}

// readers are the commands that give a key of each type whole.
func readWith(kind, name string) []string {
	switch kind {
	case "hash":
		return []string{"HGETALL", name}
	case "list":
		return []string{"LRANGE", name, "0", "-1"}
	case "set":
		return []string{"SMEMBERS", name}
	case "zset":
		return []string{"ZRANGE", name, "0", "-1", "WITHSCORES"}
	case "string":
		return []string{"GET", name}
	}
	return []string{"DUMP", name}
}

func (o *copied) readValues(c *plainConn, digests bool) (err error) {
	var ask, sums []byte
	for i, name := range o.names {
		if o.kinds[i] != noKind {
			ask = appendCommand(ask, readWith(o.kinds[i], name)...)
			sums = appendCommand(sums, "DEBUG", "DIGEST-VALUE", name)
		}
	}
	if o.values, err = c.ask(ask); err != nil || !digests {
		return err
	}
	o.sums, err = c.ask(sums)
	return err
}

// facts understands what was read. Meta keys are told from state by their
// section's prefix.
func (o *copied) facts() (map[string]fact, error) {
	a := &answers{bufio.NewReaderSize(bytes.NewReader(o.values), 1<<16)}
	out := make(map[string]fact, len(o.names))
	for i, name := range o.names {
		f := fact{kind: o.kinds[i], expire: o.expires[i]}
		if f.kind != noKind {
			all, err := a.all()
			if err != nil {
				return nil, fmt.Errorf("key %q: %w", name, err)
			}
			if err := f.take(all); err != nil {
				return nil, fmt.Errorf("key %q: %w", name, err)
			}
		} else if i >= o.indexed {
			continue
		}
		out[name] = f
	}
	return out, nil
}

// take adds the parts of one reply.
func (f *fact) take(all [][]byte) error {
	switch f.kind {
	case "hash":
		for i := 0; i+1 < len(all); i += 2 {
			f.add(false, all[i], all[i+1])
		}
	case "zset":
		for i := 0; i+1 < len(all); i += 2 {
			score, err := strconv.ParseFloat(string(all[i+1]), 64)
			if err != nil {
				return err
			}
			f.add(false, all[i], scoreBits(score))
		}
	default:
		for _, v := range all {
			f.add(f.kind == "list", v)
		}
	}
	if f.count == 0 { // it expired after its type was asked for
		*f = fact{kind: noKind, expire: f.expire}
	}
	return nil
}

// digests are the server's own digests by name.
func (o *copied) digests() (map[string]string, error) {
	a := &answers{bufio.NewReader(bytes.NewReader(o.sums))}
	out := map[string]string{}
	for i, name := range o.names {
		if o.kinds[i] == noKind {
			continue
		}
		all, err := a.all()
		if err != nil {
			return nil, err
		}
		if i < o.indexed && len(all) == 1 {
			out[name] = string(all[0])
		}
	}
	return out, nil
}

// answers reads replies of RESP2.
type answers struct{ r *bufio.Reader }

func (a *answers) line() (kind byte, rest string, err error) {
	text, err := a.r.ReadSlice('\n')
	if err != nil {
		return 0, "", err
	}
	if len(text) < 3 {
		return 0, "", fmt.Errorf("reply %q", text)
	}
	if text[0] == '-' {
		return 0, "", fmt.Errorf("refused: %s", text)
	}
	return text[0], string(text[1 : len(text)-2]), nil
}

// one reads a reply that is no array; nothing is nil.
func (a *answers) one() ([]byte, error) {
	kind, rest, err := a.line()
	if err != nil || kind != '$' {
		return []byte(rest), err
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n+2)
	_, err = io.ReadFull(a.r, b)
	return b[:n], err
}

// all reads a reply as its parts: an array's elements, or the one that it is.
func (a *answers) all() ([][]byte, error) {
	head, err := a.r.Peek(1)
	if err != nil {
		return nil, err
	}
	if head[0] != '*' {
		b, err := a.one()
		if b == nil {
			return nil, err
		}
		return [][]byte{b}, err
	}
	_, rest, err := a.line()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, n)
	for i := range out {
		if out[i], err = a.one(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a *answers) list() ([]string, error) {
	all, err := a.all()
	out := make([]string, len(all))
	for i, b := range all {
		out[i] = string(b)
	}
	return out, err
}
