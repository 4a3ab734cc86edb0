package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// MustBeClean requires that a check of the whole store finds nothing.
func MustBeClean(t testing.TB, s snapshot.Store) {
	t.Helper()
	problems, err := s.Check(context.Background())
	require.NoError(t, err, "check the store")
	require.Empty(t, problems, "problems in the store")
}

// MustBeSwept waits until the store has removed what deletions left.
func MustBeSwept(t testing.TB, s snapshot.Store) {
	t.Helper()
	require.Eventually(t, func() bool {
		st, err := s.Stats(context.Background())
		return err == nil && st.WaitingChunks == 0
	}, 20*time.Second, time.Millisecond, "chunks wait to be removed")
}

// Start is when every attempt of this package begins.
var Start = time.Date(2026, 4, 5, 6, 7, 8, 123000000, time.UTC)

// Attempt is an attempt at a scheduled checkpoint of a job.
func Attempt(job string) snapshot.Attempt {
	return snapshot.Attempt{Job: job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerSchedule, StartedAt: Start}
}

// Keys makes a state: a hash of fields fields, and a list, a zset and an
// operator's list beside it. States of different seeds share no chunk.
func Keys(seed string, fields int) []snapshot.RecordedKey {
	hash := snapshot.RecordedKey{Key: snapshot.Key{
		Section: snapshot.SectionKeyed, Name: []byte(seed + ":hash"), Type: snapshot.TypeHash,
		ExpireAt: 1893456000123, Count: uint64(fields)}}
	for i := range fields {
		hash.Elements = append(hash.Elements, element(fmt.Sprintf("s:%s-%d", seed, i), fmt.Sprintf(`{"n":%d,"of":%q}`, i*i, seed), 0))
	}
	list := snapshot.RecordedKey{Key: snapshot.Key{
		Section: snapshot.SectionKeyed, Name: []byte(seed + ":list\xff"), Type: snapshot.TypeList, Count: 3}}
	zset := snapshot.RecordedKey{Key: snapshot.Key{
		Section: snapshot.SectionKeyed, Name: []byte(seed + ":zset"), Type: snapshot.TypeZSet, Count: 2}}
	list.Elements = []snapshot.RecordedElement{element("", seed+"-b", 0), element("", "", 0), element("", seed+"-b", 0)}
	zset.Elements = []snapshot.RecordedElement{element("", "m1", 0.1), element("", "m\x002", 9007199254740993)}
	op := snapshot.RecordedKey{Key: snapshot.Key{
		Section: snapshot.SectionOperator, Name: []byte(seed + ":opstate"), Type: snapshot.TypeList, Count: 1}}
	op.Elements = []snapshot.RecordedElement{element("", seed+":17", 0)}
	return []snapshot.RecordedKey{hash, list, zset, op}
}

func element(field, value string, score float64) snapshot.RecordedElement {
	e := snapshot.RecordedElement{Score: score, Size: uint64(len(value)), Value: append([]byte(nil), value...)}
	if field != "" {
		e.Field = []byte(field)
	}
	return e
}

// ChunkTarget is the size of the chunks that Encode makes: small, so that a
// state of some hundred fields has several.
const ChunkTarget = 2 << 10

// Encode writes keys through a writer and gives the summary.
func Encode(ctx context.Context, w snapshot.ChunkWriter, keys []snapshot.RecordedKey) (snapshot.Summary, error) {
	enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{ChunkTarget: ChunkTarget})
	if err := snapshot.Replay(keys, enc); err != nil {
		return snapshot.Summary{}, err
	}
	return enc.Close()
}

// ManifestOf is the manifest of an attempt whose keys have been encoded.
func ManifestOf(a snapshot.Attempt, id snapshot.ID, sum snapshot.Summary) *snapshot.Manifest {
	done := a.StartedAt.Add(1250 * time.Millisecond)
	m := &snapshot.Manifest{
		Format: snapshot.FormatVersion,
		Checkpoint: snapshot.Checkpoint{
			Job: a.Job, ID: id, Kind: a.Kind, Name: a.Name, Note: a.Note, Trigger: a.Trigger, Parent: a.Parent,
			State: snapshot.StateCompleted, Grade: snapshot.GradePaused, StartedAt: a.StartedAt, CompletedAt: &done,
			DurationMs: 1250, StallMs: 3.5, Parallelism: 2, MaxParallelism: 128, Epoch: 4,
			Keys: sum.Keys, Missing: sum.Missing, Elements: sum.Elements, Bytes: sum.Bytes,
			StoredBytes: sum.Fresh, FullBytes: sum.Stored,
			Sources: []snapshot.Position{{Topic: "t", Group: "stats", Partition: 1, Stream: "stream:topic:t:p:1",
				LastID: "1700000000000-7", Read: 12, Pending: 3}},
		},
		Identity:    snapshot.Identity{Server: "redis://127.0.0.1:6379/0", Prefix: "streaming:runtime", Job: a.Job},
		Incarnation: "c0ffee", Attempt: id, Server: snapshot.ServerInfo{Version: "7.0.15", RunID: "run-1"},
		CutAt:  a.StartedAt.Add(time.Second),
		Chunks: sum.Chunks,
	}
	// By field, so that this package imports snapshot only.
	m.KeyGroups.Hash, m.KeyGroups.KeyType, m.KeyGroups.Ranges = "java", "string", "leading"
	m.KeyGroups.MaxParallelism = m.Checkpoint.MaxParallelism
	return m
}

// Take makes one completed checkpoint of keys.
func Take(ctx context.Context, s snapshot.Store, a snapshot.Attempt, keys []snapshot.RecordedKey) (*snapshot.Manifest, error) {
	w, err := s.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	sum, err := Encode(ctx, w, keys)
	if err != nil {
		return nil, err
	}
	m := ManifestOf(a, w.ID(), sum)
	return m, w.Commit(ctx, m)
}

// MustTake is Take that must succeed.
func MustTake(t testing.TB, s snapshot.Store, a snapshot.Attempt, keys []snapshot.RecordedKey) *snapshot.Manifest {
	t.Helper()
	m, err := Take(context.Background(), s, a, keys)
	require.NoError(t, err)
	return m
}

// MustHold requires that a checkpoint gives back exactly keys.
func MustHold(t testing.TB, s snapshot.Store, job string, id snapshot.ID, keys []snapshot.RecordedKey) {
	t.Helper()
	ctx := context.Background()
	m, err := s.Manifest(ctx, job, id)
	require.NoError(t, err)
	var want, got snapshot.Recorder
	require.NoError(t, snapshot.Replay(keys, &want))
	require.NoError(t, snapshot.Walk(ctx, s, m, &got), "walk checkpoint %s", id)
	require.Equal(t, want.Keys, got.Keys, "content of checkpoint %s", id)
}
