package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzUnits: durations, rates and sizes are read as they are written.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"", "0", "1m30s", "50MB", "16GiB", "-1kB", "9223372036854775807", "9223372036854775808B", "1e3", "2562047h47m16.854775807s", "1 kib", "B", " 7B", "٣MB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		comesBack[Duration](t, text)
		comesBack[Rate](t, text)
		comesBack[Size](t, text)
		var d Duration
		var r Rate
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		_ = json.Unmarshal([]byte(text), &d) // any bytes: an error or none, never a panic
		_ = json.Unmarshal([]byte(text), &r)
		require.Equal(t, d.UnmarshalText([]byte(strings.ToValidUTF8(text, "\ufffd"))) == nil, json.Unmarshal(quoted, &d) == nil)
	})
}

func comesBack[T interface {
	~int64
	fmt.Stringer
}, P interface {
	*T
	encoding.TextUnmarshaler
}](t *testing.T, text string) {
	var v, back T
	if err := P(&v).UnmarshalText([]byte(text)); err != nil {
		require.Contains(t, err.Error(), fmt.Sprintf("%q", text))
		require.Zero(t, v, "what is refused changes nothing")
		return
	}
	require.NoError(t, P(&back).UnmarshalText([]byte(v.String())), "%q from %q", v.String(), text)
	require.Equal(t, v, back)
}

// FuzzAddresses: what is wrong with an address is told without a password,
// wherever a person puts it; and what is accepted is shown without it.
func FuzzAddresses(f *testing.F) {
	const planted = "kf-pa55w0rd"
	for _, s := range [][3]string{{"redis", "", "h:6379/1"}, {"rediss", "/x#", "h"}, {"unix", "?", "/run/redis.sock?db=3"}, {"https", "@@", "[::1]:7/hook"},
		{"http", "%zz", "h"}, {"redis", "", "h:99999"}, {"redis", " ", "h/0?a=b"}, {"redis", "", "a,b:1"}, {"redis:", "", "x"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, scheme, more, rest string) {
		if strings.Contains(scheme, "@") {
			return // then what follows is plainly no password
		}
		file := Defaults()
		file.Redis.URL = scheme + "://user:" + planted + more + "@" + rest
		file.Alarms.Hooks = []Hook{Hook{URL: file.Redis.URL}.WithDefaults(0)}
		file.API.Listen = rest
		if err := file.Validate(); err != nil {
			require.NotContains(t, err.Error(), planted)
		}
		require.NotContains(t, file.Redis.SafeURL(), planted)
		require.NotContains(t, SafeWebURL(file.Redis.URL), planted)
		require.NotContains(t, file.String(), planted)
		require.NotContains(t, fmt.Sprintf("%v %+v %#v", file, file.Redis, file.Alarms.Hooks), planted)
		b, err := json.Marshal(file.Redis)
		require.NoError(t, err)
		require.NotContains(t, string(b), planted)
	})
}
