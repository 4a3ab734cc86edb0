package snapshot

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	"keyframe/keygroups"
)

// tb is a test, a benchmark or a property.
type tb interface {
	require.TestingT
	Helper()
}

// element makes an element with its whole value.
func element(field, value string, score float64) RecordedElement {
	e := RecordedElement{Score: score, Size: uint64(len(value)), Value: []byte(value)}
	if field != "" {
		e.Field = []byte(field)
	}
	return e
}

// key makes a key of elements that says of itself what is true.
func key(s Section, t KeyType, name string, elements ...RecordedElement) RecordedKey {
	return RecordedKey{Key: Key{Section: s, Type: t, Name: []byte(name), Count: uint64(len(elements))}, Elements: elements}
}

func hashKey(s Section, name string, fields int) RecordedKey {
	k := key(s, TypeHash, name)
	for i := range fields {
		k.Elements = append(k.Elements, element("field-"+strconv.Itoa(i), `{"v":`+strconv.Itoa(i*7)+`}`, 0))
	}
	k.Key.Count = uint64(fields)
	return k
}

func listKey(s Section, name string, items int) RecordedKey {
	k := key(s, TypeList, name)
	for i := range items {
		k.Elements = append(k.Elements, element("", "item "+strconv.Itoa(i/3), 0))
	}
	k.Key.Count = uint64(items)
	return k
}

// text is n bytes that compress, but not to nothing.
func text(n int, seed string) string {
	b := make([]byte, 0, n+16)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "%s-%d;", seed, i*i)
	}
	return string(b[:n])
}

// oddKeys hold every type, section and awkward byte of cases 13 to 16.
func oddKeys() []RecordedKey {
	expiring := hashKey(SectionKeyed, "job:cg:g:topic:t:p:1:state:op:expiring", 3)
	expiring.Key.ExpireAt = 1893456000123
	expired := hashKey(SectionKeyed, "job:expired while read", 2)
	expired.Key.ExpireAt, expired.Key.Count, expired.End.Expired = 1700000000001, 5, true
	half := key(SectionKeyed, TypeString, "job:expired in a value")
	half.Key.ExpireAt, half.Key.Count, half.End.Expired = 1700000000002, 1, true
	stream := key(SectionKeyed, TypeOpaque, "job:stream", element("", "\x0f\x01DUMP\x00payload\xff", 0))
	stream.Key.TypeName, stream.Key.Server = "stream", "7.0.15"
	scores := key(SectionKeyed, TypeZSet, "job:windowDue")
	for i, f := range []float64{math.Inf(1), math.Inf(-1), 0.1, 3.0000000000000004, 9007199254740993,
		9.9999999999999694e-310, math.Copysign(0, -1), 0, -1.5} {
		scores.Elements = append(scores.Elements, element("", fmt.Sprintf("member-%d\x011\x012", i), f))
	}
	scores.Key.Count = uint64(len(scores.Elements))
	return []RecordedKey{
		expiring, expired, half, stream, scores,
		hashKey(SectionKeyed, "job:a", 150),
		listKey(SectionOperator, "job:opstate:list", 131),
		key(SectionKeyed, TypeHash, "job:\xff\xfe not utf-8",
			element("\xff", "first", 0), element("\xfe", "second", 0), element("", "of the empty field", 0),
			element("empty value", "", 0), element("nul\x00field", "nul\x00value", 0), element("new\nline", "quote\"\r\n", 0)),
		key(SectionKeyed, TypeSet, "job:set", element("", "", 0), element("", "1.0", 0), element("", "1", 0), element("", "\x80", 0)),
		key(SectionKeyed, TypeList, "job:list", element("", "same", 0), element("", "", 0), element("", "same", 0), element("", "last", 0)),
		key(SectionKeyed, TypeString, "", element("", "value of the empty name", 0)),
		key(SectionKeyed, TypeString, "job:empty string", element("", "", 0)),
		key(SectionKeyed, TypeMissing, "job:missing"),
		key(SectionOperator, TypeMissing, "job:opstate:missing"),
		key(SectionOperator, TypeHash, "job:opstate:broadcast", element("threshold", "15.5", 0)),
		key(SectionKeyed, TypeString, "job:long name:"+text(33<<10, "name"), element("", "short value", 0)),
		key(SectionKeyed, TypeHash, "job:long field", element(text(40<<10, "field"), text(3000, "value"), 0), element("b", "c", 0)),
		key(SectionMeta, TypeHash, "job:stateSchema", element("job:a", "java.lang.Integer|1", 0)),
		key(SectionMeta, TypeString, "job:assignment", element("", `{"epoch":4}`, 0)),
		key(SectionSource, TypeHash, "streaming:mq:commit:t:p:0", element("\xac\xed\x00\x05", "\x00\x01", 0)),
	}
}

// saved is a checkpoint in memory.
type saved struct {
	MemChunks
	sum  Summary
	m    *Manifest
	keys []RecordedKey
}

func encode(t tb, target int, keys []RecordedKey) *saved {
	t.Helper()
	s := &saved{keys: keys}
	enc := NewEncoder(context.Background(), &s.MemChunks, EncoderOptions{ChunkTarget: target})
	require.NoError(t, Replay(keys, enc))
	sum, err := enc.Close()
	require.NoError(t, err)
	s.sum, s.m = sum, manifestOf(sum)
	return s
}

// manifestOf is a manifest with something in every field.
func manifestOf(sum Summary) *Manifest {
	at := time.Date(2026, 3, 1, 2, 30, 0, 123456789, time.UTC)
	done := at.Add(1500 * time.Millisecond)
	m := &Manifest{
		Format: FormatVersion,
		Checkpoint: Checkpoint{
			Job: "flights", ID: 42, Kind: KindSavepoint, Name: "before \xff upgrade", Note: "base64:not really",
			Trigger: TriggerManual, State: StateCompleted, Grade: GradePaused, StartedAt: at, CompletedAt: &done,
			DurationMs: 1500, StallMs: 0.75, Parent: 41, Parallelism: 3, MaxParallelism: 128, Epoch: 9, Pinned: true,
			Keys: sum.Keys, Missing: sum.Missing, Elements: sum.Elements, Bytes: sum.Bytes,
			StoredBytes: sum.Fresh, FullBytes: sum.Stored,
			Sources: []Position{{Topic: "t\xfe", Group: "stats", Partition: 2, Stream: "stream:topic:t\xfe:p:2",
				LastID: "1700000000000-7", Read: -1, Pending: 3, Frontier: true}},
		},
		Identity:    Identity{Server: "redis://127.0.0.1:6379/0", Prefix: "streaming:runtime", Job: "fl\xffights"},
		Incarnation: "c0ffee", Attempt: 42, Server: ServerInfo{Version: "7.0.15", RunID: "run-1"}, CutAt: at.Add(time.Second),
		KeyGroups: keygroups.Rule{Hash: keygroups.HashJava, KeyType: keygroups.KeyString,
			Ranges: keygroups.RangesLeading, MaxParallelism: 128},
		Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 42}, {Subtask: 1, Start: 43, End: 85}, {Subtask: 2, Start: 86, End: 127}},
		OperatorStates: []OperatorState{
			{Operator: "op", Name: "told", Mode: ModeUnion, Handed: &Handed{Epoch: 8, Length: 5, Digest: ChunkID{1, 2}.String()}},
			{Operator: "op:x", Name: "\x80", Mode: ModeBroadcast}},
		Chunks: sum.Chunks,
	}
	if sum.Keys > 0 {
		m.States = []StateStats{{Operator: "op", State: "count", Type: "hash", Keys: 1, Elements: min(1, sum.Elements)}}
		m.Groups = []GroupStats{{Group: 7, Keys: 1, Bytes: min(2, sum.Bytes)}}
	}
	return m
}

func walk(t tb, s *saved, sections ...Section) []RecordedKey {
	t.Helper()
	var r Recorder
	require.NoError(t, Walk(context.Background(), s, s.m, &r, sections...))
	return r.Keys
}

// bySection puts keys into the order in which a walk gives them, and adds the
// ends that an encoder computes.
func bySection(t tb, keys []RecordedKey) []RecordedKey {
	t.Helper()
	var r Recorder
	for s := SectionKeyed; s <= SectionSource; s++ {
		for _, k := range keys {
			if k.Key.Section == s {
				require.NoError(t, Replay([]RecordedKey{k}, &r))
			}
		}
	}
	return r.Keys
}

// verified is what every test that wrote a checkpoint ends with.
func verified(t tb, s *saved) {
	t.Helper()
	problems, err := Verify(context.Background(), s, s.m)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// same compares two streams whole, with their order, in few words.
func same(t tb, want, got []RecordedKey, note ...any) {
	t.Helper()
	require.Empty(t, DiffKeys(want, got), note...)
	require.True(t, reflect.DeepEqual(want, got), "the same keys in another order")
}
