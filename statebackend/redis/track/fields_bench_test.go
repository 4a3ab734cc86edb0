package track

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// loop gives the same bytes n times.
type loop struct {
	b  []byte
	n  int
	at int
}

func (l *loop) Read(p []byte) (int, error) {
	if l.at == len(l.b) {
		l.at = 0
		l.n--
	}
	if l.n <= 0 {
		return 0, io.EOF
	}
	n := copy(p, l.b[l.at:])
	l.at += n
	return n, nil
}

// BenchmarkHSET is the cost of one HSET with a value of 60 bytes, for ten
// watches of which one or none is concerned.
func BenchmarkHSET(b *testing.B) {
	const batch = 10_000
	for _, root := range []string{"job3", "other"} {
		b.Run(root, func(b *testing.B) {
			f := offline(b, Options{})
			for n := range 10 {
				watch(b, f, Scope{Root: fmt.Sprint("job", n)})
			}
			lines := []string{"SELECT 0"}
			for i := range batch {
				lines = append(lines, fmt.Sprintf("HSET %s:cg:g:topic:t:p:%d:state:op:name s:field-%06d %s", root, i%16, i, strings.Repeat("v", 60)))
			}
			source := &loop{b: []byte(sent(lines...)), n: b.N/batch + 1}
			s := &stream{wire: newWire(&bytesConn{r: source}, time.Minute), t: f, ask: func() {}}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			for range b.N {
				if err := s.command(); err != nil {
					b.Fatal(err)
				}
				f.reached(s.offset())
			}
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is the processor time of this process, which a busy machine doesn't
// lengthen.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBarrier is the time from a write's reply until it is marked, with
// the server on the same machine; asking for the position is part of it.
func BenchmarkBarrier(b *testing.B) {
	s := redistest.Start(b)
	f := startFields(b, Options{Dial: dialer(b, s, login{}), Server: s.Addr}, timing{})
	w := watch(b, f, Scope{Root: "j"})
	c := s.Client()
	at := position(b, s)
	for b.Loop() {
		require.NoError(b, c.HSet(b.Context(), "j:h", "f", "v").Err())
		at.Offset += int64(len(sent("hset j:h f v"))) // SELECT came first, so this is within the command
		require.NoError(b, w.Barrier(b.Context(), at))
	}
}

// BenchmarkAttach is the time until the stream is followed, with
// repl-diskless-sync-delay 0.
func BenchmarkAttach(b *testing.B) {
	s := redistest.Start(b)
	for b.Loop() {
		f := newFields(Options{Dial: dialer(b, s, login{}), Server: s.Addr}, timing{})
		require.NoError(b, f.Attached(b.Context()))
		require.NoError(b, f.Close())
	}
}
