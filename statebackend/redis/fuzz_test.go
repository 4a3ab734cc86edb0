package redis

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/statebackend"
)

// FuzzAddress: no error and no name of a server holds the password, wherever a
// person puts it, and a server's name is an address again.
func FuzzAddress(f *testing.F) {
	const planted = "kf-pa55w0rd"
	for _, s := range [][3]string{{"redis", "", "h:6379/1"}, {"rediss", "/x#", "h"}, {"unix", "?", "/run/redis.sock?db=3"}, {"redis", "@@", "[::1]:7"},
		{"http", "%zz", "h"}, {"redis", "", "h:99999"}, {"redis", " ", "h/0?a=b"}, {"redis", "", "a,b:1"}, {"", "", ""}, {"unix", "", "h/p"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, scheme, more, rest string) {
		for _, c := range []Config{{URL: scheme + "://user:" + planted + more + "@" + rest}, {URL: scheme + "://" + rest, Password: planted + more}} {
			a, err := parse(c)
			if err != nil {
				require.ErrorIs(t, err, statebackend.ErrInvalidConfig)
				require.NotContains(t, err.Error(), planted)
				continue
			}
			require.NotContains(t, a.server(), planted)
			require.Positive(t, a.timeout)
			require.GreaterOrEqual(t, a.db, 0)
			if a.network == "unix" || strings.ContainsAny(a.addr, "%") {
				continue // a path or zone may hold what a URL must escape
			}
			again, err := parse(Config{URL: a.server()})
			require.NoError(t, err, "%q", a.server())
			require.Equal(t, []any{a.network, a.addr, a.db}, []any{again.network, again.addr, again.db})
		}
	})
}

// FuzzPending: names and items of pending entries.
func FuzzPending(f *testing.F) {
	item, err := EncodePending(Pending{ID: "1700000000000-7", Consumer: "c 1", DeliveredAt: 1700000000123, Deliveries: 3})
	require.NoError(f, err)
	f.Add(PendingKey("stream:topic:in:p:3", "group\x00x"), item)
	f.Add([]byte("pending\x0003\x00abc"), []byte("1-1 -5 2 c"))
	f.Add([]byte("pending\x00-1\x00abc"), []byte("18446744073709551616-0 1 1 "))
	f.Add([]byte("pending\x0099999999999999999999\x00"), []byte("1-1 +1 1 c"))
	f.Fuzz(func(t *testing.T, key, item []byte) {
		if stream, group, ok := ParsePendingKey(key); ok {
			require.Equal(t, string(key), string(PendingKey(stream, group)))
		}
		p, err := DecodePending(item)
		if err != nil {
			require.Contains(t, err.Error(), "pending entry")
			return
		}
		again, err := EncodePending(p)
		require.NoError(t, err)
		back, err := DecodePending(again)
		require.NoError(t, err)
		require.Equal(t, p, back)
	})
}

// FuzzLeader: whatever the lease's hash holds, the leader can be told as JSON
// and by a text.
func FuzzLeader(f *testing.F) {
	f.Add("7", "a1b2", "host", "4711", "1700000000000", "1700000015000")
	f.Add("-1", "", "", "9223372036854775808", "9223372036854775807", "-9223372036854775808")
	f.Add("x", "\xff", "h\n", "-7", "253402300800000", "-62167219200001")
	f.Fuzz(func(t *testing.T, token, holder, host, pid, since, until string) {
		l := leaderOf([]string{token, holder, host, pid, "127.0.0.1:7070", "/store", since, until})
		require.Equal(t, holder, l.ID)
		_, err := json.Marshal(l)
		require.NoError(t, err)
		require.NotEmpty(t, l.String())
		require.Zero(t, leaderOf(nil))
		if token != "" && token[0] == '-' {
			require.Zero(t, l.Token, "a token is never negative")
		}
	})
}

// FuzzServerTexts: what INFO, meta hashes and scores hold.
func FuzzServerTexts(f *testing.F) {
	f.Add("# Keyspace\r\ndb0:keys=12,expires=3,avg_ttl=0,subexpiry=1\r\ndb15:keys=1\r\n", "128")
	f.Add("db-1:keys=\ndb99999999999999999999:keys=1\ndb7", "\"3\"")
	f.Add("db1:keys=18446744073709551616,expires=-1", "\"")
	f.Add("", "nan")
	f.Add("db0:keys=1,keys=2", "9.9999999999999694e-310")
	f.Fuzz(func(t *testing.T, info, text string) {
		for db, ks := range keyspaceOf(info) {
			require.Contains(t, info, "db", db)
			require.True(t, ks.keys == 0 || strings.Contains(info, "keys="))
		}
		n, err := parsePartitionCount(map[string][]byte{partitionCountField: []byte(text)})
		if err == nil {
			require.True(t, n >= 1 && n <= keygroups.MaxMaxParallelism, n)
			require.Equal(t, strings.TrimLeft(strings.Trim(text, `"`), "0"), strings.TrimLeft(jsonNumber(n), "0"))
		}
		if score, err := parseScore(text); err == nil {
			require.False(t, score != score, "a score is a number")
		}
		if ms, seq, ok := parseStreamID(text); ok {
			require.True(t, ms > 0 || seq > 0 || bytes.Count([]byte(text), []byte("0")) == len(text)-1, text)
		}
		require.Equal(t, majorOf(text) >= 7 && majorOf(text) > 0, versionAtLeast(text, 7) && majorOf(text) >= 7)
	})
}

func jsonNumber(n int) string {
	b, err := json.Marshal(n)
	if err != nil {
		return ""
	}
	return string(b)
}
