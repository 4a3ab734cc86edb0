package snapshot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCheckpointRecordKeepsEveryByte(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789, time.FixedZone("east", 3600))
	c := Checkpoint{
		Job: "fl\xffights", ID: 7, Name: "base64:no", Note: "", State: StateFailed, StartedAt: at,
		Failure: &Failure{Reason: FailKey, Message: "key \xfe\x00"}, Bad: "\x80",
		Sources: []Position{{Topic: "t\xc0", Group: "g", Stream: "s\xff", LastID: "1-2", Read: -1}},
	}
	b, err := EncodeCheckpoint(c)
	require.NoError(t, err)
	got, err := DecodeCheckpoint(b)
	require.NoError(t, err)
	c.StartedAt = at.UTC()
	require.Equal(t, c, got)
	require.Equal(t, "key \xfe\x00", c.Failure.Message, "the original must be left alone")
}

func TestCheckpointRecordRefusesDamage(t *testing.T) {
	b, err := EncodeCheckpoint(Checkpoint{Job: "a\xff", ID: 3})
	require.NoError(t, err)
	for n := range len(b) {
		_, err := DecodeCheckpoint(b[:n])
		require.ErrorIs(t, err, ErrCorrupt, "cut to %d bytes", n)
	}
	_, err = DecodeCheckpoint([]byte(`{"job":"base64:!!"}`))
	require.ErrorIs(t, err, ErrCorrupt)
}
