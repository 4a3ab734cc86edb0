package resp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canned is a connection whose peer says fixed bytes and then hangs up.
type canned struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (c *canned) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *canned) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *canned) Close() error                { return nil }
func (c *canned) SetDeadline(time.Time) error { return nil }
func says(reply string) (*Conn, *canned)      { return saysIn(strings.NewReader(reply)) }
func saysIn(r io.Reader) (*Conn, *canned)     { c := &canned{in: r}; return NewConn(c), c }
func dialled(t *testing.T, s *redistest.Server) *Conn {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	c := NewConn(nc)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestCommandsAreWrittenAsTheProtocolHasThem(t *testing.T) {
	c, peer := says("")
	require.NoError(t, c.Command("SET", "k\x00", ""))
	require.NoError(t, c.BeginCommand(4))
	require.NoError(t, c.Arg([]byte("SETRANGE")))
	require.NoError(t, c.ArgString("key"))
	require.NoError(t, c.ArgInt(-12))
	require.NoError(t, c.ArgHeader(5))
	for _, part := range []string{"ab", "", "c\r\n"} {
		_, err := c.Write([]byte(part))
		require.NoError(t, err)
	}
	require.Empty(t, peer.out.String(), "sent before Flush")
	require.NoError(t, c.Flush())
	require.Equal(t, "*3\r\n$3\r\nSET\r\n$2\r\nk\x00\r\n$0\r\n\r\n"+
		"*4\r\n$8\r\nSETRANGE\r\n$3\r\nkey\r\n$3\r\n-12\r\n$5\r\nabc\r\n\r\n", peer.out.String())
}

func TestCallsOutOfOrderEndTheConnection(t *testing.T) {
	for name, do := range map[string]func(c *Conn) error{
		"no arguments":       func(c *Conn) error { return c.BeginCommand(0) },
		"too few arguments":  func(c *Conn) error { return errors.Join(c.BeginCommand(2), c.ArgString("a"), c.Flush()) },
		"too many arguments": func(c *Conn) error { return errors.Join(c.Command("a"), c.ArgString("b")) },
		"open argument": func(c *Conn) error {
			return errors.Join(c.BeginCommand(2), c.ArgHeader(3), c.ArgString("b"))
		},
		"argument too long": func(c *Conn) error {
			_, err := c.Write([]byte("abcd"))
			return errors.Join(c.BeginCommand(1), c.ArgHeader(3), err)
		},
		"command in command": func(c *Conn) error { return errors.Join(c.BeginCommand(2), c.BeginCommand(1)) },
		"negative size":      func(c *Conn) error { return errors.Join(c.BeginCommand(1), c.ArgHeader(-1)) },
		"body unread": func(c *Conn) error {
			_, err := c.Next()
			_, err2 := c.Next()
			return errors.Join(err, err2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := says("$3\r\nabc\r\n")
			require.ErrorIs(t, do(c), ErrMisuse)
			require.ErrorIs(t, c.Err(), ErrMisuse)
			_, err := c.Next()
			require.ErrorIs(t, err, ErrMisuse, "alive after an error")
			require.ErrorIs(t, c.Flush(), ErrMisuse)
		})
	}
}

func TestHeadersAndBodies(t *testing.T) {
	c, _ := says("+OK\r\n-NOPERM no right\r\n:-42\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n$0\r\n\r\n*2\r\n:1\r\n$1\r\nx\r\n" +
		":9223372036854775807\r\n:-9223372036854775808\r\n")
	next := func() Header {
		h, err := c.Next()
		require.NoError(t, err)
		return h
	}
	require.Equal(t, Header{Kind: Simple, Text: "OK"}, next())
	h := next()
	require.Equal(t, Header{Kind: Failed, Err: &Error{Code: "NOPERM", Message: "NOPERM no right"}}, h)
	require.True(t, IsCode(h.Err, "NOPERM"))
	require.False(t, IsCode(h.Err, "ERR"))
	require.Equal(t, Header{Kind: Integer, Int: -42}, next())
	require.Equal(t, Header{Kind: Bulk, Len: 5}, next())
	require.EqualValues(t, 5, c.BodyLeft())
	b, err := c.Chunk(2)
	require.NoError(t, err)
	require.Equal(t, "a\r", string(b))
	buf := make([]byte, 9)
	n, err := c.ReadBulk(buf)
	require.NoError(t, err)
	require.Equal(t, "\nbc", string(buf[:n]))
	b, err = c.Chunk(2)
	require.NoError(t, err)
	require.Nil(t, b)
	require.True(t, next().Nil())
	require.Equal(t, Header{Kind: Array, Len: -1}, next())
	require.Equal(t, Header{Kind: Bulk, Len: 0}, next())
	require.Equal(t, Header{Kind: Array, Len: 2}, next())
	require.Equal(t, int64(1), next().Int)
	require.Equal(t, int64(1), next().Len)
	require.NoError(t, c.Skip())
	require.EqualValues(t, 9223372036854775807, next().Int)
	require.EqualValues(t, -9223372036854775808, next().Int)
	_, err = c.Next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestMalformedRepliesAreErrors(t *testing.T) {
	for _, reply := range []string{
		"", "\r\n", "+\n", "+OK", "+OK\n", "!x\r\n", ":\r\n", ":-\r\n", ":+1\r\n", ": 1\r\n", ":1 \r\n", ":1x\r\n",
		":9223372036854775808\r\n", ":-9223372036854775809\r\n", ":99999999999999999999\r\n",
		"$-2\r\n", "$x\r\n", "$9999999999999999\r\n", "*-5\r\n", "$3\r\nab", "$3\r\nabcd\r\n", "$0\r\nx\r\n",
		"*2\r\n:1\r\n", "*1\r\n", "%1\r\n+a\r\n+b\r\n", "+" + strings.Repeat("x", readBuffer+1) + "\r\n",
		strings.Repeat("*1\r\n", maxDepth+2) + ":1\r\n",
	} {
		c, _ := says(reply)
		_, err := c.Reply(1 << 20)
		require.Error(t, err, "%.40q", reply)
		require.True(t, errors.Is(err, ErrProtocol) || errors.Is(err, io.ErrUnexpectedEOF), "%.40q: %v", reply, err)
		require.Equal(t, err, c.Err())
	}
}

func TestErrorReplyIsNotTheEnd(t *testing.T) {
	c, _ := says("-ERR one\r\n-LOADING\r\n*2\r\n-ERR in\r\n:2\r\n:3\r\n")
	_, err := c.Reply(1000)
	require.True(t, IsCode(err, "ERR"))
	require.True(t, IsCode(c.SkipReply(), "LOADING"))
	v, err := c.Reply(1000)
	require.NoError(t, err)
	require.Equal(t, "ERR in", v.Array[0].Err.Error())
	require.EqualValues(t, 2, v.Array[1].Int)
	v, err = c.Reply(1000)
	require.NoError(t, err)
	require.EqualValues(t, 3, v.Int)
}

func TestReplyKeepsToItsLimit(t *testing.T) {
	for _, reply := range []string{
		"$2000\r\n" + strings.Repeat("x", 2000) + "\r\n",
		"*1000000000\r\n:1\r\n",
		"*3\r\n$0\r\n\r\n*8\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
		"+" + strings.Repeat("y", 1500) + "\r\n",
	} {
		c, _ := says(reply)
		_, err := c.Reply(1000)
		require.ErrorIs(t, err, ErrTooLarge, "%.30q", reply)
		require.ErrorIs(t, c.Err(), ErrTooLarge)
	}
	c, _ := says("*2\r\n+st\r\n$4\r\nbulk\r\n")
	v, err := c.Reply(1000)
	require.NoError(t, err)
	require.Equal(t, "st", v.Array[0].String())
	require.Equal(t, "bulk", v.Array[1].String())
}

func TestSkipReplyReadsNestedArraysWhole(t *testing.T) {
	c, _ := says("*3\r\n*2\r\n$1\r\na\r\n*0\r\n*-1\r\n$-1\r\n:7\r\n" + strings.Repeat("*1099511627776\r\n", 2000))
	require.NoError(t, c.SkipReply())
	v, err := c.Reply(100)
	require.NoError(t, err)
	require.EqualValues(t, 7, v.Int)
	require.ErrorIs(t, c.SkipReply(), ErrProtocol)
}

func TestARealServerTakesAndGivesHugeAndOddBytes(t *testing.T) {
	c := dialled(t, redistest.Start(t))
	value := bytes.Repeat([]byte("0123456789abcdef"), 5<<16) // 5 MiB
	require.NoError(t, c.BeginCommand(3))
	require.NoError(t, c.ArgString("SET"))
	require.NoError(t, c.ArgString("big\x00\xff"))
	require.NoError(t, c.ArgHeader(int64(len(value))))
	for at := 0; at < len(value); at += 70_001 {
		_, err := c.Write(value[at:min(at+70_001, len(value))])
		require.NoError(t, err)
	}
	require.NoError(t, c.Command("GET", "big\x00\xff"))
	require.NoError(t, c.Command("INCR", "big\x00\xff"))
	require.NoError(t, c.Command("HSET", "h", "", "empty field"))
	require.NoError(t, c.Command("HGETALL", "h"))
	require.NoError(t, c.Flush())
	v, err := c.Reply(100)
	require.NoError(t, err)
	require.Equal(t, "OK", v.String())
	h, err := c.Next()
	require.NoError(t, err)
	require.EqualValues(t, len(value), h.Len)
	var got []byte
	for c.BodyLeft() > 0 {
		b, err := c.Chunk(1 << 20)
		require.NoError(t, err)
		require.LessOrEqual(t, len(b), readBuffer)
		got = append(got, b...)
	}
	require.True(t, bytes.Equal(value, got))
	_, err = c.Reply(1000)
	require.True(t, IsCode(err, "ERR"), "%v", err)
	require.NoError(t, c.SkipReply())
	v, err = c.Reply(1000)
	require.NoError(t, err)
	require.Equal(t, "", v.Array[0].String())
	require.Equal(t, "empty field", v.Array[1].String())
	v, err = c.Call(1000, "GET", "nothing")
	require.NoError(t, err)
	require.True(t, v.Nil)
}

func TestContextAndDeadlineEndReads(t *testing.T) {
	s := redistest.Start(t)
	t.Run("context", func(t *testing.T) {
		c := dialled(t, s)
		ctx, cancel := context.WithCancelCause(context.Background())
		release := c.Bind(ctx)
		defer release()
		_, err := c.Call(1000, "CLIENT", "ID")
		require.NoError(t, err)
		require.NoError(t, c.Command("BLPOP", "never", "0"))
		require.NoError(t, c.Flush())
		why := errors.New("stopped by hand")
		go cancel(why)
		_, err = c.Reply(1000)
		require.ErrorIs(t, err, why)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Hour)))
		_, err = c.Call(1000, "PING")
		require.ErrorIs(t, err, why, "alive after an error")
	})
	t.Run("deadline", func(t *testing.T) {
		c := dialled(t, s)
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Millisecond)))
		_, err := c.Call(1000, "BLPOP", "never", "0")
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	})
	t.Run("released", func(t *testing.T) {
		c := dialled(t, s)
		ctx, cancel := context.WithCancel(context.Background())
		c.Bind(ctx)()
		cancel()
		_, err := c.Call(1000, "PING")
		require.NoError(t, err)
	})
	t.Run("killed server", func(t *testing.T) {
		c := dialled(t, s)
		require.NoError(t, c.Command("BLPOP", "never", "0"))
		require.NoError(t, c.Flush())
		s.Kill()
		_, err := c.Reply(1000)
		require.Error(t, err)
		require.False(t, IsCode(err, "ERR"))
	})
}

// Any value that a server may send is read as it is, however it is cut up.
func TestRepliesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genValue(3).Draw(t, "value")
		var wire bytes.Buffer
		encode(&wire, want)
		c, _ := saysIn(&dribble{data: wire.Bytes(), step: rapid.IntRange(1, 50).Draw(t, "step")})
		got, err := c.Reply(1 << 20)
		if want.Kind == Failed {
			require.Equal(t, want.Err, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// dribble gives few bytes at a time.
type dribble struct {
	data []byte
	step int
}

func (d *dribble) Read(b []byte) (int, error) {
	if len(d.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), d.step)], d.data)
	d.data = d.data[n:]
	return n, nil
}
