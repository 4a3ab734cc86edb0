package track

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func keyNameSet(names ...string) map[string]struct{} {
	all := make(map[string]struct{}, len(names))
	for _, n := range names {
		all[n] = struct{}{}
	}
	return all
}

func TestKeyPrefixes(t *testing.T) {
	for _, c := range []struct{ extra, want []string }{
		{nil, []string{"a:b:"}},
		{[]string{"x", "y"}, []string{"a:b:", "x", "y"}},
		{[]string{"xy", "x", "xz:1"}, []string{"a:b:", "x"}},
		{[]string{"a:b:state", "a:b"}, []string{"a:b"}},
		{[]string{"a:b:state", "a:bc"}, []string{"a:b:", "a:bc"}},
		{[]string{"", "x"}, []string{""}},
		{[]string{"\xff\x00", "*", "[a]"}, []string{"*", "[a]", "a:b:", "\xff\x00"}},
	} {
		require.Equal(t, c.want, keyPrefixes("a:b:", keyNameSet(c.extra...)), "%q", c.extra)
	}
}

func TestKeyPrefixesOfManyNamesAreCutShortTogether(t *testing.T) {
	extra := keyNameSet()
	for i := range 3000 {
		extra[fmt.Sprintf("stream:topic:%d:p:%d", i%50, i)] = struct{}{}
	}
	got := keyPrefixes("job:", extra)
	require.Len(t, got, 51, "50 topics and the root")
	require.Contains(t, got, "stream:topic:7:p:")

	wild := keyNameSet() // 200 first bytes: there is no way but everything
	for i := range 200 {
		wild[string([]byte{byte(i), 'x'})] = struct{}{}
	}
	require.Equal(t, []string{""}, keyPrefixes("job:", wild))
}

func TestKeyPrefixesCoverAndDoNotOverlap(t *testing.T) {
	name := rapid.StringMatching(`[ab:*]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		extra := keyNameSet(rapid.SliceOfN(name, 0, 200).Draw(t, "extra")...)
		below := name.Draw(t, "root") + ":"
		got := keyPrefixes(below, extra)
		require.NotEmpty(t, got)
		require.LessOrEqual(t, len(got), maxPrefixes)
		require.True(t, covered(below, got))
		for n := range extra {
			require.True(t, covered(n, got), "%q", n)
		}
		for i, p := range got {
			rest := slices.Concat(got[:i], got[i+1:])
			require.False(t, covered(p, rest) || uncovers(p, rest), "%q overlaps in %q", p, got)
		}
	})
}

func TestKeyMarksAreBounded(t *testing.T) {
	m := keyMarks{limit: 300 * (keyNameCost + 5)}
	for round := range 3 {
		for i := range 300 {
			m.add(fmt.Appendf(nil, "k:%03d", i))
			m.add(fmt.Appendf(nil, "k:%03d", i)) // counts once
		}
		require.Equal(t, 300, m.count(), "round %d", round)
		got := m.take()
		require.Len(t, got.Keys, 300)
		for i := range 300 {
			require.Equal(t, &Key{Whole: true, Writes: 2}, got.Keys[fmt.Sprintf("k:%03d", i)])
		}
	}
	for i := range 301 {
		m.add(fmt.Appendf(nil, "k:%03d", i))
	}
	require.Equal(t, -1, m.count())
	m.setAll("a later reason")
	m.add([]byte("more"))
	got := m.take()
	require.True(t, got.All)
	require.Contains(t, got.Reason, fmt.Sprint(m.limit))
	require.Nil(t, got.Keys)
	require.Zero(t, m.count())
}

// The marks are the caller's: to change one leaves the others as they are.
func TestKeyMarksShareNothing(t *testing.T) {
	m := keyMarks{limit: 1 << 20}
	for i := range 200 {
		m.add(fmt.Appendf(nil, "k:%d", i))
	}
	first := m.take()
	m.add([]byte("k:7"))
	first.Keys["k:7"].Whole = false
	second := m.take()
	require.True(t, second.Keys["k:7"].Whole)
	require.True(t, first.Keys["k:8"].Whole)
}

const keyStatsText = "# Commandstats\r\n" +
	"cmdstat_ping:calls=2,usec=3,usec_per_call=1.50,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_client|tracking:calls=1,usec=30,usec_per_call=30.00,rejected_calls=0,failed_calls=0\r\n" +
	"cmdstat_hset:calls=100,usec=500,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n"

func TestKeyCommandCalls(t *testing.T) {
	swap := func(n int) string { return fmt.Sprintf("cmdstat_swapdb:calls=%d,usec=9,usec_per_call=1.00\r\n", n) }
	reset := func(usec int) string {
		return fmt.Sprintf("cmdstat_config|resetstat:calls=1,usec=%d,usec_per_call=1.00\r\n", usec)
	}
	for name, c := range map[string]struct{ before, now, want string }{
		"nothing":        {keyStatsText, keyStatsText, ""},
		"more calls":     {keyStatsText, strings.ReplaceAll(keyStatsText, "calls=100", "calls=101") + "cmdstat_get:calls=1,usec=1\r\n", ""},
		"first swap":     {keyStatsText, keyStatsText + swap(1), "SWAPDB"},
		"another swap":   {keyStatsText + swap(1), keyStatsText + swap(2), "SWAPDB"},
		"same swaps":     {keyStatsText + swap(2), keyStatsText + swap(2), ""},
		"swaps vanished": {keyStatsText + swap(2), keyStatsText, "SWAPDB"},
		"calls fell":     {keyStatsText, strings.ReplaceAll(keyStatsText, "calls=100", "calls=99"), "HSET"},
		"calls vanished": {keyStatsText, strings.ReplaceAll(keyStatsText, "hset", "hget"), "HSET"},
		"reset":          {keyStatsText, keyStatsText + reset(20), "RESETSTAT"},
		"reset again":    {keyStatsText + reset(20), keyStatsText + reset(23), "RESETSTAT"},
		"reset before":   {keyStatsText + reset(20), keyStatsText + reset(20), ""},
	} {
		before, err := parseCalls(c.before)
		require.NoError(t, err)
		now, err := parseCalls(c.now)
		require.NoError(t, err)
		if got := now.since(before); c.want == "" {
			require.Empty(t, got, name)
		} else {
			require.Contains(t, got, c.want, name)
		}
	}
}

func TestKeyCommandCallsRefuse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "does not count PING",
		"# Server\r\nredis_version:7\r\n": "does not count PING",
		"cmdstat_ping:usec=1\r\n":         "without calls",
		"cmdstat_ping:calls=x,usec=1\r\n": "calls=x",
		"cmdstat_ping\r\n":                "without calls",
		"cmdstat_get:calls=1,usec=1\r\n":  "does not count PING",
	} {
		_, err := parseCalls(text)
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func TestKeyInfoField(t *testing.T) {
	text := "# Replication\r\nrole:master\r\nmaster_replid:abc\r\nmaster_replid2:def\r\n"
	require.Equal(t, "abc", infoField(text, "master_replid"))
	require.Empty(t, infoField(text, "master"))
	at := Position{ReplID: "abc"}
	require.NoError(t, follows(text, at))
	require.ErrorContains(t, follows(text, Position{ReplID: "def"}), `"def"`)
	require.ErrorContains(t, follows(strings.Replace(text, "master", "slave", 1), at), `"slave"`)
}
