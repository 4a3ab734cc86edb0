package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var cannotRun = map[string]string{
	"":                             "it is empty",
	" \t\n":                        "it is empty",
	"TZ=0":                         `time zone "0" is unknown`,
	"TZ=0 * * * * *":               `time zone "0" is unknown`,
	"CRON_TZ=UTC":                  "a zone alone is no schedule",
	"TZ=UTC  ":                     "a zone alone is no schedule",
	"TZ=":                          "is no fixed time zone",
	"CRON_TZ= 0 3 * * *":           "is no fixed time zone",
	"TZ=Local 0 3 * * *":           `"Local" is no fixed time zone`,
	"TZ=Mars/Olympus 0 3 * * *":    `time zone "Mars/Olympus" is unknown`,
	"TZ=../../etc/passwd @daily":   "is unknown",
	"0 0 30 2 *":                   "it never comes",
	"0 0 31 2,4,6,9,11 *":          "it never comes",
	"@every 500ms":                 "500ms is under one second",
	"@every 999999999ns":           "is under one second",
	"@every 0s":                    "lies not in the future",
	"@every -5m":                   "-5m0s lies not in the future",
	"@every 1500ms":                "1.5s has a fraction of a second",
	"@every 1d":                    `"1d" is no duration`,
	"@every":                       "@every needs one duration",
	"@every 1h 30m":                "@every needs one duration",
	"@every 9999999h":              "is no duration",
	"@reboot":                      "unrecognized descriptor",
	"@hourly now":                  "unrecognized descriptor",
	"*/10 * * * * *":               "six fields, but seconds are not a field",
	"0 * * *":                      "it has 4 fields",
	"0 0 0 * * * 2026":             "it has 7 fields",
	"60 * * * *":                   "above maximum (59)",
	"* 24 * * *":                   "above maximum (23)",
	"* * 0 * *":                    "below minimum (1)",
	"* * * 13 *":                   "above maximum (12)",
	"* * * * 7":                    "above maximum (6)",
	"30-10 * * * *":                "beyond end of range",
	"*/0 * * * *":                  "step of range should be a positive number",
	"*/90 * * * *":                 "step 90 goes beyond the minute field",
	"0 */36 * * *":                 "step 36 goes beyond the hour field",
	"*-5 * * * *":                  "a range can't begin with a wildcard",
	"1,,5 * * * *":                 "an item of its list is empty",
	", * * * *":                    "an item of its list is empty",
	"x * * * *":                    "failed to parse int from x",
	strings.Repeat("1,", 2000):     "it is too long",
	"0 3 * * \x00":                 "failed to parse int",
	"0 3 * * CRON_TZ=UTC":          "failed to parse int",
	"99999999999999999999 * * * *": "failed to parse int",
}

func TestRefusesWhatCannotRun(t *testing.T) {
	for spec, want := range cannotRun {
		got, err := Parse(spec)
		require.ErrorContains(t, err, want, "schedule %q", spec)
		require.True(t, got.IsZero(), spec)
		var refused *Error
		require.True(t, errors.As(err, &refused), spec)
		require.NotEmpty(t, refused.Remedy, spec)
		require.Contains(t, err.Error(), refused.Remedy)
		require.NotContains(t, err.Error(), "\n")
		if len(spec) < 100 {
			require.Equal(t, spec, refused.Spec)
			require.Contains(t, err.Error(), quote(spec), "names what was given")
		}
	}
}

func TestParserPanicBecomesError(t *testing.T) {
	// The library's parser panics here: Parse never hands it such a line, and
	// would survive if it did.
	for _, line := range []string{"TZ=0", "CRON_TZ=UTC"} {
		_, err := parseCron(line)
		require.ErrorContains(t, err, "the parser gave up", line)
	}
}

func TestAcceptsAndKeepsTheText(t *testing.T) {
	for _, spec := range []string{
		"*/5 * * * *", "0 3 * * mon-fri", "0 0 29 2 *", "0 0 30 2 1", "@every 1s", "@every 1h30m",
		"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually",
		"CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=America/New_York @daily", "CRON_TZ=Asia/Kolkata\t15 9 * * *",
		"  0 3 * * *  ", "TZ=UTC @every 10s", "? ? ? ? ?",
	} {
		s, err := Parse(spec)
		require.NoError(t, err, spec)
		require.Equal(t, spec, s.String())
		require.False(t, s.IsZero())
		require.False(t, s.Next(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)).IsZero(), spec)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"TZ=0", "CRON_TZ=UTC", "0 0 30 2 *", "@every 500ms", "@every -5m", "0 0 0 * * *", "*/5 * * * *",
		"CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=Pacific/Apia @daily", "@every 2562047h", "1-5/2,7 */6 29 feb sun",
	} {
		f.Add(seed, int64(1_780_000_000))
	}
	f.Fuzz(func(t *testing.T, spec string, unix int64) {
		s, err := Parse(spec)
		if err != nil {
			require.True(t, s.IsZero())
			return
		}
		after := time.Unix(unix%4_000_000_000, unix%1_000_000_000)
		next := s.Next(after)
		require.True(t, next.After(after), "%q: %s is not after %s", spec, next, after)
		require.Zero(t, next.Nanosecond())
		require.Positive(t, s.Interval(after), spec)
	})
}
