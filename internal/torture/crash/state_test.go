package crash

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var job = statebackend.Job{Prefix: "streaming:runtime", Name: "crash"}

// What the state is made of.
const (
	fields       = 300 // of the large hash
	smallKeys    = 90
	farAway      = 4102444800000 // 2100, ms
	parallelism  = 2
	maxGroups    = 16
	operatorList = "offsets"
)

func stateKey(n int, operator, name string) string {
	return fmt.Sprintf("%s:cg:g:topic:orders:p:%d:state:%s:%s", job.Root(), n, operator, name)
}

func operatorKey(subtask int, name string) string {
	return job.OperatorKey("g", "orders", subtask, "src", name)
}

// populate writes a state of every kind, and keys that are nobody's.
func populate(t *testing.T, c *redis.Client) {
	t.Helper()
	pipe := c.Pipeline()
	do := func(words ...any) { pipe.Do(t.Context(), words...) }
	keyed := func(name, schema string) string {
		do("SADD", job.Index(), name)
		do("HSET", job.Registry(), name, schema)
		return name
	}
	big := keyed(stateKey(3, "count", "totals"), "java.lang.String|1")
	for i := range fields {
		do("HSET", big, fmt.Sprintf("s:airport %d", i), fmt.Sprintf(`{"count":%d}`, i*7))
	}
	list, set, zset := keyed(stateKey(4, "log", "seen:s:x"), "java.lang.String|1"), keyed(stateKey(5, "log", "ids:s:y"), "java.lang.Long|1"), keyed(stateKey(6, "log", "due"), "")
	for i := range 150 {
		do("RPUSH", list, fmt.Sprintf(`"item %d"`, i%70))
		do("SADD", set, i*11)
		do("ZADD", zset, float64(i)+0.1, fmt.Sprintf("m%d\x01\xff", i))
	}
	do("PEXPIREAT", set, farAway+17)
	text := keyed(stateKey(7, "raw", "blob"), "")
	do("SET", text, "\x00\xff bytes")
	for i := range smallKeys {
		name := keyed(stateKey(i%maxGroups, "small", fmt.Sprintf("m:s:%d", i)), "java.lang.Integer|1")
		do("HSET", name, `"JFK"`, i, `"LGA"`, 3*i)
		if i%9 == 0 {
			do("PEXPIREAT", name, farAway+i)
		}
	}
	do("SADD", job.Index(), stateKey(9, "small", "never written"))
	operators(do)
	for _, near := range []string{job.Root() + "2:stateKeys", job.Root() + ":unlisted", "elsewhere"} {
		do("SADD", near, "m1", "m2\xff")
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

func operators(do func(...any)) {
	for name, mode := range map[string]string{operatorList: "list", "seen": "union", "rules": "broadcast"} {
		do("HSET", job.OperatorStates(), "src\x01"+name, `{"mode":"`+mode+`"}`)
		for p := range parallelism {
			do("SADD", job.Index(), operatorKey(p, name))
		}
	}
	for i := range 11 {
		do("RPUSH", operatorKey(i%parallelism, operatorList), fmt.Sprintf(`"p%d"`, i))
	}
	do("RPUSH", operatorKey(0, "seen"), `"u0"`, `"u1"`)
	do("RPUSH", operatorKey(1, "seen"), `"u2"`)
	for p := range parallelism {
		do("HSET", operatorKey(p, "rules"), `"late"`, "15", `"very late"`, "60.0")
	}
}

// churn changes a little of every type.
func churn(t *testing.T, c *redis.Client, n int) {
	t.Helper()
	pipe := c.Pipeline()
	pipe.HSet(t.Context(), stateKey(3, "count", "totals"), fmt.Sprintf("s:airport %d", n%fields), fmt.Sprintf(`{"churn":%d}`, n))
	pipe.RPush(t.Context(), stateKey(4, "log", "seen:s:x"), fmt.Sprintf(`"churn %d"`, n))
	pipe.ZAdd(t.Context(), stateKey(6, "log", "due"), redis.Z{Score: float64(n) + 0.5, Member: fmt.Sprintf("m%d\x01\xff", n%150)})
	pipe.HIncrBy(t.Context(), stateKey(n%smallKeys%maxGroups, "small", fmt.Sprintf("m:s:%d", n%smallKeys)), `"JFK"`, 1000)
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

// content is a whole state in text: what each key holds, and the bookkeeping.
type content map[string]string

// text is a key's content, unambiguous for any bytes.
func text(kind string, expires int64, ordered bool, elements []string) string {
	if !ordered {
		sort.Strings(elements)
	}
	return fmt.Sprintf("%s until %d: %q", kind, expires, elements)
}

func mapText(m map[string]string) string {
	var all []string
	for k, v := range m {
		all = append(all, fmt.Sprintf("%q=%q", k, v))
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

// with adds index, registry and modes.
func (c content) with(index []string, registry, modes map[string]string) content {
	sort.Strings(index)
	c["(index)"], c["(registry)"], c["(modes)"] = fmt.Sprintf("%q", index), mapText(registry), mapText(modes)
	return c
}

// without is the content but for operator state and what follows from it.
func (c content) without(part string) content {
	out := content{}
	for k, v := range c {
		if !strings.Contains(k, part) && !strings.HasPrefix(k, "(") {
			out[k] = v
		}
	}
	return out
}

// differences says where two states differ, the first of it.
func (c content) differences(o content) []string {
	var out []string
	for k, v := range c {
		if o[k] != v {
			out = append(out, fmt.Sprintf("%q: %.200s and %.200s", k, v, o[k]))
		}
	}
	for k, v := range o {
		if _, ok := c[k]; !ok {
			out = append(out, fmt.Sprintf("%q: nothing and %.200s", k, v))
		}
	}
	sort.Strings(out)
	return out[:min(len(out), 5)]
}

// live is everything on a server.
type live struct {
	content content
	record  map[string]string
	epoch   uint64
	left    []string          // keys that belong to nobody we know
	foreign map[string]string // of others
}

func readLive(t *testing.T, c *redis.Client) live {
	t.Helper()
	l := live{content: content{}, foreign: map[string]string{}}
	ctx := t.Context()
	index, err := c.SMembers(ctx, job.Index()).Result()
	require.NoError(t, err)
	registry, err := c.HGetAll(ctx, job.Registry()).Result()
	require.NoError(t, err)
	modes, err := c.HGetAll(ctx, job.OperatorStates()).Result()
	require.NoError(t, err)
	l.record, err = c.HGetAll(ctx, job.Record()).Result()
	require.NoError(t, err)
	if text := l.record["epoch"]; text != "" {
		l.epoch, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	ours := []string{job.Index(), job.Registry(), job.OperatorStates(), job.Record(), job.Assignment(), job.Lease()}
	for _, name := range scan(t, c) {
		switch {
		case slices.Contains(index, name):
			l.content[name] = readKey(t, c, name)
		case slices.Contains(ours, name):
		case name == "elsewhere" || strings.HasPrefix(name, job.Root()+"2:") || name == job.Root()+":unlisted":
			l.foreign[name] = readKey(t, c, name)
		default:
			l.left = append(l.left, name)
		}
	}
	l.content.with(index, registry, modes)
	return l
}

func scan(t *testing.T, c *redis.Client) (names []string) {
	t.Helper()
	it := c.Scan(t.Context(), 0, "", 1000).Iterator()
	for it.Next(t.Context()) {
		names = append(names, it.Val())
	}
	require.NoError(t, it.Err())
	sort.Strings(names)
	return slices.Compact(names)
}

func readKey(t *testing.T, c *redis.Client, name string) string {
	t.Helper()
	ctx := t.Context()
	kind, err := c.Type(ctx, name).Result()
	require.NoError(t, err)
	at, err := c.Do(ctx, "PEXPIRETIME", name).Int64()
	require.NoError(t, err)
	var elements []string
	switch kind {
	case "hash":
		var all map[string]string
		all, err = c.HGetAll(ctx, name).Result()
		for f, v := range all {
			elements = append(elements, fmt.Sprintf("%q=%q", f, v))
		}
	case "list":
		elements, err = c.LRange(ctx, name, 0, -1).Result()
	case "set":
		elements, err = c.SMembers(ctx, name).Result()
	case "zset":
		var all []redis.Z
		all, err = c.ZRangeWithScores(ctx, name, 0, -1).Result()
		for _, z := range all {
			elements = append(elements, fmt.Sprintf("%q@%v", z.Member, z.Score))
		}
	case "string":
		var v string
		v, err = c.Get(ctx, name).Result()
		elements = []string{v}
	default:
		require.Fail(t, "a type that isn't written here", "%s: %s", name, kind)
	}
	require.NoError(t, err)
	return text(kind, max(at, 0), kind == "list", elements)
}

// recorded is a checkpoint as a walk over it has told.
func recorded(r *snapshot.Recorder) content {
	c, maps := content{}, map[string]map[string]string{}
	var index []string
	for _, k := range r.Keys {
		name := string(k.Key.Name)
		if k.Key.Section == snapshot.SectionMeta {
			maps[name] = map[string]string{}
			for _, e := range k.Elements {
				maps[name][string(e.Field)] = string(e.Value)
			}
			continue
		}
		index = append(index, name)
		if k.Key.Type == snapshot.TypeMissing {
			continue
		}
		var elements []string
		for _, e := range k.Elements {
			switch k.Key.Type {
			case snapshot.TypeHash:
				elements = append(elements, fmt.Sprintf("%q=%q", e.Field, e.Value))
			case snapshot.TypeZSet:
				elements = append(elements, fmt.Sprintf("%q@%v", e.Value, e.Score))
			default:
				elements = append(elements, string(e.Value))
			}
		}
		c[name] = text(k.Key.Type.String(), k.Key.ExpireAt, k.Key.Type == snapshot.TypeList, elements)
	}
	return c.with(index, maps[job.Registry()], maps[job.OperatorStates()])
}
