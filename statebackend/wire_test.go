package statebackend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

func fullRecord() Record {
	return Record{
		Incarnation: "b1946ac92492d234", Epoch: 7, Attempt: 41, Checkpoint: 39,
		CheckpointAt: time.Date(2025, 3, 4, 5, 6, 7, 8_000_000, time.UTC),
		Restore: &Mark{ID: "r5", Kind: "rescale", Checkpoint: 38,
			StartedAt: time.Date(2025, 3, 4, 6, 0, 0, 0, time.UTC)},
		Flipped: "r4",
	}
}

func TestRecordFields(t *testing.T) {
	f, err := EncodeRecord(fullRecord())
	require.NoError(t, err)
	got := map[string]string{}
	for k, v := range f {
		got[k] = string(v)
	}
	require.Equal(t, map[string]string{
		"incarnation": "b1946ac92492d234", "epoch": "7", "attempt": "41", "checkpoint": "39",
		"checkpointAt": "2025-03-04T05:06:07.008Z", "flipped": "r4",
		"restore": `{"id":"r5","kind":"rescale","checkpoint":38,"startedAt":"2025-03-04T06:00:00Z"}`,
	}, got)

	back, err := DecodeRecord(f)
	require.NoError(t, err)
	require.Equal(t, fullRecord(), back)
}

func TestEmptyRecord(t *testing.T) {
	f, err := EncodeRecord(Record{})
	require.NoError(t, err)
	require.Empty(t, f)
	r, err := DecodeRecord(nil)
	require.NoError(t, err)
	require.Equal(t, Record{}, r)
}

func TestDamagedRecordsNameTheField(t *testing.T) {
	for field, value := range map[string]string{
		FieldEpoch: "-1", FieldAttempt: "", FieldCheckpoint: "7.0",
		FieldCheckpointAt: "yesterday", FieldRestore: `{"id":"x"} {}`,
	} {
		_, err := DecodeRecord(map[string][]byte{field: []byte(value)})
		require.ErrorContains(t, err, field)
	}
}

func TestAssignmentJSON(t *testing.T) {
	a := Assignment{Epoch: 4, MaxParallelism: 128, Parallelism: 2, Hash: keygroups.HashFlink,
		Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 63}, {Subtask: 1, Start: 64, End: 127}}}
	b, err := EncodeAssignment(a)
	require.NoError(t, err)
	require.JSONEq(t, `{"epoch":4,"maxParallelism":128,"parallelism":2,"hash":"flink",
		"ranges":[{"subtask":0,"start":0,"end":63},{"subtask":1,"start":64,"end":127}]}`, string(b))
	back, err := DecodeAssignment(b)
	require.NoError(t, err)
	require.Equal(t, a, back)

	for _, bad := range []string{``, `{`, `[]`, `{}`, `{"parallelism":0,"maxParallelism":9}`, string(b) + "x"} {
		_, err := DecodeAssignment([]byte(bad))
		require.Error(t, err, bad)
	}
}

func TestOperatorModes(t *testing.T) {
	union := snapshot.OperatorState{Operator: "src", Name: "told", Mode: snapshot.ModeUnion,
		Handed: &snapshot.Handed{Epoch: 3, Length: 5, Digest: "ab"}}
	b, err := EncodeOperatorMode(union)
	require.NoError(t, err)
	require.Equal(t, `{"mode":"union","handed":{"epoch":3,"length":5,"digest":"ab"}}`, string(b))

	got, err := DecodeOperatorStates(map[string][]byte{
		OperatorField("src", "told"): b,
		OperatorField("src", "pos"):  []byte(`{"mode":"list","later":1}`),
		OperatorField("a", "z"):      []byte(`{"mode":"broadcast"}`),
	})
	require.NoError(t, err)
	require.Equal(t, []snapshot.OperatorState{
		{Operator: "a", Name: "z", Mode: snapshot.ModeBroadcast},
		{Operator: "src", Name: "pos", Mode: snapshot.ModeList},
		union,
	}, got)

	none, err := DecodeOperatorStates(nil)
	require.NoError(t, err)
	require.Nil(t, none)
	for field, value := range map[string]string{
		"no separator": `{"mode":"list"}`, "o\x01n": `{"mode":"heap"}`, "o\x01m": `list`,
	} {
		_, err := DecodeOperatorStates(map[string][]byte{field: []byte(value)})
		require.Error(t, err, field)
	}
	_, err = EncodeOperatorMode(snapshot.OperatorState{Operator: "o", Name: "n"})
	require.ErrorContains(t, err, "n")
}
