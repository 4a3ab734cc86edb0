package schedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func must(t require.TestingT, spec string) Schedule {
	s, err := Parse(spec)
	require.NoError(t, err)
	return s
}

func at(t require.TestingT, text string) time.Time {
	v, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	return v
}

// times are the first n due times after a time, as RFC 3339 texts.
func times(t require.TestingT, spec, after string, n int) []string {
	s, now := must(t, spec), at(t, after)
	var got []string
	for range n {
		now = s.Next(now)
		got = append(got, now.Format(time.RFC3339Nano))
	}
	return got
}

func TestNextIsUTCUnlessTheScheduleSaysOtherwise(t *testing.T) {
	berlin := at(t, "2026-01-15T01:30:00+01:00").In(time.FixedZone("elsewhere", 5*3600))
	require.Equal(t, "2026-01-15T03:00:00Z", must(t, "0 3 * * *").Next(berlin).Format(time.RFC3339))
	require.Equal(t, "2026-01-15T02:00:00Z", must(t, "CRON_TZ=Europe/Berlin 0 3 * * *").Next(berlin).Format(time.RFC3339))
	require.Equal(t, "2026-01-15T18:30:00Z", must(t, "TZ=Asia/Kolkata @daily").Next(berlin).Format(time.RFC3339))
	require.Equal(t, time.UTC, must(t, "TZ=Asia/Kolkata @daily").Next(berlin).Location())
}

func TestNextIsAfterNotAt(t *testing.T) {
	require.Equal(t, []string{"2026-03-01T10:05:00Z", "2026-03-01T10:10:00Z"},
		times(t, "*/5 * * * *", "2026-03-01T10:00:00Z", 2))
	require.Equal(t, []string{"2026-03-01T10:05:00Z"}, times(t, "*/5 * * * *", "2026-03-01T10:04:59.999999999Z", 1))
	require.Equal(t, []string{"2026-03-01T10:10:00Z"}, times(t, "*/5 * * * *", "2026-03-01T10:05:00.000000001Z", 1))
}

func TestDescriptors(t *testing.T) {
	for spec, want := range map[string]string{
		"@hourly": "2026-03-04T06:00:00Z", "@daily": "2026-03-05T00:00:00Z", "@midnight": "2026-03-05T00:00:00Z",
		"@weekly": "2026-03-08T00:00:00Z", "@monthly": "2026-04-01T00:00:00Z", "@yearly": "2027-01-01T00:00:00Z",
	} {
		require.Equal(t, []string{want}, times(t, spec, "2026-03-04T05:06:07Z", 1), spec)
	}
}

func TestEveryIsAnchoredAt1970(t *testing.T) {
	require.Equal(t, []string{"2026-03-01T10:00:30Z", "2026-03-01T10:01:00Z"},
		times(t, "@every 30s", "2026-03-01T10:00:17.25Z", 2))
	require.Equal(t, []string{"2026-03-01T10:00:30Z"}, times(t, "@every 30s", "2026-03-01T10:00:00Z", 1))
	require.Equal(t, []string{"1970-01-01T00:00:00Z"}, times(t, "@every 7s", "1969-12-31T23:59:59.5Z", 1))
	require.Equal(t, []string{"1969-12-31T23:59:53Z"}, times(t, "@every 7s", "1969-12-31T23:59:46Z", 1))
	// A coordinator that restarts every hour still runs what is due every two.
	s, due := must(t, "@every 2h"), map[time.Time]bool{}
	for start := at(t, "2026-03-01T00:20:00Z"); start.Before(at(t, "2026-03-02T00:20:00Z")); start = start.Add(time.Hour) {
		if next := s.Next(start); next.Before(start.Add(time.Hour)) {
			due[next] = true
		}
	}
	require.Len(t, due, 12)
}

func TestLeapDaysEightYearsApart(t *testing.T) {
	require.Equal(t, []string{"2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		times(t, "0 0 29 2 *", "2093-01-01T00:00:00Z", 2))
}

func TestNothingAfterTheLastYear(t *testing.T) {
	require.Zero(t, must(t, "@yearly").Next(at(t, "9999-06-01T00:00:00Z")))
	require.Zero(t, must(t, "@yearly").Interval(at(t, "9998-06-01T00:00:00Z")))
	require.Zero(t, must(t, "@yearly").Next(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)))
}

func TestZeroScheduleNeverFires(t *testing.T) {
	var s Schedule
	require.True(t, s.IsZero())
	require.Zero(t, s.Next(at(t, "2026-03-01T10:00:00Z")))
	require.Zero(t, s.Interval(at(t, "2026-03-01T10:00:00Z")))
	require.Empty(t, s.String())
}

func TestIntervalIsTheGapThatComesNext(t *testing.T) {
	for _, c := range []struct {
		spec, after string
		want        time.Duration
	}{
		{"@every 90s", "2026-03-01T10:00:17Z", 90 * time.Second},
		{"*/5 * * * *", "2026-03-01T10:03:17Z", 5 * time.Minute},
		{"0 9-17 * * 1-5", "2026-03-06T15:59:00Z", time.Hour},      // Friday 16:00 to 17:00
		{"0 9-17 * * 1-5", "2026-03-06T16:59:00Z", 64 * time.Hour}, // to Monday 09:00
		{"CRON_TZ=Europe/Berlin 0 12 * * *", "2026-03-27T12:00:00Z", 23 * time.Hour},
	} {
		require.Equal(t, c.want, must(t, c.spec).Interval(at(t, c.after)), c.spec)
	}
}

// Berlin's clock jumps from 02:00 to 03:00 on 2026-03-29 at 01:00 UTC, and from
// 03:00 back to 02:00 on 2026-10-25 at 01:00 UTC.
func TestHourThatDoesNotExist(t *testing.T) {
	for spec, want := range map[string][]string{
		// Once a day, also on this one: at the jump.
		"30 2 * * *":       {"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		"0,20,40 2 29 3 *": {"2026-03-29T01:00:00Z", "2027-03-29T00:00:00Z", "2027-03-29T00:20:00Z"},
		"0 2,3 * * *":      {"2026-03-28T01:00:00Z", "2026-03-28T02:00:00Z", "2026-03-29T01:00:00Z"},
		"30 1-3 29 3 *":    {"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"},
		"30 * 29 3 *":      {"2026-03-28T23:30:00Z", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"},
		"0 */2 * * *":      {"2026-03-28T01:00:00Z", "2026-03-28T03:00:00Z", "2026-03-28T05:00:00Z"},
		"0 0 * * *":        {"2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"},
		"45 2 29 3 *":      {"2026-03-29T01:00:00Z", "2027-03-29T00:45:00Z", "2028-03-29T00:45:00Z"},
	} {
		require.Equal(t, want, times(t, "CRON_TZ=Europe/Berlin "+spec, "2026-03-28T00:45:00Z", 3), spec)
	}
}

func TestHourThatComesTwice(t *testing.T) {
	for spec, want := range map[string][]string{
		"30 2 * * *":   {"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"},
		"0 3 * * *":    {"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z", "2026-10-27T02:00:00Z"},
		"*/30 * * * *": {"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"},
		"15 * * * *":   {"2026-10-25T00:15:00Z", "2026-10-25T01:15:00Z", "2026-10-25T02:15:00Z"},
		"*/20 2 * * *": {"2026-10-25T00:00:00Z", "2026-10-25T00:20:00Z", "2026-10-25T00:40:00Z"},
		"0 0-23 * * *": {"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		"45 1-3 * * *": {"2026-10-25T00:45:00Z", "2026-10-25T02:45:00Z", "2026-10-26T00:45:00Z"},
	} {
		require.Equal(t, want, times(t, "CRON_TZ=Europe/Berlin "+spec, "2026-10-24T23:59:00Z", 3), spec)
	}
	// Asked in the middle of the second pass.
	require.Equal(t, []string{"2026-10-26T01:30:00Z"},
		times(t, "CRON_TZ=Europe/Berlin 30 2 * * *", "2026-10-25T01:10:00Z", 1))
}

func TestOtherClockChanges(t *testing.T) {
	// Samoa had no 2011-12-30: what was due that day is due when it is over.
	require.Equal(t, []string{"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"},
		times(t, "CRON_TZ=Pacific/Apia 0 12 * * *", "2011-12-29T21:00:00Z", 3))
	// Lord Howe's clock moves by half an hour.
	require.Equal(t, []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"},
		times(t, "CRON_TZ=Australia/Lord_Howe 15 2 * * *", "2026-10-03T15:29:00Z", 2))
	// São Paulo had no midnight on 2018-11-04.
	require.Equal(t, []string{"2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		times(t, "CRON_TZ=America/Sao_Paulo 0 0 * * *", "2018-11-04T02:00:00Z", 2))
}

// TestNextAgreesWithLookingAtEveryMinute compares with the rules of Next told
// in another way: go through the minutes one by one and look at the clock.
func TestNextAgreesWithLookingAtEveryMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe",
			"Asia/Kolkata", "Africa/Casablanca", "America/St_Johns"}).Draw(t, "zone")
		loc, err := time.LoadLocation(zone)
		require.NoError(t, err)
		minute, hour := rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 4).Draw(t, "hour")
		line, anyHour := "", rapid.Bool().Draw(t, "anyHour")
		if anyHour {
			line = time.Date(0, 1, 1, 0, minute, 0, 0, time.UTC).Format("4") + " * * * *"
		} else {
			line = time.Date(0, 1, 1, hour, minute, 0, 0, time.UTC).Format("4 15") + " * * *"
		}
		// Around the changes of 2026 in these zones, and elsewhere.
		day := rapid.SampledFrom([]string{"2026-02-15", "2026-03-08", "2026-03-22", "2026-03-29", "2026-04-04",
			"2026-10-03", "2026-10-25", "2026-11-01", "2026-07-01"}).Draw(t, "day")
		after := at(t, day+"T00:00:00Z").Add(-12 * time.Hour).
			Add(time.Duration(rapid.Int64Range(0, int64(36*time.Hour)).Draw(t, "ns")))
		want := minuteByMinute(loc, after, minute, hour, anyHour)
		got := must(t, "CRON_TZ="+zone+" "+line).Next(after)
		require.Equal(t, want.UTC(), got, "%s in %s after %s", line, zone, after)
	})
}

func minuteByMinute(loc *time.Location, after time.Time, minute, hour int, anyHour bool) time.Time {
	clock := func(t time.Time) (int, time.Duration) {
		t = t.In(loc)
		_, offset := t.Zone()
		return t.Hour()*60 + t.Minute(), time.Duration(offset) * time.Second
	}
	for t := after.Truncate(time.Minute).Add(time.Minute); ; t = t.Add(time.Minute) {
		now, offset := clock(t)
		before, earlier := clock(t.Add(-time.Minute))
		if anyHour {
			if now%60 == minute {
				return t
			}
			continue
		}
		due := hour*60 + minute
		if offset > earlier && before < due && due < now { // the clock jumped over it
			return t
		}
		if now != due {
			continue
		}
		// Not if the clock showed the same two hours ago or less.
		repeated := false
		for back := time.Minute; back <= 2*time.Hour; back += time.Minute {
			shown, _ := clock(t.Add(-back))
			repeated = repeated || shown == due
		}
		if !repeated {
			return t
		}
	}
}
