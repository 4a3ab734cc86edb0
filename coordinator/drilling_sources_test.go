package coordinator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// What a drill restores is one thing, what the sources still hold another: a
// drill that passes says what a job would lack that goes on from there.
func TestADrillLooksAtTheSources(t *testing.T) {
	w := drillWorld(t)
	gone, ahead, trimmed, sound := "stream:topic:gone:p:0", "stream:topic:ahead:p:0", "stream:topic:trimmed:p:0", "stream:topic:sound:p:0"
	for i := range 9 {
		for _, stream := range []string{trimmed, sound} {
			w.srv.Do("XADD", stream, fmt.Sprintf("%d-0", 1000+i), "f", "v")
		}
	}
	w.srv.Do("XADD", ahead, "500-0", "f", "v")
	w.srv.Do("XTRIM", trimmed, "MAXLEN", "3")
	at := func(stream, id string, read int64) snapshot.Position {
		return snapshot.Position{Topic: "t", Group: "g", Stream: stream, LastID: id, Read: read}
	}
	before := w.digest()
	got := w.c.sourceFindings(t.Context(), []snapshot.Position{at(gone, "7-0", 7), at(ahead, "900-0", 9), at(trimmed, "1001-0", 2), at(sound, "1001-0", 2)})
	require.Equal(t, before, w.digest())
	require.Len(t, got, 3, "%q", got)
	require.Contains(t, got[0], gone)
	require.Contains(t, got[0], "is not there any more")
	require.Contains(t, got[1], "beyond the stream's end, 500-0")
	require.Contains(t, got[2], "4 records in between are missing")
	res := w.done(w.c.Drill(t.Context(), "flights", "")).Drill
	require.True(t, res.Equal)
	require.Empty(t, res.Sources)
}
