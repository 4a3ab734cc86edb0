package torture

import (
	"fmt"
	"sort"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Keys that nobody writes after the start: they make operations long enough to
// be hit in the middle.
const (
	bulkFields = 12000
	bulkKeys   = 1500
)

// pairScope is where two keys are that are always counted up together, by a
// writer that takes no notice of restores.
const pairWriter = writers

func pairKeys() (a, b, list, count string) {
	return key(pairWriter, "a"), key(pairWriter, "b"), keyed(pairWriter, "log", "s:z"), key(pairWriter, "logged")
}

// Operator state: what each mode holds, whatever the parallelism.
var (
	listItems  = []string{`"p0"`, `"p1"`, `"p2"`, `"p3"`, `"p4"`, `"p5"`, `"p6"`, `"p6"`, `"p8"`, `"p9"`, `"p10"`}
	unionItems = []string{`"u0"`, `"u1"`, `"u2"`}
	rules      = map[string]string{`"late"`: "15", `"very late"`: "60.0"}
)

const startParallelism = 2

func operatorKey(subtask int, name string) string {
	return job.OperatorKey("g", "orders", subtask, "src", name)
}

// bulk is the static part of the state.
func bulk() map[string]entry {
	keys := map[string]entry{}
	big := map[string]string{}
	for i := range bulkFields {
		big[fmt.Sprintf("s:airport %d", i)] = fmt.Sprintf(`{"count":%d,"mean":%d.5}`, i*7, i%90)
	}
	keys[key(9, "big")] = hashOf(big)
	for i := range bulkKeys {
		keys[ring(10, "small", i)] = hashOf(map[string]string{`"JFK"`: strconv.Itoa(i), `"LGA"`: strconv.Itoa(3 * i)})
	}
	return keys
}

// populate writes everything that is there before the first checkpoint.
func populate(t *testing.T, c *redis.Client) {
	t.Helper()
	pipe := c.Pipeline()
	do := func(all ...[]any) {
		for _, words := range all {
			pipe.Do(t.Context(), words...)
		}
	}
	for id := range writers {
		do(registration(id)...)
	}
	a, b, list, count := pairKeys()
	for _, name := range []string{a, b, list, count} {
		do(register(name)...)
	}
	do(register(key(9, "big"))...)
	for i := range bulkFields {
		do([]any{"HSET", key(9, "big"), fmt.Sprintf("s:airport %d", i), fmt.Sprintf(`{"count":%d,"mean":%d.5}`, i*7, i%90)})
	}
	for i := range bulkKeys {
		do(register(ring(10, "small", i))...)
		do([]any{"HSET", ring(10, "small", i), `"JFK"`, i, `"LGA"`, 3 * i})
	}
	populateOperators(do)
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

func populateOperators(do func(...[]any)) {
	for _, name := range []string{"offsets", "seen", "rules"} {
		mode := map[string]string{"offsets": "list", "seen": "union", "rules": "broadcast"}[name]
		do([]any{"HSET", job.OperatorStates(), "src\x01" + name, `{"mode":"` + mode + `"}`})
		for p := range startParallelism {
			do(register(operatorKey(p, name))...)
		}
	}
	for i, item := range listItems {
		do([]any{"RPUSH", operatorKey(i%startParallelism, "offsets"), item})
	}
	do([]any{"RPUSH", operatorKey(0, "seen"), unionItems[0], unionItems[1]}, []any{"RPUSH", operatorKey(1, "seen"), unionItems[2]})
	for p := range startParallelism {
		for k, v := range rules {
			do([]any{"HSET", operatorKey(p, "rules"), k, v})
		}
	}
}

// populateForeign writes keys of all types that belong to nobody we know,
// some with names that a careless pattern would match.
func populateForeign(t *testing.T, c *redis.Client) {
	t.Helper()
	near := []string{
		job.Root() + "2:stateKeys", job.Root() + ":unlisted", job.Root(), "streaming:runtime:tort",
		job.Prefix + ":torture*:stateKeys", job.Root() + ":cg:g:topic:orders:p:0:state:op0:not registered", "elsewhere",
	}
	pipe := c.Pipeline()
	for i, name := range near {
		for _, words := range [][]any{
			{"SADD", name, "m1", "m2\xff"}, {"HSET", name + ":h", "f", "v"}, {"RPUSH", name + ":l", "x", "x", ""},
			{"ZADD", name + ":z", "0.1", "z"}, {"SET", name + ":s", "\x00text"}, {"XADD", name + ":x", "5-1", "f", "v"},
			{"PEXPIREAT", name + ":s", farAway + i},
		} {
			pipe.Do(t.Context(), words...)
		}
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
}

// sorted is a sorted copy.
func sorted(s []string) []string {
	out := append([]string{}, s...)
	sort.Strings(out)
	return out
}
