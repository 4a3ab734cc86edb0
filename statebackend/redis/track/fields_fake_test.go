package track

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A scripted server says what no Redis at hand says: old versions, forks,
// other forms of the RDB, streams that end in the middle.

// script answers one link: what it gives is sent after each command of the
// tracker's handshake; after PSYNC's answer nothing is expected but ACKs.
type script func(cmd []string) (answer string)

type fakeServer struct {
	mu      sync.Mutex
	scripts []script // of the links, in turn; the last for all further ones
	cmds    []string // all but ACKs
	acks    chan string
	conns   []net.Conn
}

func newFake(t *testing.T, scripts ...script) (*fakeServer, Options) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeServer{scripts: scripts, acks: make(chan string, 1000)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			next := s.scripts[0]
			if len(s.scripts) > 1 {
				s.scripts = s.scripts[1:]
			}
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			all.Go(func() { s.serve(c, next) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close() // the tracker may have closed it
		}
		s.mu.Unlock()
		all.Wait()
	})
	addr := l.Addr().String()
	return s, Options{Server: addr, Dial: dialerTo(t, addr, "", login{})}
}

func (s *fakeServer) serve(c net.Conn, answers script) {
	defer func() { _ = c.Close() }() // both ends may close it
	for r := bufio.NewReader(c); ; {
		cmd, err := readCommand(r)
		if err != nil {
			return
		}
		if len(cmd) == 3 && cmd[1] == "ACK" {
			select {
			case s.acks <- cmd[2]:
			default: // more than a test looks at
			}
			continue
		}
		s.mu.Lock()
		s.cmds = append(s.cmds, strings.Join(cmd, " "))
		s.mu.Unlock()
		text, last := strings.CutSuffix(answers(cmd), "<close>")
		if _, err := io.WriteString(c, text); err != nil || last {
			return
		}
	}
}

func (s *fakeServer) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cmds)
}

func readCommand(r *bufio.Reader) (cmd []string, err error) {
	count := func(kind string) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(line), kind)
		if !ok {
			return 0, fmt.Errorf("line %q", line)
		}
		return strconv.Atoi(text)
	}
	n, err := count("*")
	for range n {
		size, err := count("$")
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		cmd = append(cmd, string(b[:size]))
	}
	return cmd, err
}

// after gives a script that accepts everything, and answers PSYNC with text.
func after(text string) script {
	return func(cmd []string) string {
		if cmd[0] == "PSYNC" {
			return text
		}
		return "+OK\r\n"
	}
}

var (
	idA  = strings.Repeat("a", 40)
	idB  = strings.Repeat("b", 40)
	mark = "3f786850e387550fdab836ed7e6dc881de23001b"
)

// sent writes commands as a server sends them.
func sent(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		words := strings.Split(line, " ")
		fmt.Fprintf(&b, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	return b.String()
}

// TestBothFormsOfTheRDB: with newlines that only say that the server is at it,
// and a mark of which the data holds a beginning.
func TestBothFormsOfTheRDB(t *testing.T) {
	stream := sent("SELECT 0", "HSET j:h f v")
	for name, rdb := range map[string]string{
		"diskless":       "\n$EOF:" + mark + "\r\nREDIS" + mark[:39] + mark[:20] + "x" + mark,
		"diskless, long": "$EOF:" + mark + "\r\n" + strings.Repeat("x"+mark[:30], 20_000) + mark,
		"on disk":        "\n\n$5\r\nREDIS",
		"empty":          "$0\r\n",
	} {
		_, o := newFake(t, after("\n\n+FULLRESYNC "+idA+" 1000\r\n"+rdb+stream))
		f := startFields(t, o, timing{})
		w := watch(t, f, Scope{Root: "j"})
		at := Position{idA, 1000 + int64(len(stream))}
		require.NoError(t, w.Barrier(patient(t), at), name)
		require.Equal(t, at.Offset, f.offset.Load(), name)
	}
}

func TestWhatAServerRefuses(t *testing.T) {
	for answer, want := range map[string]string{
		"-ERR Unrecognized REPLCONF option: rdb-filter-only\r\n": "7.0",
		"-ERR unknown command 'REPLCONF'\r\n":                    "unknown",
		"-NOAUTH Authentication required.\r\n":                   "NOAUTH",
		"+WHAT\r\n":                                              "WHAT",
	} {
		s, o := newFake(t, func(cmd []string) string {
			if cmd[1] == "rdb-filter-only" {
				return answer
			}
			return "+OK\r\n"
		})
		err := startFields(t, o, timing{}).Attached(patient(t))
		require.ErrorIs(t, err, ErrDenied, answer)
		require.ErrorContains(t, err, want)
		require.Equal(t, []string{"REPLCONF listening-port 0 capa eof capa psync2", "REPLCONF rdb-filter-only "}, s.said(), "no PSYNC")
	}
}

// TestDataThatWasNotAskedFor: a fork that says OK to any REPLCONF and then
// sends everything is left.
func TestDataThatWasNotAskedFor(t *testing.T) {
	for _, rdb := range []string{
		"$1073741824\r\nREDIS", "$EOF:" + mark + "\r\n" + strings.Repeat("x", largestEmptyRDB+1<<20),
	} {
		_, o := newFake(t, after("+FULLRESYNC "+idA+" 1\r\n"+rdb))
		err := startFields(t, o, timing{}).Attached(patient(t))
		require.ErrorIs(t, err, ErrDenied)
		require.ErrorContains(t, err, "none was asked for")
	}
}

// TestWhatPasses: errors that heal are tried again, soon.
func TestWhatPasses(t *testing.T) {
	ready := after("+FULLRESYNC " + idA + " 7\r\n$0\r\n")
	_, o := newFake(t, after("-NOMASTERLINK Can't SYNC while not connected with my master\r\n"), after("-LOADING\r\n"),
		after("+FULLRESYNC "+idA+" x\r\n"), after("+CONTINUE\r\n"), after("+FULLRESYNC "+idA+" 7\r\n$EOF:short\r\n"),
		after("+FULLRESYNC "+idA+" 7\r\n$9\r\nRED<close>"), after("+FULLRESYNC "+idA+" 7\r\n:1\r\n"), after("<close>"), ready)
	f := startFields(t, o, timing{retry: time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Attached(ctx))
}

// TestAResumeSaysWhereItWas: the offset after the last whole command.
func TestAResumeSaysWhereItWas(t *testing.T) {
	first := sent("SELECT 0", "HSET j:h f v")
	rest := sent("HSET j:h g v", "HSET j:h i v")
	s, o := newFake(t,
		after("+FULLRESYNC "+idA+" 100\r\n$0\r\n"+first+rest[:30]+"<close>"),
		after("+CONTINUE "+idB+"\r\n"+rest+"<close>"),
		after("+FULLRESYNC "+idB+" 5000\r\n$0\r\n"))
	f := startFields(t, o, timing{})
	require.Eventually(t, func() bool { return len(s.said()) >= 9 }, patience, time.Millisecond)
	attached(t, f)
	said := s.said()
	require.Equal(t, "PSYNC ? -1", said[2])
	require.Equal(t, fmt.Sprintf("PSYNC %s %d", idA, 100+len(first)+1), said[5])
	require.Equal(t, fmt.Sprintf("PSYNC %s %d", idB, 100+len(first)+len(rest)+1), said[8])
}

// TestGarbageForgetsTheHistory: after it, only a full resync helps.
func TestGarbageForgetsTheHistory(t *testing.T) {
	for _, garbage := range []string{"PING\r\n", "*x\r\n", "*0\r\n", "*-1\r\n", "*2\r\n:4\r\n", "*2\r\n$4\r\nPINGxx$1\r\na\r\n",
		"*2\r\n$6\r\nSELECT\r\n$1\r\nx\r\n", "*99999999999\r\n", strings.Repeat("*", wireBuffer+1)} {
		s, o := newFake(t, after("+FULLRESYNC "+idA+" 100\r\n$0\r\n"+sent("SELECT 0")+garbage))
		f := startFields(t, o, timing{})
		require.Eventually(t, func() bool { return len(s.said()) >= 6 }, patience, time.Millisecond, "%.20q", garbage)
		require.Equal(t, "PSYNC ? -1", s.said()[5], "%.20q", garbage)
		require.NoError(t, f.Close())
	}
}

// TestAcknowledgements: often until the first byte, then when asked.
func TestAcknowledgements(t *testing.T) {
	quiet, o := newFake(t, after("+FULLRESYNC "+idA+" 0\r\n$0\r\n"))
	attached(t, startFields(t, o, timing{ack: time.Hour, ackFirst: time.Millisecond}))
	require.Eventually(t, func() bool { return len(quiet.acks) > 20 }, patience, time.Millisecond)

	s, o := newFake(t, after("+FULLRESYNC "+idA+" 0\r\n$0\r\n"+sent("SELECT 0")))
	g := startFields(t, o, timing{ack: time.Hour, ackFirst: time.Millisecond})
	attached(t, g)
	require.Equal(t, "0", <-s.acks)
	for range 3 {
		before := g.offset.Load()
		for len(s.acks) > 0 {
			<-s.acks
		}
		s.mu.Lock()
		_, err := io.WriteString(s.conns[0], sent("PING", "REPLCONF GETACK *", "replconf getack *"))
		s.mu.Unlock()
		require.NoError(t, err)
		require.Equal(t, "0", <-s.acks)
		require.Eventually(t, func() bool {
			return g.offset.Load() == before+int64(len(sent("PING", "REPLCONF GETACK *", "REPLCONF GETACK *")))
		},
			patience, time.Millisecond)
	}
}

// feed runs a stream through the parser, as from a link, and gives how it ended.
func feed(f *fields, b []byte) error {
	s := &stream{wire: newWire(&bytesConn{r: bytes.NewReader(b)}, time.Minute), t: f, ask: func() {}}
	for {
		if err := s.command(); err != nil {
			return err
		}
		f.reached(s.offset())
	}
}

// bytesConn is a connection from which fixed bytes come.
type bytesConn struct {
	net.Conn
	r io.Reader
}

func (c *bytesConn) Read(p []byte) (int, error)        { return c.r.Read(p) }
func (c *bytesConn) SetReadDeadline(t time.Time) error { return nil }

// offline is a tracker that only parses what it is fed.
func offline(t testing.TB, o Options) *fields {
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f := startFields(t, o, timing{})
	f.mu.Lock()
	f.on, f.replID, f.epoch = true, idA, 1
	f.mu.Unlock()
	return f
}

// FuzzStream: whatever comes, the parser ends with an error that says whether
// its place is lost, counts no byte twice, and holds its limits.
func FuzzStream(f *testing.F) {
	f.Add([]byte(sent("SELECT 1", "HSET j:h f v", "ZADD j:z NX 1 a 2 b", "SMOVE j:a j:b m", "PEXPIREAT j:h 1", "SWAPDB 0 1")))
	f.Add([]byte("\r\n\n*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nset\r\n$99999\r\nj:"))
	f.Add([]byte("*2\r\n$0\r\n\r\n$1\r\n:\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr := offline(t, Options{Limits: Limits{Bytes: 4096}})
		w, err := tr.Watch(t.Context(), Scope{Root: "j", Extra: [][]byte{[]byte("x")}})
		require.NoError(t, err)
		err = feed(tr, b)
		require.True(t, errors.Is(err, errGarbled) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
		require.LessOrEqual(t, tr.offset.Load(), int64(len(b)))
		fw := w.(*fieldsWatch)
		require.LessOrEqual(t, fw.bytes, 4096)
		fields := 0
		for _, k := range fw.keys {
			fields += len(k.Fields)
		}
		require.Equal(t, fields, fw.fields)
	})
}
