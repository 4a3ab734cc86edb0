package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/alarm"
)

func TestAlarmsAreShown(t *testing.T) {
	at := time.Date(2026, 4, 5, 6, 7, 8, 0, time.UTC)
	want := Alarms{Hooks: []alarm.HookStatus{{Name: "chat", Target: "https://chat.example", Queued: 3, Trying: true, Failed: 9, LastError: "it answered 503", LastFailedAt: &at}, {Name: "pager", Delivered: 2, LastDeliveredAt: &at}},
		Heartbeat: alarm.HeartbeatStatus{On: true, Sent: 4, Held: true, LastSentAt: &at}}
	s := newService(t, func(o *Options) { o.Alarms = func() Alarms { return want } })
	require.Equal(t, want, call[Alarms](s, http.MethodGet, "/alarms", nil))
	none := newService(t)
	require.JSONEq(t, `{"hooks":[],"heartbeat":{"on":false,"sent":0,"failed":0,"held":false}}`, none.ask(http.MethodGet, "/v1/alarms", "").body)
}
