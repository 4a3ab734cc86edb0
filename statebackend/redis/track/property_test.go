package track

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
	"keyframe/statebackend/redis/resp"
)

// notRun are commands of the server's list that the property test leaves out.
// Everything else runs with arguments made from its description.
var notRun = map[string]string{
	"shutdown": "stops the server", "failover": "stops writes", "replicaof": "empties the server", "slaveof": "empties the server",
	"debug": "crashes, sleeps, and changes keys behind replication", "monitor": "never ends", "psync": "makes the connection a replica",
	"sync": "makes the connection a replica", "replconf": "makes the connection a replica", "subscribe": "changes the protocol",
	"psubscribe": "changes the protocol", "ssubscribe": "changes the protocol", "unsubscribe": "answers many times",
	"punsubscribe": "answers many times", "sunsubscribe": "answers many times", "client": "pauses, kills and silences connections",
	"config": "changes the server's ways, its memory limit among them", "acl": "takes the rights away", "module": "loads code",
	"reset": "changes the connection", "quit": "ends the connection", "hello": "changes the protocol", "auth": "changes the user",
	"select": "changes the connection's database", "multi": "the wrapping does that", "exec": "the wrapping does that",
	"discard": "the wrapping does that", "watch": "the wrapping does that", "migrate": "waits for another server; suiteMigrate has it",
	"save": "blocks the server", "bgsave": "writes to the disk", "bgrewriteaof": "writes to the disk", "cluster": "needs a cluster",
	"script|debug": "forks or blocks the server", "wait": "waits for replicas", "pfselftest": "takes seconds", "latency": "only reports",
	"swapdb": "LevelFields has a test of its own, and LevelKeys can't see it",
}

// groupCommands change consumer groups, which only LevelFields promises.
var groupCommands = []string{"XGROUP", "XREADGROUP", "XACK", "XCLAIM", "XAUTOCLAIM", "XSETID"}

// property is one run of the test against one server.
type property struct {
	s     *redistest.Server
	level Level
	tr    Tracker
	conns [2]*resp.Conn // of database 0 and 1
	watch [2]Watch
	docs  []documented
	dump  string

	commands, failed, looks, all int
}

func (p *property) scope(db int) Scope { return Scope{DB: db, Root: "j", Extra: extraKeys} }

// runProperty drives random commands and requires that a copy which takes over
// what is marked, and nothing else, equals the live state.
func runProperty(t *testing.T, make func(Options) Tracker, level Level) {
	s := redistest.Start(t)
	s.Do("DEBUG", "SET-ACTIVE-EXPIRE", "0") // keys expire when they are looked at, so that each look knows
	p := &property{s: s, level: level, tr: start(t, s, make)}
	for db := range p.conns {
		p.conns[db] = connect(t, s.Addr, db)
		p.watch[db] = watch(t, p.tr, p.scope(db))
	}
	s.Do("ZADD", "payload", 1, "f0", 2, "f2")
	p.dump = s.Do("DUMP", "payload").(string)
	p.docs = documents(t, p.conns[0])
	require.Greater(t, len(p.docs), 200)

	until := time.Now()
	if soak := os.Getenv("SOAK"); soak != "" {
		d, err := time.ParseDuration(soak)
		require.NoError(t, err)
		until = until.Add(d)
	}
	for first := true; first || time.Now().Before(until); first = false {
		rapid.Check(t, p.check)
	}
	t.Logf("%d commands, %d of them refused, %d looks, %d with All", p.commands, p.failed, p.looks, p.all)
	require.Less(t, p.failed, p.commands*2/3)
	require.Less(t, p.all, p.looks/4)
}

// fillScript gives each key of the pool a content, so that most commands find
// something to change.
const fillScript = `
for _, n in ipairs({'j:h0', 'j:h1', 'out:h', 'j:mix0'}) do redis.call('HSET', n, 'f0', '1', 'f1', '2', '', '3') end
for _, n in ipairs({'j:s0', 'out:s', 'j:mix1'}) do redis.call('SADD', n, 'f0', 'f1', 'f2') end
for _, n in ipairs({'j:z0', 'out:z'}) do redis.call('ZADD', n, 1, 'f0', 2, 'f1', 3, '') end
for _, n in ipairs({'j:l0', 'out:l'}) do redis.call('RPUSH', n, '1', 'e1', '7', '') end
for _, n in ipairs({'j:v0', 'out:v', 'o:other'}) do redis.call('SET', n, '5') end
for _, n in ipairs({'j:x0', 'out:x'}) do
  for _, id in ipairs({'0-1', '1-1', '2-1'}) do redis.call('XADD', n, id, 'f', 'v') end
  redis.call('XGROUP', 'CREATE', n, 'grp', '0')
end
redis.call('PFADD', 'j:p0', 'a', 'b') redis.call('GEOADD', 'j:g0', 1, 2, 'f0')
redis.call('PEXPIRE', 'j:h1', 100000) redis.call('PEXPIRE', 'out:s', 100000)`

// check is one sequence from an empty server on.
func (p *property) check(rt *rapid.T) {
	_, err := p.conns[0].Call(1<<10, "FLUSHALL")
	require.NoError(rt, err)
	_, err = p.conns[0].Call(1<<10, "EVAL", fillScript, "0")
	require.NoError(rt, err)
	var before [2]map[string]looked
	for db, c := range p.conns {
		before[db] = look(rt, c, p.scope(db))
		p.take(rt, db)
	}
	for range rapid.IntRange(5, 20).Draw(rt, "rounds") {
		var log []string
		for range rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(rt, "commands") {
			log = append(log, p.step(rt)...)
		}
		var after [2]map[string]looked
		for db, c := range p.conns {
			after[db] = look(rt, c, p.scope(db))
		}
		for db := range p.conns {
			m := p.take(rt, db)
			if got := followed(before[db], after[db], m); !reflect.DeepEqual(got, after[db]) {
				rt.Fatalf("database %d, after\n%s\nfrom %v\nmarks %v\nfollowed %v\nis %v", db, strings.Join(log, "\n"), before[db], shown(m), got, after[db])
			}
			p.looks++
			if m.All {
				p.all++
			}
		}
		before = after
	}
}

// shown is the marks as text.
func shown(m Marks) string {
	text := m.Reason
	for name, k := range m.Keys {
		text += fmt.Sprintf(" %q:%v%q", name, k.Whole, slices.Collect(maps.Keys(k.Fields)))
	}
	return text
}

func (p *property) take(rt *rapid.T, db int) Marks {
	at := p.position(rt)
	require.NoError(rt, p.watch[db].Barrier(rt.Context(), at))
	if f, ok := p.tr.(*fields); ok {
		// Counting too much would let every Barrier through.
		read := f.offset.Load()
		require.LessOrEqual(rt, read, p.position(rt).Offset)
	}
	return p.watch[db].Take()
}

func (p *property) position(rt *rapid.T) Position {
	v, err := p.conns[0].Call(1<<20, "INFO", "replication")
	require.NoError(rt, err)
	var at Position
	for line := range strings.SplitSeq(v.String(), "\r\n") {
		if id, ok := strings.CutPrefix(line, "master_replid:"); ok {
			at.ReplID = id
		}
		if n, ok := strings.CutPrefix(line, "master_repl_offset:"); ok {
			at.Offset, err = strconv.ParseInt(n, 10, 64)
			require.NoError(rt, err)
		}
	}
	return at
}

// step runs one command, by itself, in a transaction or in a script, and gives
// it as text.
func (p *property) step(rt *rapid.T) []string {
	var cmd []string
	if rapid.IntRange(0, 2).Draw(rt, "from") == 0 {
		cmd = rapid.SampledFrom(p.docs).Draw(rt, "command").generate(rt)
	} else {
		cmd = fromTemplate(rt, p.dump)
	}
	if p.level != LevelFields && slices.Contains(groupCommands, strings.ToUpper(cmd[0])) {
		return nil
	}
	db := rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(rt, "db")
	switch rapid.IntRange(0, 9).Draw(rt, "wrapped") {
	case 0:
		p.run(rt, db, "MULTI")
		p.run(rt, db, cmd...)
		p.run(rt, db, "SET", "j:v0", "with")
		p.run(rt, db, "EXEC")
	case 1:
		script := "redis.pcall('HSET', 'j:mix0', 'f2', 'script') return redis.pcall(unpack(ARGV))"
		p.run(rt, db, append([]string{"EVAL", script, "0"}, cmd...)...)
	default:
		p.run(rt, db, cmd...)
	}
	return []string{strconv.Itoa(db) + ": " + strconv.Quote(strings.Join(cmd, " "))}
}

func (p *property) run(rt *rapid.T, db int, cmd ...string) {
	p.commands++
	_, err := p.conns[db].Call(lookLimit, cmd...)
	if err != nil {
		var reply *resp.Error
		require.ErrorAs(rt, err, &reply, "%q", cmd)
		p.failed++
	}
}

// documents asks the server for all its commands and what they take.
func documents(t *testing.T, c *resp.Conn) (all []documented) {
	v, err := c.Call(lookLimit, "COMMAND", "DOCS")
	require.NoError(t, err)
	var add func(list []resp.Value)
	add = func(list []resp.Value) {
		for i := 0; i+1 < len(list); i += 2 {
			name, doc := list[i].String(), pairs(list[i+1])
			words := strings.Split(name, "|")
			if notRun[name] != "" || notRun[words[0]] != "" {
				continue
			}
			if subs, ok := doc["subcommands"]; ok {
				add(subs.Array)
				continue
			}
			all = append(all, documented{words: words, args: docArgs(doc["arguments"])})
		}
	}
	add(v.Array)
	return all
}

func pairs(v resp.Value) map[string]resp.Value {
	m := map[string]resp.Value{}
	for i := 0; i+1 < len(v.Array); i += 2 {
		m[v.Array[i].String()] = v.Array[i+1]
	}
	return m
}

func docArgs(v resp.Value) (all []docArg) {
	for _, one := range v.Array {
		m := pairs(one)
		a := docArg{name: m["name"].String(), kind: m["type"].String(), token: m["token"].String(), args: docArgs(m["arguments"])}
		for _, flag := range m["flags"].Array {
			a.optional = a.optional || flag.String() == "optional"
			a.multiple = a.multiple || flag.String() == "multiple"
			a.each = a.each || flag.String() == "multiple_token"
		}
		all = append(all, a)
	}
	return all
}

func TestNothingChangesUnmarkedByFields(t *testing.T) { runProperty(t, NewFields, LevelFields) }
