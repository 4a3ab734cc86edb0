package redis

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPendingKeysAndEntriesRoundTripAnyBytes(t *testing.T) {
	text := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 30), func(b []byte) string { return string(b) })
	rapid.Check(t, func(t *rapid.T) {
		stream, group := text.Draw(t, "stream"), text.Draw(t, "group")
		s, g, ok := ParsePendingKey(PendingKey(stream, group))
		require.True(t, ok)
		require.Equal(t, stream, s)
		require.Equal(t, group, g)
		p := Pending{
			ID: "18446744073709551615-7", Consumer: text.Draw(t, "consumer"),
			DeliveredAt: rapid.Int64Min(0).Draw(t, "at"), Deliveries: rapid.Int64Min(0).Draw(t, "n"),
		}
		item, err := EncodePending(p)
		require.NoError(t, err)
		got, err := DecodePending(item)
		require.NoError(t, err)
		require.Equal(t, p, got)
	})
}

func TestDecodingPendingIsTotal(t *testing.T) {
	for _, item := range []string{
		"", "1-1", "1-1 2 3", "1 2 3 c", "-1 2 3 c", "1- 2 3 c", "1-1 x 3 c", "1-1 2 x c", "1-1 -2 3 c", "1-1 2 -3 c",
		"1-18446744073709551616 2 3 c", "a-1 2 3 c",
	} {
		_, err := DecodePending([]byte(item))
		require.Error(t, err, "%q", item)
	}
	_, err := EncodePending(Pending{ID: "1", Consumer: "c"})
	require.ErrorContains(t, err, `"1"`)
	got, err := DecodePending([]byte("5-0 17 2 "))
	require.NoError(t, err)
	require.Equal(t, Pending{ID: "5-0", DeliveredAt: 17, Deliveries: 2}, got)
	for _, name := range []string{
		"", "pending", "pending\x00", "pending\x005", "pending\x00x\x00abc", "pending\x00-1\x00abc",
		"pending\x004\x00abc", "pending\x0003\x00abcd", "streaming:mq:commit:t:p:0",
	} {
		_, _, ok := ParsePendingKey([]byte(name))
		require.False(t, ok, "%q", name)
	}
}
