package redis

import (
	"bufio"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// quoted are the words of a command as MONITOR shows them.
var quoted = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)

// TestNoClockOfACoordinatorGoesIntoALease: whatever is sent of it are durations
// and counts; instants are the server's own.
func TestNoClockOfACoordinatorGoesIntoALease(t *testing.T) {
	srv := redistest.Start(t)
	job, open := leaseJob(t, srv, "clock")
	c := newCaller(newBook(), open(), job, "a", time.Hour)
	watch, err := net.Dial("tcp", srv.Addr)
	require.NoError(t, err)
	defer func() { require.NoError(t, watch.Close()) }()
	require.NoError(t, watch.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = watch.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewScanner(watch)
	lines.Buffer(nil, 1<<20)
	require.True(t, lines.Scan(), "%v", lines.Err())
	calls := []string{callAcquire, callRenew, callNote, callMark, callLeads, callRelease}
	for _, what := range calls {
		_, err := c.do(what, c.held, "")
		require.NoError(t, err)
	}
	require.NoError(t, srv.Client().Ping(t.Context()).Err())
	var sent []string
	for lines.Scan() {
		line := lines.Text()
		if strings.HasSuffix(line, `"ping"`) {
			break
		}
		if strings.Contains(line, ":clock:coordinator:lease") && !strings.Contains(line, " lua] ") {
			sent = append(sent, line)
		}
	}
	require.NoError(t, lines.Err())
	require.GreaterOrEqual(t, len(sent), len(calls), "each of them looks at the lease")
	var largest float64
	for _, line := range sent {
		for _, word := range quoted.FindAllStringSubmatch(line, -1) {
			if n, err := strconv.ParseFloat(word[1], 64); err == nil {
				largest = max(largest, n)
			}
		}
	}
	require.InDelta(t, time.Hour.Milliseconds(), largest, 0, "the TTL; the seconds since 1970 would be %d", time.Now().Unix())
}
