package torture

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
)

// kept is what a key of a writer holds, by the writer's own log.
type kept struct {
	kind   string
	hash   map[string]string
	list   []string
	set    map[string]bool
	zset   map[string]float64
	text   string
	expire int64
}

func (v *kept) clone() *kept {
	c := *v
	c.hash, c.list, c.set, c.zset = maps.Clone(v.hash), slices.Clone(v.list), maps.Clone(v.set), maps.Clone(v.zset)
	return &c
}

func (v *kept) size() int { return len(v.hash) + len(v.list) + len(v.set) + len(v.zset) + len(v.text) }

func (v *kept) fact() fact {
	f := fact{kind: v.kind, expire: v.expire}
	for name, value := range v.hash {
		f.add(false, []byte(name), []byte(value))
	}
	for _, item := range v.list {
		f.add(true, []byte(item))
	}
	for member := range v.set {
		f.add(false, []byte(member))
	}
	for member, score := range v.zset {
		f.add(false, []byte(member), scoreBits(score))
	}
	if v.kind == "string" {
		f.add(false, []byte(v.text))
	}
	return f
}

// Sizes of a writer's keys: the big hash is far above what is read at once.
const (
	wildKeys  = 48
	bigFields = 110_000
	evenMost  = 150 // elements of the containers that are kept even
)

// ledger is one writer: it makes commands at random, and is its own log of
// what must have come of those that were acknowledged.
type ledger struct {
	id    int
	rng   *rand.Rand
	n     int64 // what all its counters are
	keys  map[string]*kept
	index map[string]bool
	big   bool
	moved int
	made  int
	dumps []dumped // for RESTORE

	queue [][]any
	after func(reply any) // takes the answer to the last command
}

type dumped struct {
	payload string
	value   *kept
}

func newLedger(id int, seed uint64, big bool) *ledger {
	return &ledger{id: id, rng: rand.New(rand.NewPCG(seed, uint64(id))), keys: map[string]*kept{}, index: map[string]bool{}, big: big}
}

func (l *ledger) emit(words ...any) { l.queue = append(l.queue, words) }

// listed makes sure that the index has a name, as a writer's handle does.
func (l *ledger) listed(name string) {
	if l.index[name] && l.rng.IntN(4) > 0 {
		return
	}
	l.index[name] = true
	l.emit("SADD", job.Index(), name)
	l.emit("HSET", job.Registry(), name, schema)
}

func (l *ledger) wild() string { return ring(l.id, "wild", l.rng.IntN(wildKeys)) }

func (l *ledger) bigKey() string { return key(l.id, "big") }

func (l *ledger) word() string { return "f" + strconv.Itoa(l.rng.IntN(180)) }

func (l *ledger) value() string {
	return fmt.Sprintf(`{"n":%d,"of":%d,"mean":%d.25}`, l.n, l.id, l.rng.IntN(1e6))
}

// at gives a key to write to, of a kind that fits what is there.
func (l *ledger) at(name string) *kept {
	l.listed(name)
	v := l.keys[name]
	if v == nil {
		v = &kept{kind: []string{"hash", "list", "set", "zset", "string"}[l.rng.IntN(5)],
			hash: map[string]string{}, set: map[string]bool{}, zset: map[string]float64{}}
		l.keys[name] = v
	}
	return v
}

// settled forgets a key whose last element is gone, as the server does.
func (l *ledger) settled(name string) {
	if v := l.keys[name]; v != nil && v.size() == 0 && v.kind != "string" {
		delete(l.keys, name)
	}
}

// step makes one random change.
func (l *ledger) step() {
	switch p := l.rng.IntN(1000); {
	case p < 400 && l.big:
		l.bigStep()
	case p < 780:
		name := l.wild()
		l.change(name, l.at(name))
		l.settled(name)
	case p < 810:
		l.remove()
	case p < 835:
		l.rename()
	case p < 860:
		l.copy()
	case p < 880:
		l.restore()
	case p < 905:
		l.script()
	case p < 930:
		l.expiry()
	case p < 945:
		l.leave()
	case p < 970:
		l.flash()
	case p < 985:
		l.combine()
	default:
		l.fresh()
	}
}

func (l *ledger) bigStep() {
	v := l.keys[l.bigKey()]
	f := "s:k" + strconv.Itoa(l.rng.IntN(bigFields+500))
	switch l.rng.IntN(8) {
	case 0:
		delete(v.hash, f)
		l.emit("HDEL", l.bigKey(), f)
	default:
		v.hash[f] = l.value()
		l.emit("HSET", l.bigKey(), f, v.hash[f])
	}
}

func (l *ledger) change(name string, v *kept) {
	switch v.kind {
	case "hash":
		l.changeHash(name, v)
	case "list":
		l.changeList(name, v)
	case "set":
		m := l.word()
		if l.rng.IntN(3) == 0 && len(v.set) > 0 {
			delete(v.set, m)
			l.emit("SREM", name, m)
			return
		}
		v.set[m] = true
		l.emit("SADD", name, m)
	case "zset":
		l.changeZSet(name, v)
	case "string":
		if l.rng.IntN(2) == 0 && len(v.text) < 4000 && len(v.text) > 0 {
			more := l.value()
			v.text += more
			l.emit("APPEND", name, more)
			return
		}
		v.text = l.value()
		l.emit("SET", name, v.text, "KEEPTTL")
	}
}

func (l *ledger) changeHash(name string, v *kept) {
	f := l.word()
	switch l.rng.IntN(6) {
	case 0:
		delete(v.hash, f)
		l.emit("HDEL", name, f)
	case 1:
		f = "n:" + f
		was, _ := strconv.ParseInt(v.hash[f], 10, 64) // 0 where there is none
		by := int64(l.rng.IntN(100))
		v.hash[f] = strconv.FormatInt(was+by, 10)
		l.emit("HINCRBY", name, f, by)
	case 2:
		other := l.word()
		v.hash[f] = l.value()
		v.hash[other] = v.hash[f] + "2"
		l.emit("HSET", name, f, v.hash[f], other, v.hash[other])
		if f == other {
			v.hash[f] = v.hash[other]
		}
	default:
		v.hash[f] = l.value()
		l.emit("HSET", name, f, v.hash[f])
	}
}

func (l *ledger) changeList(name string, v *kept) {
	switch n := len(v.list); {
	case n > 200:
		v.list = slices.Clone(v.list[n-100:])
		l.emit("LTRIM", name, -100, -1)
	case n > 2 && l.rng.IntN(4) == 0:
		v.list = v.list[1:]
		l.emit("LPOP", name)
	case n > 2 && l.rng.IntN(5) == 0:
		i := l.rng.IntN(n)
		v.list[i] = l.value()
		l.emit("LSET", name, i, v.list[i])
	case l.rng.IntN(3) == 0:
		item := l.value()
		v.list = slices.Insert(v.list, 0, item)
		l.emit("LPUSH", name, item)
	default:
		v.list = append(v.list, l.value())
		l.emit("RPUSH", name, v.list[n])
	}
}

func (l *ledger) changeZSet(name string, v *kept) {
	m := l.word()
	switch l.rng.IntN(5) {
	case 0:
		delete(v.zset, m)
		l.emit("ZREM", name, m)
	case 1:
		by := float64(l.rng.IntN(64)) * 0.25
		v.zset[m] += by
		l.emit("ZINCRBY", name, by, m)
	default:
		v.zset[m] = float64(l.rng.IntN(1e6)) * 0.25
		l.emit("ZADD", name, v.zset[m], m)
	}
}

func (l *ledger) remove() {
	name := l.wild()
	delete(l.keys, name)
	l.emit([]string{"DEL", "UNLINK"}[l.rng.IntN(2)], name)
}

func (l *ledger) rename() {
	from, to := l.wild(), l.wild()
	if l.keys[from] == nil || from == to {
		return
	}
	l.listed(to)
	l.keys[to] = l.keys[from]
	delete(l.keys, from)
	l.emit("RENAME", from, to)
}

func (l *ledger) copy() {
	from, to := l.wild(), l.wild()
	if l.keys[from] == nil || from == to {
		return
	}
	l.listed(to)
	l.keys[to] = l.keys[from].clone()
	l.emit("COPY", from, to, "REPLACE")
}

func (l *ledger) restore() {
	d := l.dumps[l.rng.IntN(len(l.dumps))]
	name := l.wild()
	l.listed(name)
	l.keys[name] = d.value.clone()
	l.emit("RESTORE", name, 0, d.payload, "REPLACE")
}
