package alarm

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
)

// FuzzNotice: whatever an event says, a hook gets one line of JSON of bounded
// length, and what it says is in it.
func FuzzNotice(f *testing.F) {
	f.Add("flights", "checkpoint 7 failed", "timeout", int64(1_700_000_000))
	f.Add("\xff\n", strings.Repeat("\x00", 20_000), "</script>", int64(0))
	f.Add("a\u2028b", strings.Repeat("é", 5000), "\"", int64(253402300799))
	f.Fuzz(func(t *testing.T, job, message, reason string, at int64) {
		n := Notice{Schema: NoticeSchema, Hook: "chat", Seq: 3, Try: 1, Event: coordinator.Event{
			At: time.Unix(at%253402300800, 0).UTC(), Kind: coordinator.EventStateLost, Job: job, Reason: reason, Message: message}}
		if n.Event.At.Year() < 0 {
			return // no clock says so
		}
		b, err := n.encode()
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(b), "\n"))
		require.True(t, strings.HasSuffix(string(b), "\n"))
		require.LessOrEqual(t, len(b), 1000+6*(maxMessage+len(job)+len(reason)))
		var back Notice
		require.NoError(t, json.Unmarshal(b, &back))
		require.True(t, utf8.ValidString(back.Event.Message))
		if utf8.ValidString(job) && utf8.ValidString(message) {
			require.Equal(t, job, back.Event.Job)
			require.True(t, strings.HasPrefix(message, strings.TrimSuffix(back.Event.Message, " …")))
		}
	})
}
