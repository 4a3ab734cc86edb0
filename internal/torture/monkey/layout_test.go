package monkey

import (
	"strconv"
	"strings"
)

// The job's names, as the key layout has them.
const (
	jobName   = "flights"
	root      = "streaming:runtime:" + jobName
	scope     = root + ":cg:stats:topic:flights:p:"
	indexKey  = root + ":stateKeys"
	schemaKey = root + ":stateSchema"
	recordKey = root + ":coordinator"
	leaseKey  = root + ":coordinator:lease"
	modesKey  = root + ":operatorState"
	schema    = "java.lang.Long|1"
)

// names are the keys of one partition's state for one airport.
type names struct {
	daily, delay, win, due, last, dest, to, seen string
}

func (p *partition) names(airport string) names {
	at := scope + strconv.Itoa(group(airport))
	base := at + ":state:agg" + strconv.Itoa(p.number)
	keyed := func(state string) string { return base + ":" + state + ":s:" + airport }
	return names{
		daily: base + ":daily", delay: base + ":delay", win: base + ":win",
		due:  at + ":windowDue:agg" + strconv.Itoa(p.number) + ":win",
		last: keyed("last"), dest: keyed("dest"), to: keyed("to"), seen: keyed("seen"),
	}
}

// all lists the names.
func (n names) all() []string {
	return []string{n.daily, n.delay, n.win, n.due, n.last, n.dest, n.to, n.seen}
}

// arrivals is the hash that all workers count in, of a destination.
func arrivals(airport string) string {
	return scope + strconv.Itoa(group(airport)) + ":state:total:arrivals"
}

// positionKey holds how far a partition has been read; its field is positionField.
func positionKey(part int) string {
	return scope + strconv.Itoa(part) + ":state:reader" + strconv.Itoa(part) + ":position"
}

const positionField = "s:solo"

// windowSize is how many records of a partition fall into a window; the newest
// two windows are kept.
const windowSize = 200

// window is the field and member of an airport's window.
func window(airport string, bucket int) string {
	return "s:" + airport + "\x01" + strconv.Itoa(bucket*windowSize) + "\x01" + strconv.Itoa((bucket+1)*windowSize)
}

// lastMost is how many delays are kept of an airport.
const lastMost = 10

// farAway is where expiries begin, in ms: in 2040.
const farAway = 2208988800000

// markEvery is after how many records the first partition's worker adds an item
// to the operator's list state.
const markEvery = 1000

func markItem(pos int) string { return strconv.Quote("mark " + strconv.Itoa(pos)) }

// The operator state that is there from the start.
var (
	listItems  = []string{`"p0"`, `"p1"`, `"p2"`, `"p2"`, `"p4"`, `"p5"`, `"p6"`}
	unionItems = []string{`"u0"`, `"u1"`, `"u2"`}
	rules      = map[string]string{`"late"`: "15", `"very late"`: "60.0"}
)

// startParallelism is the job's parallelism in its configuration.
const startParallelism = 2

func operatorKey(subtask int, state string) string {
	return scope + strconv.Itoa(subtask) + ":opstate:reader:" + state
}

// operatorState tells of which operator state a key is a part.
func operatorState(key string) (state string, subtask int, ok bool) {
	head, state, ok := strings.Cut(strings.TrimPrefix(key, scope), ":opstate:reader:")
	if !ok {
		return "", 0, false
	}
	subtask, err := strconv.Atoi(head)
	return state, subtask, err == nil
}

// register are the commands that make keys known, as a worker does with each
// of its writes.
func register(keys []string) [][]any {
	add, describe := []any{"SADD", indexKey}, []any{"HSET", schemaKey}
	for _, k := range keys {
		add = append(add, k)
		describe = append(describe, k, schema)
	}
	return [][]any{add, describe}
}

// commands are what a worker writes for the records from position from to
// before position to, with the new position.
func (p *partition) commands(from, to int) [][]any {
	var out [][]any
	touched := map[string]bool{}
	var keys []string
	touch := func(names ...string) {
		for _, n := range names {
			if !touched[n] {
				touched[n] = true
				keys = append(keys, n)
			}
		}
	}
	for pos := from; pos < to; pos++ {
		if pos%windowSize == 0 && pos/windowSize >= 2 {
			out = append(out, p.closeWindows(pos/windowSize-2)...)
		}
		f := p.at(pos)
		n := p.names(f.Origin)
		touch(n.all()...)
		touch(arrivals(f.Destination))
		out = append(out, p.count(pos, f, n)...)
		if p.number == 0 && pos > 0 && pos%markEvery == 0 {
			out = append(out, []any{"RPUSH", operatorKey(0, "progress"), markItem(pos)})
			touch(operatorKey(0, "progress"))
		}
	}
	touch(positionKey(p.number))
	out = append(out, []any{"HSET", positionKey(p.number), positionField, to})
	return append(out, register(keys)...)
}

func (p *partition) count(pos int, f flight, n names) [][]any {
	w := window(f.Origin, pos/windowSize)
	return [][]any{
		{"HINCRBY", n.daily, "s:" + f.Origin + " " + f.day(), 1},
		{"HINCRBY", n.delay, "s:" + f.Origin, f.Delay},
		{"HINCRBY", n.win, w, 1},
		{"ZADD", n.due, (pos/windowSize + 1) * windowSize, w},
		{"RPUSH", n.last, f.Delay},
		{"LTRIM", n.last, -lastMost, -1},
		{"SADD", n.dest, strconv.Quote(f.Destination)},
		{"HINCRBY", n.to, strconv.Quote(f.Destination), 1},
		{"SET", n.seen, f.Date, "PXAT", farAway + pos},
		{"HINCRBY", arrivals(f.Destination), "s:" + f.Destination, 1},
	}
}

// closeWindows removes all windows of a bucket.
func (p *partition) closeWindows(bucket int) [][]any {
	var out [][]any
	done := map[string]bool{}
	for pos := bucket * windowSize; pos < (bucket+1)*windowSize; pos++ {
		origin := p.at(pos).Origin
		if done[origin] {
			continue
		}
		done[origin] = true
		n := p.names(origin)
		out = append(out, []any{"HDEL", n.win, window(origin, bucket)}, []any{"ZREM", n.due, window(origin, bucket)})
	}
	return out
}
