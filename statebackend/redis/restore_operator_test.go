package redis

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// operatorJob is a job at parallelism 2 with operator state of each mode and
// some that no mode explains.
func operatorJob(t testing.TB, c *goredis.Client) []string {
	t.Helper()
	ctx := context.Background()
	fillJob(t, c, testJob, "mine")
	var names []string
	do := func(verb string, subtask int, name string, args ...any) {
		key := testJob.OperatorKey("g", "flights", subtask, "op", name)
		names = append(names, key)
		require.NoError(t, c.Do(ctx, append([]any{verb, key}, args...)...).Err())
		require.NoError(t, c.HSet(ctx, testJob.Registry(), key, "java.lang.Long|"+fmt.Sprint(subtask+1)).Err())
	}
	long := []any{}
	for i := range 2600 {
		long = append(long, fmt.Sprintf("%d", i%999))
	}
	pairs, members, scored := []any{}, []any{}, []any{}
	for i := range 2400 {
		pairs = append(pairs, fmt.Sprintf("f%d", i), fmt.Sprintf("v%d", i*3))
		members = append(members, fmt.Sprintf("m%d", i))
		scored = append(scored, fmt.Sprint(i*2)+".5", fmt.Sprintf("z%d", i))
	}
	do("RPUSH", 0, "offsets", long...)
	do("RPUSH", 1, "offsets", "7", "7", "")
	do("HSET", 0, "threshold", pairs...)
	do("HSET", 1, "threshold", "f", "v")
	do("SADD", 0, "set", members...)
	do("ZADD", 0, "zset", scored...)
	do("SET", 0, "string", "some text")
	do("XADD", 0, "stream", "1-1", "a", "b")
	names = append(names, testJob.OperatorKey("g", "flights", 1, "op", "never written"))
	for _, n := range names {
		require.NoError(t, c.SAdd(ctx, testJob.Index(), n).Err())
	}
	sort.Strings(names)
	return names
}

func summaries(t testing.TB, b *Backend, names []string) []statebackend.KeySummary {
	t.Helper()
	var all []statebackend.KeySummary
	for _, n := range names {
		k := readKey(t, b, n, snapshot.SectionOperator)
		all = append(all, statebackend.KeySummary{Name: k.key.Name, Type: k.key.Type, Count: k.end.Count, Digest: k.end.Digest})
	}
	return all
}

// rescaled is the operator state at parallelism 3: one key replaced, one new.
func rescaled() []staged {
	var keys []staged
	for subtask, items := range [][]string{{"a", "b"}, nil, {"c", "c"}} {
		k := staged{key: snapshot.Key{Section: snapshot.SectionOperator, Type: snapshot.TypeList,
			Name: []byte(testJob.OperatorKey("g", "flights", subtask, "op", "offsets"))}}
		for _, item := range items {
			k.elements = append(k.elements, snapshot.Element{Size: 1, Value: []byte(item)})
		}
		if items == nil {
			k.key.Type = snapshot.TypeMissing
		}
		k.sum()
		keys = append(keys, k)
	}
	return keys
}

func rescaleRequest(id string, unchanged []statebackend.KeySummary) statebackend.RestoreRequest {
	req := testRequest(id, 3)
	req.Scope = statebackend.ScopeOperator
	req.Unchanged = unchanged
	req.Operators = []snapshot.OperatorState{
		{Operator: "op", Name: "offsets", Mode: snapshot.ModeList},
		{Operator: "op", Name: "union", Mode: snapshot.ModeUnion, Handed: &snapshot.Handed{Epoch: 7, Length: 3, Digest: "ab"}},
	}
	req.Schemas = map[string]string{
		testJob.OperatorKey("g", "flights", 0, "op", "offsets"): "java.lang.Long|9",
		testJob.OperatorKey("g", "flights", 2, "op", "offsets"): "java.lang.Long|9",
	}
	return req
}

func TestARescaleReplacesOperatorStateOnly(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	names := operatorJob(t, c)
	before := digests(t, c)
	indexed := c.SCard(ctx, testJob.Index()).Val()
	registered := c.HGetAll(ctx, testJob.Registry()).Val()
	unchanged := summaries(t, b, names)
	// A writer registers keyed state meanwhile: that isn't lost.
	s, err := b.Stage(ctx, rescaleRequest("scale", unchanged))
	require.NoError(t, err)
	late := testJob.Root() + ":cg:g:topic:t:p:5:state:op:late"
	require.NoError(t, c.HSet(ctx, late, "f", "v").Err())
	require.NoError(t, c.SAdd(ctx, testJob.Index(), late).Err())
	require.NoError(t, c.HSet(ctx, testJob.Registry(), late, "java.lang.String|1").Err())

	res, err := stageProveFlip(ctx, s, rescaled())
	require.NoError(t, err)
	require.Equal(t, statebackend.FlipResult{Keys: 2, Removed: uint64(len(names) - 1 - 1), Epoch: 7}, res, "one is replaced, one never existed")
	noTraces(t, c, testJob)

	want := operatorNames(c)
	require.Equal(t, []string{
		testJob.OperatorKey("g", "flights", 0, "op", "offsets"), testJob.OperatorKey("g", "flights", 1, "op", "offsets"),
		testJob.OperatorKey("g", "flights", 2, "op", "offsets"),
	}, want)
	require.Equal(t, indexed-int64(len(names))+3+1, c.SCard(ctx, testJob.Index()).Val())
	require.Equal(t, []string{"c", "c"}, c.LRange(ctx, want[2], 0, -1).Val())
	for _, n := range names {
		delete(registered, n)
	}
	registered[want[0]], registered[want[2]], registered[late] = "java.lang.Long|9", "java.lang.Long|9", "java.lang.String|1"
	require.Equal(t, registered, c.HGetAll(ctx, testJob.Registry()).Val())
	require.Equal(t, map[string]string{
		"op\x01offsets": `{"mode":"list"}`, "op\x01union": `{"mode":"union","handed":{"epoch":7,"length":3,"digest":"ab"}}`,
	}, c.HGetAll(ctx, testJob.OperatorStates()).Val())

	after := digests(t, c)
	for k, v := range before {
		if statebackend.Classify(testJob, []byte(k)) == snapshot.SectionKeyed && testJob.Owns([]byte(k)) {
			require.Equal(t, v, after[k], "keyed state is as it was: %q", k)
		}
	}
}

// operatorNames are the operator state's keys in the index, sorted.
func operatorNames(c *goredis.Client) (all []string) {
	for _, n := range c.SMembers(context.Background(), testJob.Index()).Val() {
		if statebackend.Classify(testJob, []byte(n)) == snapshot.SectionOperator {
			all = append(all, n)
		}
	}
	sort.Strings(all)
	return all
}

// operatorChange is a write to operator state that a flip must notice.
type operatorChange struct {
	key  string
	do   []any
	undo []any // nil: it can't be undone
}

func operatorChanges() map[string]operatorChange {
	key := func(subtask int, name string) string { return testJob.OperatorKey("g", "flights", subtask, "op", name) }
	return map[string]operatorChange{
		"list item":              {key(0, "offsets"), []any{"LSET", key(0, "offsets"), 2500, "x"}, []any{"LSET", key(0, "offsets"), 2500, "502"}},
		"list longer":            {key(1, "offsets"), []any{"RPUSH", key(1, "offsets"), "7"}, []any{"RPOP", key(1, "offsets")}},
		"list swap":              {key(1, "offsets"), []any{"LSET", key(1, "offsets"), 2, "7"}, []any{"LSET", key(1, "offsets"), 2, ""}},
		"hash value":             {key(0, "threshold"), []any{"HSET", key(0, "threshold"), "f7", "x"}, []any{"HSET", key(0, "threshold"), "f7", "v21"}},
		"hash field":             {key(1, "threshold"), []any{"HSET", key(1, "threshold"), "g", "v"}, []any{"HDEL", key(1, "threshold"), "g"}},
		"set":                    {key(0, "set"), []any{"SMOVE", key(0, "set"), "elsewhere", "m1"}, []any{"SMOVE", "elsewhere", key(0, "set"), "m1"}},
		"score":                  {key(0, "zset"), []any{"ZADD", key(0, "zset"), "2.50000000000001", "z1"}, []any{"ZADD", key(0, "zset"), "2.5", "z1"}},
		"string":                 {key(0, "string"), []any{"SET", key(0, "string"), "same text"}, []any{"SET", key(0, "string"), "some text"}},
		"stream":                 {key(0, "stream"), []any{"XADD", key(0, "stream"), "2-1", "a", "b"}, nil},
		"appeared":               {key(1, "never written"), []any{"SET", key(1, "never written"), "x"}, []any{"DEL", key(1, "never written")}},
		"a new part":             {key(2, "offsets"), []any{"RPUSH", key(2, "offsets"), "x"}, []any{"DEL", key(2, "offsets")}},
		"expected to be missing": {key(1, "offsets"), []any{"RENAME", key(1, "offsets"), "elsewhere"}, []any{"RENAME", "elsewhere", key(1, "offsets")}},
	}
}

// flipAround flips a restore, and makes the change before the flip begins or,
// where it isn't early, between what the flip reads first and its script.
func flipAround(ctx context.Context, t *testing.T, s statebackend.Staging, early bool, change func()) error {
	t.Helper()
	if early {
		change()
		_, err := s.Flip(ctx)
		return err
	}
	st := s.(*staging)
	require.NoError(t, st.rebind(ctx))
	require.NoError(t, st.prepareFlip())
	change()
	v, err := st.runFlip(ctx)
	require.NoError(t, err)
	return st.verdict(v)
}

// One change to any operator key between reading and flipping is noticed,
// also one that is made after the copies have been compared.
func TestARescaleNoticesEveryChange(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	names := operatorJob(t, c)
	unchanged := summaries(t, b, names)
	changes := operatorChanges()
	order := make([]string, 0, len(changes))
	for what := range changes {
		if what != "stream" { // can't be undone: last
			order = append(order, what)
		}
	}
	sort.Strings(order)
	for i, what := range append(order, "stream") {
		for _, early := range []bool{true, false} {
			change := changes[what]
			s, err := b.Stage(ctx, rescaleRequest(fmt.Sprintf("c%dx%v", i, early), unchanged))
			require.NoError(t, err, what)
			require.NoError(t, feed(s, rescaled()))
			err = flipAround(ctx, t, s, early, func() { require.NoError(t, c.Do(ctx, change.do...).Err()) })
			changed := digests(t, c)
			require.ErrorIs(t, err, statebackend.ErrChanged, "%s, early %v", what, early)
			var ke *statebackend.KeyError
			require.ErrorAs(t, err, &ke)
			require.Equal(t, change.key, string(ke.Key), what)
			require.NoError(t, s.Abort(ctx))
			noTraces(t, c, testJob)
			after := digests(t, c)
			for _, n := range names {
				require.Equal(t, changed[n], after[n], "%s: %s", what, n)
			}
			if change.undo == nil {
				break
			}
			require.NoError(t, c.Do(ctx, change.undo...).Err())
		}
	}
}

func TestARescaleRefusesOtherSectionsAndWrongTypes(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	names := operatorJob(t, c)
	before := digests(t, c)
	unchanged := summaries(t, b, names)
	keyed := rescaled()[:1]
	keyed[0].key.Section = snapshot.SectionKeyed
	_, err := restore(ctx, b, rescaleRequest("sec", unchanged), keyed)
	require.ErrorContains(t, err, "section keyed")
	requireSame(t, before, digests(t, c), "refused section")
	require.NoError(t, c.Rename(ctx, testJob.Registry(), "aside").Err())
	require.NoError(t, c.Set(ctx, testJob.Registry(), "x", 0).Err())
	_, err = restore(ctx, b, rescaleRequest("typ", unchanged), rescaled())
	require.ErrorIs(t, err, statebackend.ErrWrongType)
	require.NoError(t, c.Rename(ctx, "aside", testJob.Registry()).Err())
	requireSame(t, before, digests(t, c), "registry of another type")
}

// The script tells operator state from keyed state as Classify does.
func TestTheScriptClassifiesAsTheLayoutDoes(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	from := strings.Index(flipLook, "local under =")
	to := strings.Index(flipLook, "if not all then\n  eachname(idx")
	require.Positive(t, from)
	require.Greater(t, to, from)
	script := "local idx = KEYS[1]\n" + flipLook[from:to] + "return isoperator(ARGV[1]) and 1 or 0"
	pieces := []string{testJob.Root(), ":", "cg:", "g", ":topic:", "t", ":p:", "0", "7", "07", "2147483647", "2147483648",
		"99999999999", "state:", "opstate:", "windowDue:", "x", "\x00", ":p", "cg"}
	rapid.Check(t, func(rt *rapid.T) {
		name := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 14).Draw(rt, "pieces"), "")
		if rapid.Bool().Draw(rt, "under the root") {
			name = testJob.Root() + ":cg:g:topic:t" + name
		}
		got, err := c.Eval(ctx, script, []string{testJob.Index()}, name).Int()
		require.NoError(rt, err)
		require.Equal(rt, statebackend.Classify(testJob, []byte(name)) == snapshot.SectionOperator, got == 1, "%q", name)
	})
	got, err := c.Eval(ctx, script, []string{testJob.Index()}, testJob.OperatorKey("g", "t", 12, "op", "n")).Int()
	require.NoError(t, err)
	require.Equal(t, 1, got)
}
