package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// harm is one way in which a job's state can be wrong: it does it to the i-th
// key and tells what must be found, as code → places.
type harm struct {
	name string
	do   func(p *patient, i int) map[Code][]string
}

func one(code Code, place string) map[Code][]string { return map[Code][]string{code: {place}} }

func element(key, member string) string { return key + " " + strconv.Quote(member) }

func belongs(place string, group int) string {
	return fmt.Sprintf("%s (belongs to p:%d)", place, group)
}
func also(place string, group int) string { return fmt.Sprintf("%s (also in p:%d)", place, group) }

// shardKey is where the i-th key of the sharded state lies.
func (p *patient) shardKey(i, shift int) (key string, shard int) {
	shard = (shardOf(keygroups.HashString(string(airport(i))), shardCount) + shift) % shardCount
	return p.job.ShardKey(p.at(i), "count", shard), shard
}

// harms can be done to one key each, beside each other. Those of map, list and
// set states need i < smallKeys.
var harms = []harm{
	{"unindexed list", func(p *patient, i int) map[Code][]string {
		key := p.job.KeyedKey(p.at(i), "last", string(airport(i)))
		p.cmd(statebackend.OpSRem, p.job.Index(), key)
		return one(CodeUnindexed, key)
	}},
	{"missing map", func(p *patient, i int) map[Code][]string {
		key := p.job.KeyedKey(p.at(i), "to", string(airport(i)))
		p.cmd(statebackend.OpDel, key)
		return one(CodeMissing, key)
	}},
	{"foreign name", func(p *patient, i int) map[Code][]string {
		name := fmt.Sprint("somebody else's ", i)
		p.cmd(statebackend.OpSAdd, p.job.Index(), name)
		return one(CodeForeignName, name)
	}},
	{"schema missing", func(p *patient, i int) map[Code][]string {
		key := p.job.KeyedKey(p.at(i), "seen", string(airport(i)))
		p.do(statebackend.Command(statebackend.OpHDel, p.job.Registry(), key))
		return one(CodeSchemaMissing, key)
	}},
	{"schema malformed", func(p *patient, i int) map[Code][]string {
		key := fmt.Sprintf("%s:cg:stats:topic:flights:p:0:opstate:source:odd%d", p.job.Root(), i)
		p.cmd(statebackend.OpSAdd, p.job.Index(), key)
		p.cmd(statebackend.OpHSet, p.job.Registry(), key, "java.lang.String|one")
		p.cmd(statebackend.OpRPush, key, "1")
		return one(CodeSchemaMalformed, key)
	}},
	{"schema stale", func(p *patient, i int) map[Code][]string {
		key := p.job.StateKey(p.in(1), fmt.Sprint("gone", i))
		p.cmd(statebackend.OpHSet, p.job.Registry(), key, "java.lang.String|1")
		return one(CodeSchemaStale, key)
	}},
	{"value moved", func(p *patient, i int) map[Code][]string {
		to := p.job.StateKey(p.wrong(i), "mean")
		p.cmd(statebackend.OpHDel, p.job.StateKey(p.at(i), "mean"), string(airport(i)))
		p.cmd(statebackend.OpHSet, to, string(airport(i)), `"m"`)
		return one(CodeKeyGroup, belongs(element(to, string(airport(i))), groupOf(i)))
	}},
	{"value twice", func(p *patient, i int) map[Code][]string {
		i += smallKeys // not one that is moved
		to := p.job.StateKey(p.wrong(i), "mean")
		p.cmd(statebackend.OpHSet, to, string(airport(i)), `"m"`)
		where := element(to, string(airport(i)))
		return map[Code][]string{CodeKeyGroup: {belongs(where, groupOf(i))}, CodeDuplicate: {also(where, groupOf(i))}}
	}},
	{"value twice, and both wrong", func(p *patient, i int) map[Code][]string {
		i += 2 * smallKeys
		first, second := p.in((groupOf(i)+1)%3), p.in((groupOf(i)+2)%3)
		p.cmd(statebackend.OpHDel, p.job.StateKey(p.at(i), "mean"), string(airport(i)))
		all := map[Code][]string{}
		for _, s := range []statebackend.Scope{first, second} {
			key := p.job.StateKey(s, "mean")
			p.cmd(statebackend.OpHSet, key, string(airport(i)), `"m"`)
			all[CodeKeyGroup] = append(all[CodeKeyGroup], belongs(element(key, string(airport(i))), groupOf(i)))
		}
		// Which of them is named depends on the order of the walk.
		all[CodeDuplicate] = []string{anyOf(
			also(element(p.job.StateKey(first, "mean"), string(airport(i))), second.Partition),
			also(element(p.job.StateKey(second, "mean"), string(airport(i))), first.Partition))}
		return all
	}},
	{"set twice", func(p *patient, i int) map[Code][]string {
		key := p.job.KeyedKey(p.wrong(i), "pair", string(airport(i)))
		home := p.job.KeyedKey(p.at(i), "pair", string(airport(i)))
		for _, k := range []string{key, home} {
			p.register(k)
			p.cmd(statebackend.OpSAdd, k, `"x"`)
		}
		return map[Code][]string{CodeKeyGroup: {belongs(key, groupOf(i))}, CodeDuplicate: {also(key, groupOf(i))}}
	}},
	{"window moved", func(p *patient, i int) map[Code][]string {
		field := string(airport(i)) + "\x011000\x012000"
		to := p.job.StateKey(p.wrong(i), "window")
		p.cmd(statebackend.OpHDel, p.job.StateKey(p.at(i), "window"), field)
		p.cmd(statebackend.OpHSet, to, field, "7")
		return one(CodeKeyGroup, belongs(element(to, field), groupOf(i)))
	}},
	{"due time twice", func(p *patient, i int) map[Code][]string {
		i += smallKeys
		field := string(airport(i)) + "\x011000\x012000"
		to := p.job.WindowDueKey(p.wrong(i), "window")
		p.cmd(statebackend.OpZAdd, to, "2000", field)
		where := element(to, field)
		return map[Code][]string{CodeKeyGroup: {belongs(where, groupOf(i))}, CodeDuplicate: {also(where, groupOf(i))}}
	}},
	{"wrong shard", func(p *patient, i int) map[Code][]string {
		from, shard := p.shardKey(i, 0)
		to, _ := p.shardKey(i, 1)
		p.cmd(statebackend.OpHDel, from, string(airport(i)))
		p.cmd(statebackend.OpHSet, to, string(airport(i)), "1")
		return one(CodeShard, fmt.Sprintf("%s (belongs to shard %d of %d)", element(to, string(airport(i))), shard, shardCount))
	}},
	{"untyped", func(p *patient, i int) map[Code][]string {
		key, field := p.job.StateKey(p.in(1), "mean"), fmt.Sprint("bare", i)
		p.cmd(statebackend.OpHSet, key, field, `"m"`)
		return one(CodeUntyped, element(key, field))
	}},
	{"unparsed", func(p *patient, i int) map[Code][]string {
		key := p.job.StateKey(p.in(1), fmt.Sprintf("a:b:c%d", i))
		p.register(key)
		p.cmd(statebackend.OpHSet, key, "s:x", "1")
		return one(CodeUnparsed, key)
	}},
	{"type", func(p *patient, i int) map[Code][]string {
		key := p.job.StateKey(p.in(1), fmt.Sprint("text", i))
		p.register(key)
		p.cmd(statebackend.OpSet, key, "no hash")
		return one(CodeKeyType, key)
	}},
	{"staged", func(p *patient, i int) map[Code][]string {
		key := p.job.Staging(fmt.Sprint("gone", i)) + "k0"
		p.cmd(statebackend.OpSet, key, "x")
		return one(CodeStaged, key)
	}},
	{"stray", func(p *patient, i int) map[Code][]string {
		key := fmt.Sprintf("%s:notes:%d", p.job.Root(), i)
		p.cmd(statebackend.OpSet, key, "x")
		return one(CodeUnindexed, key)
	}},
}

// anyOf is a place that may be told in one of two ways.
func anyOf(a, b string) string { return a + "\x00" + b }

// sameFindings requires that exactly these were found.
func sameFindings(t require.TestingT, want map[Code][]string, r Report) {
	got := found(r)
	for code, all := range want {
		for i, w := range all {
			for _, g := range got[code] {
				if len(w) > len(g) && (w[:len(g)+1] == g+"\x00" || w[len(w)-len(g)-1:] == "\x00"+g) {
					all[i] = g
				}
			}
		}
		want[code] = slices.Clone(all)
		for i, w := range want[code] {
			want[code][i] = readable(w)
		}
		slices.Sort(want[code])
	}
	require.Equal(t, want, got)
}

// TestEachHarmToStateIsFound (one for each code that the state's keys can
// have) on a real server and in the memory store.
func TestEachHarmToStateIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	stores := map[string]statebackend.Backend{"redis": c.store, "memory": memory.New(memory.Options{})}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			for n, h := range harms {
				t.Run(h.name, func(t *testing.T) {
					p := admit(t, store, fmt.Sprint("harm-", n))
					unhurt(t, p.examine())
					want := h.do(p, 3)
					r := p.examine()
					sameFindings(t, want, r)
				})
			}
		})
	}
}
