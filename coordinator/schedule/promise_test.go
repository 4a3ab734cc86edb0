package schedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func promised(t require.TestingT, spec string) Promise {
	s, err := Parse(spec)
	require.NoError(t, err)
	return Promise{Schedule: s}
}

func TestAPromiseCountsMissesPauseAndTimeout(t *testing.T) {
	for _, c := range []struct {
		spec           string
		misses         int
		pause, timeout time.Duration
		last, due      string
	}{
		{"@every 30s", 0, 0, 0, "2026-03-01T10:00:01Z", "2026-03-01T10:00:30Z"},
		{"@every 30s", 2, 0, 0, "2026-03-01T10:00:01Z", "2026-03-01T10:01:30Z"},
		{"@every 30s", 2, 0, 5 * time.Minute, "2026-03-01T10:00:01Z", "2026-03-01T10:06:30Z"},
		{"@every 30s", 0, 0, 0, "2026-03-01T10:00:30Z", "2026-03-01T10:01:00Z"}, // that one has been kept
		{"@every 30s", 1, 45 * time.Second, 0, "2026-03-01T10:00:10Z", "2026-03-01T10:01:40Z"},
		{"@every 30s", 1, 5 * time.Second, 0, "2026-03-01T10:00:28Z", "2026-03-01T10:01:00Z"},
		{"0 4 * * *", 0, 0, time.Hour, "2026-03-01T04:10:00Z", "2026-03-02T05:00:00Z"},
		{"0 4 * * 1-5", 0, 0, time.Hour, "2026-03-06T04:10:00Z", "2026-03-09T05:00:00Z"}, // Friday to Monday
		{"0 4 * * 1-5", 1, 0, time.Hour, "2026-03-06T04:10:00Z", "2026-03-10T05:00:00Z"},
		// The night in which Berlin's 02:30 does not exist.
		{"CRON_TZ=Europe/Berlin 30 2 * * *", 0, 0, 0, "2026-03-28T01:31:00Z", "2026-03-29T01:00:00Z"},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", 1, 0, 0, "2026-03-28T01:31:00Z", "2026-03-30T00:30:00Z"},
	} {
		p := promised(t, c.spec)
		p.Misses, p.MinPause, p.Timeout = c.misses, c.pause, c.timeout
		require.Equal(t, at(t, c.due), p.Due(at(t, c.last)), "%+v", c)
	}
}

func TestNoSchedulePromisesNothing(t *testing.T) {
	require.Zero(t, Promise{Timeout: time.Hour, Misses: 3}.Due(time.Now()))
	end := promised(t, "0 0 1 1 *")
	require.Zero(t, end.Due(at(t, "9999-06-01T00:00:00Z")), "the calendar ends")
}

// A job that keeps its schedule, however long its runs take within the
// timeout, never breaks the promise; and one that falls silent does.
func TestAKeptScheduleIsNeverOverdue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := promised(t, rapid.SampledFrom([]string{"@every 1s", "@every 7s", "@every 5m", "*/15 * * * *", "CRON_TZ=Europe/Berlin 30 2 * * *", "CRON_TZ=America/New_York 0 * * * *"}).Draw(t, "spec"))
		p.Timeout = time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "timeout"))
		p.MinPause = time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pause"))
		p.Misses = rapid.IntRange(0, 3).Draw(t, "misses")
		good := at(t, "2026-01-01T00:00:00Z").Add(time.Duration(rapid.Int64Range(0, int64(300*24*time.Hour)).Draw(t, "start")))
		for range 5 {
			due := p.Due(good)
			end := good
			for range rapid.IntRange(0, p.Misses).Draw(t, "missed") + 1 {
				start := p.Schedule.Next(end)
				if free := good.Add(p.MinPause); end.Equal(good) && free.After(start) {
					start = free
				}
				end = start // what fails ends at once
			}
			end = end.Add(time.Duration(rapid.Int64Range(0, int64(p.Timeout)).Draw(t, "took")))
			require.False(t, end.After(due), "good %s, ended %s, due %s", good, end, due)
			require.True(t, due.After(good.Add(p.Timeout)), "it is never due at once")
			good = end
		}
	})
}
