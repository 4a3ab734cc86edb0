package torture

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"keyframe/statebackend"
)

// job is the job under test. Its neighbours' names begin alike.
var job = statebackend.Job{Prefix: "streaming:runtime", Name: "torture"}

// groups is the job's max parallelism.
const groups = 16

// How many names each ring of a writer's keys has.
const (
	sessions = 16
	flashes  = 8
	dynamics = 60
)

// cluster of writers: each owns the keys of one operator in one partition, so
// that everything it has written follows from its number and its sequence.
const writers = 4

// model is what a writer's keys hold after its first seq steps.
type model struct {
	id       int
	seq      uint64
	table    map[string]string
	list     []string
	set      map[string]bool
	zset     map[string]float64
	blob     string
	sessions [sessions]session
	dyn      [dynamics]map[string]string
	known    [dynamics]bool // registered once
}

type session struct {
	fields map[string]string
	expire int64
}

func newModel(id int) *model {
	return &model{id: id, table: map[string]string{}, set: map[string]bool{}, zset: map[string]float64{}}
}

func (m *model) clone() *model {
	c := *m
	c.table, c.set, c.zset, c.list = maps.Clone(m.table), maps.Clone(m.set), maps.Clone(m.zset), slices.Clone(m.list)
	for i := range c.sessions {
		c.sessions[i].fields = maps.Clone(m.sessions[i].fields)
	}
	for i := range c.dyn {
		c.dyn[i] = maps.Clone(m.dyn[i])
	}
	return &c
}

func scope(id int) statebackend.Scope {
	return statebackend.Scope{Group: "g", Topic: "orders", Partition: id % groups, Operator: "op" + strconv.Itoa(id)}
}

func key(id int, state string) string          { return job.StateKey(scope(id), state) }
func keyed(id int, state, typed string) string { return job.KeyedKey(scope(id), state, typed) }
func ring(id int, state string, i int) string  { return keyed(id, state, "s:"+strconv.Itoa(i)) }
func zsetKey(id int) string                    { return job.WindowDueKey(scope(id), "win") }

// registration registers a writer's keys, as its process does once at start.
func registration(id int) [][]any {
	names := []string{key(id, "seq"), key(id, "chain"), key(id, "table"), key(id, "counts"), key(id, "blob"), keyed(id, "recent", "s:x"), keyed(id, "seen", "s:y"), zsetKey(id)}
	for i := range sessions {
		names = append(names, ring(id, "session", i))
	}
	for i := range flashes {
		names = append(names, ring(id, "flash", i))
	}
	var out [][]any
	for _, name := range names {
		out = append(out, register(name)...)
	}
	return out
}

const schema = "java.lang.String|3"

func register(name string) [][]any {
	return [][]any{{"SADD", job.Index(), name}, {"HSET", job.Registry(), name, schema}}
}

// mix is splitmix64: step n of writer id always does the same.
func mix(id int, n uint64) uint64 {
	z := (uint64(id+1) << 48) + n*0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// farAway is where the expiry of sessions begins: in 2040.
const farAway = 2208988800000

// step makes the next step; emit (nil when only the end counts) is told the
// commands that do it in Redis. now is the clock for keys that soon expire.
func (m *model) step(now int64, emit func(args ...any)) {
	if emit == nil {
		emit = func(...any) {}
	}
	m.seq++
	h := mix(m.id, m.seq)
	kind, arg := h%100, h>>8
	switch {
	case kind < 25:
		f, v := "s:k"+strconv.FormatUint(arg%400, 10), strconv.FormatUint(m.seq, 10)
		m.table[f] = v
		emit("HSET", key(m.id, "table"), f, v)
	case kind < 35:
		f := "s:k" + strconv.FormatUint(arg%400, 10)
		delete(m.table, f)
		emit("HDEL", key(m.id, "table"), f)
	case kind < 50:
		m.push(emit)
	case kind < 65:
		m.toggleMember(arg, kind >= 60, emit)
	case kind < 80:
		m.toggleScore(arg, kind >= 75, emit)
	case kind < 91:
		m.session(int(arg%sessions), arg, kind, emit)
	case kind < 96:
		m.dynamic(int(arg%dynamics), kind >= 94, emit)
	case kind < 98:
		m.blob = strings.Repeat(string(rune('a'+arg%26))+"\x00\xff", 1+int(arg%(1<<uint(arg%14))))
		emit("SET", key(m.id, "blob"), m.blob)
	default:
		at := now + 200 + int64(arg%1500)
		emit("SET", ring(m.id, "flash", int(arg%flashes)), at, "PXAT", at)
	}
}

func (m *model) push(emit func(...any)) {
	item := fmt.Sprintf("\x00%d\xff", m.seq)
	m.list = append(m.list, item)
	emit("RPUSH", keyed(m.id, "recent", "s:x"), item)
	if len(m.list) > 200 {
		m.list = slices.Clone(m.list[60:])
		emit("LPOP", keyed(m.id, "recent", "s:x"), 60)
	}
}

func (m *model) toggleMember(arg uint64, remove bool, emit func(...any)) {
	member := "member " + strconv.FormatUint(arg%500, 10)
	if remove {
		delete(m.set, member)
		emit("SREM", keyed(m.id, "seen", "s:y"), member)
		return
	}
	m.set[member] = true
	emit("SADD", keyed(m.id, "seen", "s:y"), member)
}

func (m *model) toggleScore(arg uint64, remove bool, emit func(...any)) {
	member := "s:w\x01" + strconv.FormatUint(arg%300, 10)
	if remove {
		delete(m.zset, member)
		emit("ZREM", zsetKey(m.id), member)
		return
	}
	score := math.Float64frombits(0x3ff0000000000000|arg<<8>>12) * float64(m.seq)
	switch arg % 50 {
	case 0:
		score = math.Inf(1)
	case 1:
		score = math.Inf(-1)
	}
	m.zset[member] = score
	emit("ZADD", zsetKey(m.id), strconv.FormatFloat(score, 'g', -1, 64), member)
}

func (m *model) session(i int, arg, kind uint64, emit func(...any)) {
	name, s := ring(m.id, "session", i), &m.sessions[i]
	switch {
	case kind < 86:
		if s.fields == nil {
			s.fields = map[string]string{}
		}
		f, v := "s:f"+strconv.FormatUint(arg%9, 10), strconv.FormatUint(m.seq, 10)
		s.fields[f], s.expire = v, farAway+int64(arg%1e9)
		emit("HSET", name, f, v)
		emit("PEXPIREAT", name, s.expire)
	case kind < 88:
		s.expire = 0
		emit("PERSIST", name)
	default:
		*s = session{}
		emit("DEL", name)
	}
}

func (m *model) dynamic(i int, remove bool, emit func(...any)) {
	name := ring(m.id, "dyn", i)
	if remove {
		m.dyn[i] = nil
		emit("DEL", name)
		return
	}
	for _, words := range register(name) {
		emit(words...)
	}
	m.known[i] = true
	if m.dyn[i] == nil {
		m.dyn[i] = map[string]string{}
	}
	f, v := strconv.Quote(strconv.FormatUint(m.seq%13, 10)), strconv.FormatUint(m.seq, 10)
	m.dyn[i][f] = v
	emit("HSET", name, f, v)
}

// counts are the numbers that the writer keeps beside its containers.
func (m *model) counts() []any {
	return []any{"HSET", key(m.id, "counts"), "s:table", len(m.table), "s:list", len(m.list), "s:set", len(m.set), "s:zset", len(m.zset)}
}

// entries are the writer's keys as they must be; keys that soon expire are not
// among them. names are all that it has registered.
func (m *model) entries() (keys map[string]entry, names []string) {
	keys = map[string]entry{}
	put := func(name string, e entry) {
		names = append(names, name)
		if len(e.Elements) > 0 {
			keys[name] = e
		}
	}
	put(key(m.id, "table"), hashOf(m.table))
	put(keyed(m.id, "recent", "s:x"), entry{Type: "list", Elements: m.list})
	put(keyed(m.id, "seen", "s:y"), entry{Type: "set", Elements: slices.Sorted(maps.Keys(m.set))})
	z := entry{Type: "zset"}
	for member, score := range m.zset {
		z.Elements = append(z.Elements, scored(member, score))
	}
	sort.Strings(z.Elements)
	put(zsetKey(m.id), z)
	blob := entry{Type: "string"}
	if m.blob != "" {
		blob.Elements = []string{m.blob}
	}
	put(key(m.id, "blob"), blob)
	for i, s := range m.sessions {
		e := hashOf(s.fields)
		e.ExpireAt = s.expire
		put(ring(m.id, "session", i), e)
	}
	for i, fields := range m.dyn {
		if m.known[i] {
			put(ring(m.id, "dyn", i), hashOf(fields))
		}
	}
	if m.seq > 0 {
		put(key(m.id, "seq"), hashOf(map[string]string{"s:solo": strconv.FormatUint(m.seq, 10)}))
		put(key(m.id, "counts"), hashOf(map[string]string{"s:table": strconv.Itoa(len(m.table)), "s:list": strconv.Itoa(len(m.list)),
			"s:set": strconv.Itoa(len(m.set)), "s:zset": strconv.Itoa(len(m.zset))}))
	}
	for i := range flashes {
		names = append(names, ring(m.id, "flash", i))
	}
	return keys, names
}
