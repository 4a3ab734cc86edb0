package torture

import (
	"maps"
	"strconv"
	"time"
)

// twoKeys is a script that writes to two keys of any state at once.
const twoKeys = `redis.call('DEL', KEYS[1], KEYS[2])
for i = 1, tonumber(ARGV[1]) do
  redis.call('HSET', KEYS[1], 'by script ' .. i, ARGV[2])
  redis.call('RPUSH', KEYS[2], ARGV[2] .. i)
end
return redis.call('HLEN', KEYS[1])`

func (l *ledger) script() {
	one, two := l.wild(), l.wild()
	if one == two {
		return
	}
	l.listed(one)
	l.listed(two)
	n, text := 1+l.rng.IntN(20), l.value()
	h, list := &kept{kind: "hash", hash: map[string]string{}, set: map[string]bool{}, zset: map[string]float64{}}, &kept{kind: "list"}
	for i := 1; i <= n; i++ {
		h.hash["by script "+strconv.Itoa(i)] = text
		list.list = append(list.list, text+strconv.Itoa(i))
	}
	l.keys[one], l.keys[two] = h, list
	l.emit("EVAL", twoKeys, 2, one, two, n, text)
}

func (l *ledger) expiry() {
	name := l.wild()
	v := l.keys[name]
	if v == nil {
		return
	}
	if v.expire != 0 && l.rng.IntN(2) == 0 {
		v.expire = 0
		l.emit("PERSIST", name)
		return
	}
	v.expire = farAway + int64(l.rng.IntN(1e9))
	l.emit("PEXPIREAT", name, v.expire)
}

// leave takes a name out of the index; what is under it is no state from then
// on, and is again when it is written to the next time.
func (l *ledger) leave() {
	name := l.wild()
	if !l.index[name] {
		return
	}
	delete(l.index, name)
	l.emit("SREM", job.Index(), name)
	l.emit("HDEL", job.Registry(), name)
}

// flash writes a key that soon expires, whole, so that nothing hangs on when.
func (l *ledger) flash() {
	name := ring(l.id, "flash", l.rng.IntN(flashes))
	l.listed(name)
	delete(l.keys, name) // the log says nothing about it
	l.emit("DEL", name)
	at := time.Now().UnixMilli() + 100 + int64(l.rng.IntN(3000))
	switch l.rng.IntN(3) {
	case 0:
		l.emit("SET", name, l.value(), "PXAT", at)
	case 1:
		l.emit("HSET", name, l.word(), l.value())
		l.emit("PEXPIREAT", name, at)
	default:
		l.emit("RPUSH", name, l.value(), l.value())
		l.emit("PEXPIREAT", name, at)
	}
}

// combine lets the server make a key of others.
func (l *ledger) combine() {
	from, other, to := l.wild(), l.wild(), l.wild()
	a, b := l.keys[from], l.keys[other]
	if a == nil || b == nil || a.kind != "set" || b.kind != "set" || to == from || to == other {
		return
	}
	union := maps.Clone(a.set)
	maps.Copy(union, b.set)
	l.listed(to)
	l.keys[to] = &kept{kind: "set", set: union}
	l.emit("SUNIONSTORE", to, from, other)
}

// fresh makes a name that was never there, and forgets an old one for good.
func (l *ledger) fresh() {
	name := ring(l.id, "fresh", l.made)
	l.made++
	l.listed(name)
	l.keys[name] = &kept{kind: "hash", hash: map[string]string{"born": l.value()}}
	l.emit("HSET", name, "born", l.keys[name].hash["born"])
	if old := ring(l.id, "fresh", l.made-40); l.keys[old] != nil {
		delete(l.keys, old)
		delete(l.index, old)
		l.emit("SREM", job.Index(), old)
		l.emit("HDEL", job.Registry(), old)
		l.emit("DEL", old)
	}
}

// Names of what each transaction keeps even.
func evenNames(id int) []string {
	return []string{key(id, "one"), key(id, "two"), key(id, "text"), key(id, "score"), key(id, "left"), key(id, "right"), key(id, "first"), key(id, "second")}
}

// even makes the writer's counters equal again: in two hashes, a string and a
// zset, and by the sizes of two sets and of two lists.
func (l *ledger) even() {
	l.n++
	names, n := evenNames(l.id), strconv.FormatInt(l.n, 10)
	if l.n == 1 {
		for _, name := range names {
			l.index[name] = true
			l.emit("SADD", job.Index(), name)
		}
		l.keys[names[4]], l.keys[names[5]] = &kept{kind: "set", set: map[string]bool{}}, &kept{kind: "set", set: map[string]bool{}}
		l.keys[names[6]], l.keys[names[7]] = &kept{kind: "list"}, &kept{kind: "list"}
	}
	for _, name := range names[:2] {
		l.keys[name] = &kept{kind: "hash", hash: map[string]string{"s:n": n}}
		l.emit("HSET", name, "s:n", n)
	}
	l.keys[names[2]] = &kept{kind: "string", text: n}
	l.emit("SET", names[2], n)
	l.keys[names[3]] = &kept{kind: "zset", zset: map[string]float64{"n": float64(l.n)}}
	l.emit("ZADD", names[3], n, "n")
	l.evenSizes(names, n)
	if l.big {
		l.keys[l.bigKey()].hash["s:n"] = n
		l.emit("HSET", l.bigKey(), "s:n", n)
	}
	l.stream(n)
}

func (l *ledger) evenSizes(names []string, n string) {
	gone := strconv.FormatInt(l.n-evenMost, 10)
	for _, name := range names[4:6] {
		v := l.keys[name]
		v.set[n] = true
		l.emit("SADD", name, n)
		if v.set[gone] {
			delete(v.set, gone)
			l.emit("SREM", name, gone)
		}
	}
	for _, name := range names[6:8] {
		v := l.keys[name]
		v.list = append(v.list, n)
		l.emit("RPUSH", name, n)
		if len(v.list) > evenMost {
			v.list = v.list[1:]
			l.emit("LPOP", name)
		}
	}
}

// Names of the streams: one among the state, one that the job reads from.
const soakTopic, soakGroup = "soak", "readers"

func sourceKey(id int) string { return "stream:topic:" + soakTopic + ":p:" + strconv.Itoa(id) }

// stream writes entry n into both, and reads and acknowledges it.
func (l *ledger) stream(n string) {
	state := key(l.id, "stream")
	for _, name := range []string{state, sourceKey(l.id)} {
		if l.n == 1 {
			l.emit("XGROUP", "CREATE", name, soakGroup, "0", "MKSTREAM")
		}
		l.emit("XADD", name, "MAXLEN", 60, n+"-1", "n", n)
		l.emit("XREADGROUP", "GROUP", soakGroup, "c", "COUNT", 5, "STREAMS", name, ">")
		l.emit("XACK", name, soakGroup, strconv.FormatInt(max(l.n-3, 0), 10)+"-1")
	}
	if l.n == 1 {
		l.index[state] = true
		l.emit("SADD", job.Index(), state)
	}
	if l.n%50 == 0 {
		l.emit("XDEL", state, strconv.FormatInt(l.n-10, 10)+"-1")
	}
}

// last ends a transaction with a command whose effect only its answer tells.
func (l *ledger) last() {
	name := l.wild()
	v := l.keys[name]
	if v == nil {
		return
	}
	switch l.rng.IntN(8) {
	case 0:
		if v.kind != "set" {
			return
		}
		l.emit("SPOP", name)
		l.after = func(reply any) {
			delete(v.set, reply.(string))
			l.settled(name)
		}
	case 1:
		l.emit("MOVE", name, 1)
		l.after = func(reply any) {
			if reply.(int64) == 1 {
				delete(l.keys, name)
				l.moved++
			}
		}
	}
}
