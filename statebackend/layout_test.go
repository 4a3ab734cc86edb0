package statebackend

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
)

var layoutJob = Job{Prefix: "streaming:runtime", Name: "a:b"}

func TestParseKeySplitsByKnownStates(t *testing.T) {
	scope := Scope{Group: "g1", Topic: "orders", Partition: 12, Operator: "x:y"}
	known := NewKnown(StateName{"x:y", "z"}, StateName{"x:y", "z:s:deep"}, StateName{"x", "late"})
	base := Parsed{Kind: KindState, Group: "g1", Topic: "orders", Partition: 12, Operator: "x:y", Name: "z", Shard: -1}

	value := base
	keyed := base
	keyed.TypedKey = "s:user:7"
	sharded := base
	sharded.Shard = 31
	deep := base
	deep.Name, deep.TypedKey = "z:s:deep", "n:5"
	due := base
	due.Kind = KindWindowDue
	op := base
	op.Kind, op.Partition = KindOperator, 3

	for key, want := range map[string]Parsed{
		layoutJob.StateKey(scope, "z"):                       value,
		layoutJob.KeyedKey(scope, "z", "s:user:7"):           keyed,
		layoutJob.ShardKey(scope, "z", 31):                   sharded,
		layoutJob.KeyedKey(scope, "z:s:deep", "n:5"):         deep,
		layoutJob.WindowDueKey(scope, "z"):                   due,
		layoutJob.OperatorKey("g1", "orders", 3, "x:y", "z"): op,
	} {
		got, ok := ParseKey(layoutJob, []byte(key), known)
		require.True(t, ok, key)
		require.Equal(t, want, got, key)
	}
}

func TestParseKeyGuessesWithoutKnownStates(t *testing.T) {
	scope := Scope{Group: "g1", Topic: "orders", Partition: 0, Operator: "x:y"}
	got, ok := ParseKey(layoutJob, []byte(layoutJob.KeyedKey(scope, "z", "s:7")), Known{})
	require.False(t, ok, "y isn't followed by a typed key: %+v", got)

	got, ok = ParseKey(layoutJob, []byte(layoutJob.StateKey(scope, "s:1")), Known{})
	require.True(t, ok)
	require.True(t, got.Guessed)
	require.Equal(t, []string{"x", "y", "s:1"}, []string{got.Operator, got.Name, got.TypedKey})

	op := layoutJob.OperatorKey("g1", "orders", 2, "source", "positions:read")
	got, ok = ParseKey(layoutJob, []byte(op), Known{})
	require.True(t, ok)
	require.Equal(t, Parsed{Kind: KindOperator, Group: "g1", Topic: "orders", Partition: 2,
		Operator: "source", Name: "positions:read", Shard: -1, Guessed: true}, got)
}

func TestParseKeyRefusesWhatIsNotOfTheLayout(t *testing.T) {
	root := layoutJob.Root()
	for _, key := range []string{
		"", root, root + ":stateKeys", root + ":cg:g:topic:t:p:1:state:", root + ":cg:g:topic:t:p:1:state:op",
		root + ":cg:g:p:1:state:op:n",                 // no topic
		root + ":cg:g:topic:t:p:01:state:op:n",        // not as we write numbers
		root + ":cg:g:topic:t:p:-1:state:op:n",        // nor this
		root + ":cg:g:topic:t:p:4294967296:state:o:n", // no partition
		root + ":cg:g:topic:t:p:1:other:op:n",
		root + ":cg:g:topic:t:p:1:windowDue:op",
		root + ":cg:g:topic:t:p:1:state:op:n:shard:x",
		root + "x:cg:g:topic:t:p:1:state:op:n",
		"streaming:runtime:a:cg:g:topic:t:p:1:state:op:n",
	} {
		got, ok := ParseKey(layoutJob, []byte(key), NewKnown(StateName{"op", "other"}))
		require.False(t, ok, "%q: %+v", key, got)
	}
}

func TestTheFirstMarkerDecides(t *testing.T) {
	scope := Scope{Group: "g", Topic: "t", Partition: 4, Operator: "o"}
	key := layoutJob.KeyedKey(scope, "n", "s:p:9:opstate:x:y")
	got, ok := ParseKey(layoutJob, []byte(key), NewKnown(StateName{"o", "n"}))
	require.True(t, ok)
	require.Equal(t, 4, got.Partition)
	require.Equal(t, "s:p:9:opstate:x:y", got.TypedKey)
	require.Equal(t, snapshot.SectionKeyed, Classify(layoutJob, []byte(key)))
}

func TestClassify(t *testing.T) {
	op := layoutJob.OperatorKey("g", "t", 0, "o", "n")
	require.Equal(t, snapshot.SectionOperator, Classify(layoutJob, []byte(op)))
	require.Equal(t, snapshot.SectionOperator, Classify(layoutJob, []byte(op+"\xff\x00:s:1")))
	other := Job{Prefix: layoutJob.Prefix, Name: "a"}
	require.Equal(t, snapshot.SectionKeyed, Classify(other, []byte(op)), "job a is not job a:b")
	require.Equal(t, snapshot.SectionKeyed, Classify(layoutJob, []byte("anything")))
}

func TestWhatTheLayoutBuildsIsParsedBack(t *testing.T) {
	name := rapid.StringMatching(`[a-z\x00\n ]{1,4}(:[snjt]?[a-z]{0,3}){0,2}`)
	plain := rapid.StringMatching(`[a-z0-9*?\[\]\\ ]{1,6}`)
	rapid.Check(t, func(t *rapid.T) {
		job := Job{Prefix: name.Draw(t, "prefix"), Name: name.Draw(t, "job")}
		s := Scope{Group: plain.Draw(t, "group"), Topic: plain.Draw(t, "topic"),
			Partition: rapid.IntRange(0, 32767).Draw(t, "partition"), Operator: name.Draw(t, "operator")}
		state := name.Draw(t, "state")
		typed := rapid.SampledFrom([]string{"s:", "n:", "j:", "t:"}).Draw(t, "tag") + rapid.String().Draw(t, "key")
		got, ok := ParseKey(job, []byte(job.KeyedKey(s, state, typed)), NewKnown(StateName{s.Operator, state}))
		require.True(t, ok)
		require.Equal(t, Parsed{Kind: KindState, Group: s.Group, Topic: s.Topic, Partition: s.Partition,
			Operator: s.Operator, Name: state, TypedKey: typed, Shard: -1}, got)
	})
}

func FuzzParseKey(f *testing.F) {
	s := Scope{Group: "g", Topic: "t", Partition: 4, Operator: "o"}
	f.Add([]byte(layoutJob.KeyedKey(s, "n", "s:1")))
	f.Add([]byte(layoutJob.ShardKey(s, "n", 3)))
	f.Add([]byte(layoutJob.OperatorKey("g", "t", 2, "o", "n")))
	f.Add([]byte(layoutJob.Root() + ":cg:g:topic:t:p:1:state::"))
	known := NewKnown(StateName{"o", "n"}, StateName{"", ""})
	f.Fuzz(func(t *testing.T, key []byte) {
		sameState(t, key)
		p, ok := ParseKey(layoutJob, key, known)
		if !ok {
			return
		}
		require.Equal(t, string(key), rebuild(p))
		require.Equal(t, p.Kind == KindOperator, Classify(layoutJob, key) == snapshot.SectionOperator)
	})
}

// rebuild puts a parsed key together again.
func rebuild(p Parsed) string {
	s := Scope{Group: p.Group, Topic: p.Topic, Partition: p.Partition, Operator: p.Operator}
	switch {
	case p.Kind == KindOperator:
		return layoutJob.OperatorKey(p.Group, p.Topic, p.Partition, p.Operator, p.Name)
	case p.Kind == KindWindowDue:
		return layoutJob.WindowDueKey(s, p.Name)
	case p.Shard >= 0:
		return layoutJob.ShardKey(s, p.Name, p.Shard)
	case p.TypedKey != "":
		return layoutJob.KeyedKey(s, p.Name, p.TypedKey)
	}
	return layoutJob.StateKey(s, p.Name)
}

// sameState holds StateOf against ParseKey without known states.
func sameState(t require.TestingT, key []byte) {
	p, parsed := ParseKey(layoutJob, key, Known{})
	operator, name, partition, ok := StateOf(layoutJob, key)
	require.Equal(t, parsed, ok, "%q", key)
	if ok {
		require.Equal(t, []any{p.Operator, p.Name, p.Partition}, []any{string(operator), string(name), partition}, "%q", key)
	}
}

func TestStateOfSaysWhatParseKeySays(t *testing.T) {
	part := rapid.SampledFrom([]string{":", "s", "s:", "shard:3", "p:1:", ":p:2147483647:", ":p:2147483648:", "state:", "opstate:", "windowDue:", ":topic:", "cg:", "o"})
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"", layoutJob.Root() + ":cg:", layoutJob.Root() + ":cg:g:topic:t:p:4:state:"}).Draw(t, "begin")
		for _, s := range rapid.SliceOfN(part, 0, 8).Draw(t, "parts") {
			key += s
		}
		sameState(t, []byte(key))
	})
}

// What is asked of every key of a checkpoint makes no garbage.
func TestClassifyAndStateOfAllocateNothing(t *testing.T) {
	s := Scope{Group: "g", Topic: "t", Partition: 4, Operator: "o"}
	for _, key := range []string{
		layoutJob.KeyedKey(s, "n", "s:a key that is longer than what fits on a stack"),
		layoutJob.OperatorKey("g", "t", 2, "o", "n"),
		layoutJob.WindowDueKey(s, "n"),
		"nothing of the layout",
	} {
		key := []byte(key)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			Classify(layoutJob, key)
			_, _, _, _ = StateOf(layoutJob, key)
		}), "%s", key)
	}
}
