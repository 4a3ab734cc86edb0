package resp

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drain reads bulks in groups as a caller does: what Bulks doesn't lend is
// read by Next and ReadBulk. It gives the bodies, nil for nil, up to the first
// reply that is no bulk.
func drain(c *Conn, width, most int) (all [][]byte, err error) {
	for {
		lent, err := c.Bulks(nil, width, most)
		if err != nil {
			return all, err
		}
		if len(lent) > most || len(lent)%width != 0 {
			return all, io.ErrShortBuffer
		}
		for _, b := range lent {
			all = append(all, append([]byte{}, b...))
		}
		if len(lent) > 0 {
			continue
		}
		for range width {
			h, err := c.Next()
			if err != nil || h.Kind != Bulk {
				return all, err
			}
			if h.Nil() {
				all = append(all, nil)
				continue
			}
			b, err := body(c, h.Len)
			if err != nil {
				return all, err
			}
			all = append(all, b)
		}
	}
}

// body reads an open bulk by Chunk as long as that lends all that is left, as
// readers of large values do, and by ReadBulk otherwise.
func body(c *Conn, size int64) ([]byte, error) {
	b := []byte{}
	for int64(len(b)) < size {
		part, err := c.Chunk(int(size))
		if err != nil {
			return b, err
		}
		b = append(b, part...)
		if rest := make([]byte, c.BodyLeft()); len(rest) > 0 && len(b)%2 == 0 {
			if _, err := c.ReadBulk(rest); err != nil {
				return b, err
			}
			b = append(b, rest...)
		}
	}
	return b, nil
}

// However the network cuts it, and whatever lies between them, lent bulks are
// those that Next would have given.
func TestBulksAreWhatNextWouldGive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{-1, 0, 1, 2, 9, 10, 60, 60, 60, 99, 100, 4000,
			lendMost - 20, lendMost, lendMost + 1, firstBuffer, readBuffer, 3 * readBuffer}), 0, 40).Draw(rt, "sizes")
		width := rapid.IntRange(1, 3).Draw(rt, "width")
		sizes = sizes[:len(sizes)/width*width]
		var wire bytes.Buffer
		var want [][]byte
		for i, n := range sizes {
			v := Value{Kind: Bulk, Nil: n < 0}
			if n >= 0 {
				v.Bytes = bytes.Repeat([]byte{byte(i), '\r', '\n', '$', '1'}, n/5+1)[:n]
				want = append(want, v.Bytes)
			} else {
				want = append(want, nil)
			}
			encode(&wire, v)
		}
		encode(&wire, Value{Kind: Integer, Int: 7})
		encode(&wire, Value{Kind: Bulk, Bytes: []byte("after it")})
		var in io.Reader = &wire
		switch rapid.IntRange(0, 3).Draw(rt, "network") {
		case 0:
			in = iotest.OneByteReader(in)
		case 1:
			in = iotest.HalfReader(in)
		case 2:
			in = iotest.DataErrReader(in)
		}
		c, _ := saysIn(in)
		got, err := drain(c, width, width*rapid.IntRange(1, 30).Draw(rt, "most"))
		require.NoError(rt, err)
		require.Equal(rt, len(want), len(got))
		for i := range want {
			require.True(rt, bytes.Equal(want[i], got[i]) && (want[i] == nil) == (got[i] == nil), "bulk %d", i)
		}
		got, err = drain(c, 1, 1)
		require.Equal(rt, [][]byte{[]byte("after it")}, got)
		require.ErrorIs(rt, err, io.ErrUnexpectedEOF)
	})
}

// Malformed bulks are never lent: those before them are, and Next says what
// is wrong.
func TestMalformedBulksAreLeftToNext(t *testing.T) {
	for name, bad := range map[string]string{
		"no digits": "$\r\n\r\n", "letters": "$1x\r\na\r\n", "no line feed": "$1\ra\r\n", "too short": "$3\r\nabcd\r\n",
		"negative": "$-2\r\n", "endless": "$" + strings.Repeat("0", 40) + "1\r\na\r\n", "words": "hello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := says("$2\r\nok\r\n" + bad)
			lent, err := c.Bulks(nil, 1, 9)
			require.NoError(t, err)
			require.Equal(t, [][]byte{[]byte("ok")}, lent)
			lent, err = c.Bulks(nil, 1, 9)
			require.NoError(t, err)
			require.Empty(t, lent)
			h, err := c.Next()
			if err == nil {
				_, err = c.ReadBulk(make([]byte, h.Len))
			}
			require.ErrorIs(t, err, ErrProtocol)
			_, again := c.Bulks(nil, 1, 9)
			require.Equal(t, err, again, "the end is final")
		})
	}
}

func TestBulksKeepToTheOrderOfCalls(t *testing.T) {
	c, _ := says("$5\r\nhello\r\n")
	lent, err := c.Bulks(nil, 2, 1)
	require.NoError(t, err)
	require.Empty(t, lent, "less than a group is asked for")
	_, err = c.Next()
	require.NoError(t, err)
	_, err = c.Bulks(nil, 1, 1)
	require.ErrorIs(t, err, ErrMisuse)
	require.ErrorContains(t, err, "5 bytes of a bulk reply are unread")

	c, _ = says("$1\r\na\r\n$4\r\nab")
	lent, err = c.Bulks(nil, 2, 2)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Empty(t, lent, "half a group is none")
}

// A line may be as long as the buffer, and no longer, however it arrives.
func TestLinesUpToTheBuffer(t *testing.T) {
	for _, extra := range []int{0, 1} {
		text := strings.Repeat("x", readBuffer-3+extra)
		c, _ := saysIn(iotest.HalfReader(strings.NewReader("+" + text + "\r\n:8\r\n")))
		h, err := c.Next()
		if extra > 0 {
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, "a line longer than")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, text, h.Text)
		h, err = c.Next()
		require.NoError(t, err)
		require.EqualValues(t, 8, h.Int)
	}
}

// nothing reads nothing, for ever.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, nil }

func TestAReaderThatGivesNothingIsAnError(t *testing.T) {
	c, _ := saysIn(nothing{})
	_, err := c.Next()
	require.ErrorIs(t, err, io.ErrNoProgress)
}

// half writes less than it is given, without a word.
type half struct{ canned }

func (h *half) Write(b []byte) (int, error) { return len(b) / 2, nil }

func TestAShortWriteIsAnError(t *testing.T) {
	c := NewConn(&half{})
	require.NoError(t, c.Command("PING"))
	require.ErrorIs(t, c.Flush(), io.ErrShortWrite)
	require.ErrorIs(t, c.Command("PING"), io.ErrShortWrite, "and the connection is dead")
	c = NewConn(&half{})
	require.ErrorIs(t, c.Command("SET", "k", strings.Repeat("v", 2*writeBuffer)), io.ErrShortWrite)
}
