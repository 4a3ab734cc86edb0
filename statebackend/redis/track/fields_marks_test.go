package track

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// marked feeds commands to a tracker with one watch on j and gives the marks.
func marked(t *testing.T, o Options, lines ...string) Marks {
	t.Helper()
	f := offline(t, o)
	w := watch(t, f, Scope{Root: "j", Extra: [][]byte{[]byte("out")}})
	require.ErrorContains(t, feed(f, []byte(sent(append([]string{"SELECT 0"}, lines...)...))), "closed the link")
	return w.Take()
}

// TestWhatEachCommandMarks holds the table: exact fields where they are known,
// no key where there is none.
func TestWhatEachCommandMarks(t *testing.T) {
	for line, want := range map[string]string{
		"HSET j:h j:f 1 g j:v": "j:h:g,j:f", "hmset j:h f 1": "j:h:f", "HSETNX j:h f g": "j:h:f", "HDEL j:h f g": "j:h:f,g",
		"HINCRBY j:h f 5": "j:h:f", "HINCRBYFLOAT j:h f 5": "j:h:f", "SADD j:s a b": "j:s:a,b", "SREM j:s a": "j:s:a",
		"SMOVE j:s j:t m": "j:s:m j:t:m", "SMOVE j:s k:t m": "j:s:m", "SMOVE k:s j:t m": "j:t:m", "SMOVE j:s j:s m": "j:s:m",
		"ZADD j:z 1 a 2 b": "j:z:a,b", "zadd j:z nx Gt CH incr 1 a": "j:z:a", "ZADD j:z xx LT 1 NX 2 XX": "j:z:NX,XX",
		"ZREM j:z a b": "j:z:a,b", "ZINCRBY j:z 5 a": "j:z:a",
		"PEXPIREAT j:h 5": "j:h:", "EXPIREAT j:h 5": "j:h:", "PERSIST j:h": "j:h:", "EXPIRE j:h 5": "j:h:", "PEXPIRE j:h 5": "j:h:",
		"EXPIRE j:h 0": "j:h!", "PEXPIRE j:h -5": "j:h!", "PEXPIRE j:h x": "j:h!",
		"SPOP j:s": "j:s!", "DEL j:a k:b j:c out": "j:a! j:c! out!", "NEWCOMMAND x j:a 5 j:b": "j:a! j:b!", "json.set j:a $ 1": "j:a!",
		"RENAME out j:b": "j:b! out!", "SET k:a j:b": "j:b!", "SET outer out:": "", "GEOSEARCHSTORE j:a k:b": "j:a!",
		"HSET": "", "HSET j:h": "j:h:", "ZADD j:z": "j:z:", "ZADD j:z NX": "j:z:", "ZADD j:z 1": "j:z:", "SMOVE j:s j:t": "j:s! j:t!", "EXPIRE j:h": "j:h!", "DEL": "",
		"HSET k:h j:a j:b": "", "HSET out f v": "out:f",
		"PING": "", "MULTI": "", "EXEC": "", "PUBLISH j:c j:m": "", "SPUBLISH j:c j:m": "", "FUNCTION LOAD j:code": "", "SCRIPT FLUSH": "",
		"REPLCONF GETACK j:x": "", "SELECT 5": "",
		"FLUSHALL": "all", "flushall ASYNC": "all", "FLUSHDB": "all", "SWAPDB 3 4": "all", "EVAL x 1 k": "all", "EVALSHA x 0": "all",
		"FCALL f 0": "all", "DEBUG x": "all", "CLUSTER x": "all", "RREPLAY x": "all", "FT.DROPINDEX i DD": "all", "TS.ADD k 1 2": "all",
	} {
		require.Equal(t, want, text(marked(t, Options{}, line)), line)
	}
	require.Empty(t, text(marked(t, Options{}, "SELECT 1", "HSET j:h f v", "FLUSHDB", "SMOVE j:a j:b m", "EXPIRE j:h 1")), "another database")
	require.Equal(t, "j:a!", text(marked(t, Options{}, "SELECT 1", "MOVE j:a 0")), "a command that may reach into another one")
}

// text shows marks in order: name! for a whole key, name:fields otherwise.
func text(m Marks) string {
	if m.All {
		return "all"
	}
	var all []string
	for name, k := range m.Keys {
		if k.Whole {
			all = append(all, name+"!")
		} else {
			all = append(all, name+":"+strings.Join(slices.Sorted(maps.Keys(k.Fields)), ","))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestAnotherTypeInBetween: fields of two types can't stand for one key.
func TestAnotherTypeInBetween(t *testing.T) {
	m := marked(t, Options{}, "HDEL j:k f", "SADD j:k m")
	require.Equal(t, "j:k!", text(m))
	first, second := marked(t, Options{}, "HDEL j:k f", "EXPIRE j:l 1"), marked(t, Options{}, "ZADD j:k 1 m", "SADD j:l m")
	first.Merge(second)
	require.Equal(t, "j:k! j:l:m", text(first))
	first.Merge(marked(t, Options{}, "HSET j:l f v"))
	require.Equal(t, "j:k! j:l!", text(first))
}

func TestWholeStaysWhole(t *testing.T) {
	require.Equal(t, "j:k!", text(marked(t, Options{}, "HSET j:k f v", "DEL j:k", "HSET j:k g v")))
	require.Equal(t, "j:k!", text(marked(t, Options{}, "DEL j:k", "SADD j:k g", "PERSIST j:k")))
}

func TestManyFieldsOfAKeyMakeItWhole(t *testing.T) {
	var lines []string
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("HSET j:big field-%04d v", i), fmt.Sprintf("HSET j:small%d f v", i%3))
	}
	m := marked(t, Options{Limits: Limits{KeyBytes: 299 * 10}}, lines...)
	require.False(t, m.All, m.Reason)
	require.True(t, whole(m, "j:big"))
	require.Equal(t, []string{"f"}, fieldsOf(m, "j:small0"))
	require.Len(t, marked(t, Options{Limits: Limits{KeyBytes: 300 * 10}}, lines...).Keys["j:big"].Fields, 300)

	// One hot key with short names must not cost the others their fields.
	m = marked(t, Options{Limits: Limits{Bytes: 10_000}}, lines...)
	require.False(t, m.All, m.Reason)
	require.True(t, whole(m, "j:big"))
	require.Equal(t, []string{"f"}, fieldsOf(m, "j:small0"))
}

// TestManyKeysGiveUpTheirFields: whole keys before all of them.
func TestManyKeysGiveUpTheirFields(t *testing.T) {
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("HSET j:%03d f v", i)) // 5+64+1+64+208
	}
	require.Len(t, fieldsOf(marked(t, Options{Limits: Limits{Bytes: 342 * 100}}, lines...), "j:000"), 1)
	m := marked(t, Options{Limits: Limits{Bytes: 342*100 - 1}}, lines...)
	require.False(t, m.All, m.Reason)
	require.Len(t, m.Keys, 100)
	require.True(t, whole(m, "j:000"))
	m = marked(t, Options{Limits: Limits{Bytes: 69 * 90}}, lines...)
	require.True(t, m.All)
	require.Contains(t, m.Reason, "6210 bytes")
}

// TestTheBoundIsOfMemory compares what is counted with the heap.
func TestTheBoundIsOfMemory(t *testing.T) {
	for _, each := range []int{0, 1, 5, 1000} {
		f := offline(t, Options{Limits: Limits{Bytes: 1 << 30, KeyBytes: 1 << 30}})
		w := watch(t, f, Scope{Root: "j"}).(*fieldsWatch)
		lines := []string{"SELECT 0"}
		for i := range 50_000 {
			key := fmt.Sprintf("j:cg:g:topic:t:p:1:state:op:name:%06d", i/max(each, 1))
			if each == 0 {
				lines = append(lines, "DEL "+key)
			} else {
				lines = append(lines, fmt.Sprintf("HSET %s s:field-%06d v", key, i))
			}
		}
		stream := []byte(sent(lines...))
		lines = nil
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		require.Error(t, feed(f, stream))
		runtime.GC()
		runtime.ReadMemStats(&after)
		held := int(after.HeapAlloc) - int(before.HeapAlloc)
		require.InEpsilon(t, w.bytes, held, 0.5, "%d fields each: %d counted, %d held", each, w.bytes, held)
		runtime.KeepAlive(stream)
	}
}

// TestSizesAreWhatIsHeld counts after each command, in random order of growth.
func TestSizesAreWhatIsHeld(t *testing.T) {
	f := offline(t, Options{Limits: Limits{Bytes: 5000, KeyBytes: 100}})
	w := watch(t, f, Scope{Root: "j"}).(*fieldsWatch)
	for i := range 2000 {
		line := fmt.Sprintf("HSET j:%d f%d v", i%7, i%13)
		if i%11 == 0 {
			line = fmt.Sprintf("DEL j:%d", i%9)
		}
		require.Error(t, feed(f, []byte(sent("SELECT 0", line))))
		fields, bytes := 0, 0
		for name, k := range w.keys {
			fields += len(k.Fields)
			bytes += len(name) + nameCost + k.cost()
			require.False(t, k.Whole && k.Fields != nil)
		}
		keys, counted := w.Size()
		require.Equal(t, []int{len(w.keys), fields, bytes}, []int{keys, counted, w.bytes})
		if i%500 == 499 {
			w.Take()
		}
	}
}

// TestLongNames: what can't be held makes the marks coarser, in three steps.
func TestLongNames(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j", Extra: [][]byte{[]byte("out")}})
	big := strings.Repeat("n", longestField)
	s.Do("HSET", "j:h", big, "v", "f", "v")
	s.Do("HSET", "j:g", big+"n", "v", "f", "v")
	s.Do("SADD", "j:s", "a", big+"n", "b")
	s.Do("ZADD", "j:z", 1, big+"n")
	s.Do("SMOVE", "j:s", "j:t", big+"n")
	m := settled(t, s, w)
	require.ElementsMatch(t, []string{big, "f"}, fieldsOf(m, "j:h"))
	for _, key := range []string{"j:g", "j:s", "j:z", "j:t"} {
		require.True(t, whole(m, key), key)
	}

	name := "j:" + strings.Repeat("n", longestArg-2)
	s.Do("SET", name, "v")
	s.Do("HSET", name[:len(name)-1], "f", "v")
	m = settled(t, s, w)
	require.True(t, whole(m, name))
	require.Equal(t, []string{"f"}, fieldsOf(m, name[:len(name)-1]))

	other := watch(t, f, Scope{Root: "k"})
	for _, command := range [][]any{{"SET", name + "n", "v"}, {"HSET", name + "m", "f", "v"}, {"SET", "k:v", name + "n"}} {
		s.Do(command...)
		m = settled(t, s, w)
		require.True(t, m.All, command[0])
		require.Contains(t, m.Reason, fmt.Sprint(len(name)+1))
		require.False(t, settled(t, s, other).All)
	}
	s.Do("SET", "k:v", strings.Repeat("j", 3*longestArg))
	require.Empty(t, settled(t, s, w).Keys)
}

func TestALongExtraNameIsNotMissed(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	name := strings.Repeat("n", longestArg+5)
	w := watch(t, f, Scope{Root: "j", Extra: [][]byte{[]byte(name)}})
	s.Do("SET", name+"n", "v")
	require.False(t, settled(t, s, w).All, "longer than any of the names")
	s.Do("SET", name, "v")
	require.True(t, settled(t, s, w).All)
}

// TestLongValuesAreNotHeld: 90 MB go by in a few buffers.
func TestLongValuesAreNotHeld(t *testing.T) {
	s := redistest.Start(t)
	f := startFields(t, Options{Dial: dialer(t, s, login{}), Server: s.Addr}, timing{})
	w := watch(t, f, Scope{Root: "j"})
	require.NoError(t, w.Barrier(patient(t), position(t, s)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := connect(t, s.Addr, 0).Call(1<<10, "EVAL", `local v = string.rep('x', 3e7)
		redis.call('HSET', KEYS[1], 'f', v) redis.call('SET', 'j:v', v) redis.call('SET', 'k:v', v)`, "1", "j:h")
	require.NoError(t, err)
	m := settled(t, s, w)
	runtime.ReadMemStats(&after)
	require.Equal(t, []string{"f"}, fieldsOf(m, "j:h"))
	require.True(t, whole(m, "j:v"))
	require.Len(t, m.Keys, 2)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "all allocations of this time, not only those that live")
}
