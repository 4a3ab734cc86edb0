package track

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answering is a server that answers with fixed bytes, whatever it is told.
type answering struct {
	bytesConn
	told bytes.Buffer
}

func (c *answering) Write(p []byte) (int, error)      { return c.told.Write(p) }
func (c *answering) SetWriteDeadline(time.Time) error { return nil }
func (c *answering) Close() error                     { return nil }

var _ net.Conn = (*answering)(nil)

// FuzzHandshake: whatever a server answers to who attaches, the tracker goes on
// from a history that the answer names, or has an error.
func FuzzHandshake(f *testing.F) {
	const id = "0123456789012345678901234567890123456789"
	f.Add([]byte("+OK\r\n+OK\r\n+FULLRESYNC "+id+" 77\r\n$3\r\nRDB*1\r\n"), false)
	f.Add([]byte("+OK\r\n+OK\r\n\n\n+FULLRESYNC "+id+" 77\r\n$EOF:"+id+"\r\nREDIS"+id), false)
	f.Add([]byte("+OK\r\n+OK\r\n+CONTINUE "+id+"\r\n"), true)
	f.Add([]byte("+OK\r\n+OK\r\n+CONTINUE\r\n"), true)
	f.Add([]byte("+OK\r\n-ERR Unrecognized REPLCONF option\r\n"), false)
	f.Add([]byte("+OK\r\n+OK\r\n \r\n"), false)
	f.Add([]byte("+OK\r\n+OK\r\n+FULLRESYNC x -1\r\n$99999999999\r\n"), false)
	f.Fuzz(func(t *testing.T, says []byte, resumed bool) {
		tr := &fields{}
		if resumed {
			tr.replID = idA
			tr.offset.Store(42)
		}
		conn := &answering{bytesConn: bytesConn{r: bytes.NewReader(says)}}
		from, full, err := tr.handshake(newWire(conn, time.Second))
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotEmpty(t, from.replID)
		require.True(t, full || resumed, "a history is gone on with only where there was one")
		require.True(t, bytes.Contains(says, []byte(from.replID)) || from.replID == idA)
		require.True(t, from.offset >= 0, "offset %d", from.offset)
	})
}

// FuzzParseCalls: INFO commandstats.
func FuzzParseCalls(f *testing.F) {
	f.Add("# Commandstats\r\ncmdstat_ping:calls=7,usec=3\r\ncmdstat_swapdb:calls=1,usec=9\r\ncmdstat_config|resetstat:calls=1,usec=5\r\n")
	f.Add("cmdstat_ping:calls=18446744073709551616,usec=1")
	f.Add("cmdstat_ping")
	f.Add("cmdstat_:calls=1,\ncmdstat_ping:calls=1")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCalls(text)
		if err != nil {
			require.Contains(t, err.Error(), "INFO commandstats")
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.Positive(t, c.calls["ping"])
		require.LessOrEqual(t, len(c.calls), strings.Count(text, "cmdstat_"))
		require.Empty(t, c.since(c), "nothing has happened since itself")
		require.Equal(t, "", infoField(text, "no such field\x00"))
	})
}
