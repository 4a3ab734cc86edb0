package track

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// The pool of keys: three of each type of which one is an extra name, two that
// each type uses, and one of another job.
var (
	mixedKeys = []string{"j:mix0", "j:mix1"}
	poolKeys  = map[string][]string{
		"h": {"j:h0", "j:h1", "out:h"}, "s": {"j:s0", "j:s1", "out:s"}, "z": {"j:z0", "j:z1", "out:z"},
		"l": {"j:l0", "j:l1", "out:l"}, "v": {"j:v0", "j:v1", "out:v"}, "x": {"j:x0", "j:x1", "out:x"},
		"p": {"j:p0", "j:p1", "out:p"}, "g": {"j:g0", "j:g1", "out:g"},
	}
	extraKeys = [][]byte{
		[]byte("out:h"), []byte("out:s"), []byte("out:z"), []byte("out:l"), []byte("out:v"), []byte("out:x"), []byte("out:p"), []byte("out:g")}
	allKeys = func() []string {
		all := append([]string{"o:other"}, mixedKeys...)
		for _, keys := range poolKeys {
			all = append(all, keys...)
		}
		slices.Sort(all)
		return all
	}()
)

// templates are the commands that change data, most in several forms. Words in
// <> are drawn: <h> a hash's key and so on, <k> any key, <f> a field or
// member, <e> a value, <i> a small number, <d> a score, <sec> <ms> a time to
// live, <at> <atms> a time, <id> a stream's id.
var templates = strings.Split(strings.TrimSpace(`
HSET <h> <f> <e>
HSET <h> <f> <e> <f> <e> <f> <e>
HMSET <h> <f> <e> <f> <e>
HSETNX <h> <f> <e>
HDEL <h> <f>
HDEL <h> <f> <f> <f> <f>
HINCRBY <h> <f> <i>
HINCRBYFLOAT <h> <f> <d>
SADD <s> <f>
SADD <s> <f> <f> <f>
SREM <s> <f> <f>
SMOVE <s> <s> <f>
SPOP <s>
SPOP <s> <i>
SINTERSTORE <s> <s> <s>
SUNIONSTORE <s> <s> <s>
SDIFFSTORE <s> <s> <s>
ZADD <z> <d> <f>
ZADD <z> NX CH <d> <f> <d> <f>
ZADD <z> XX GT <d> <f> <d> <f>
ZADD <z> lt ch <d> <f> <d> nx
ZADD <z> INCR <d> <f>
ZADD <z> XX INCR <d> <f>
ZREM <z> <f> <f>
ZINCRBY <z> <d> <f>
ZPOPMIN <z>
ZPOPMAX <z> 2
BZPOPMIN <z> <z> 0.001
BZPOPMAX <z> 0.001
ZMPOP 2 <z> <z> MIN COUNT 2
BZMPOP 0.001 1 <z> MAX
ZREMRANGEBYRANK <z> <i> <i>
ZREMRANGEBYSCORE <z> -inf <d>
ZREMRANGEBYLEX <z> - [f2
ZRANGESTORE <z> <z> 0 <i>
ZRANGESTORE <z> <z> -inf <d> BYSCORE
ZUNIONSTORE <z> 2 <z> <s> WEIGHTS 2 3
ZINTERSTORE <z> 2 <z> <z> AGGREGATE MAX
ZDIFFSTORE <z> 2 <z> <z>
GEOADD <g> 1.5 2.5 <f> 3 4 <f>
GEOADD <g> NX CH 5 6 <f>
GEOSEARCHSTORE <g> <g> FROMLONLAT 1 2 BYRADIUS 500 km
GEORADIUS <g> 1 2 900 km STORE <g>
GEORADIUSBYMEMBER <g> <f> 900 km STOREDIST <z>
LPUSH <l> <e>
LPUSH <l> <e> <e> <e>
RPUSH <l> <e> <e>
LPUSHX <l> <e>
RPUSHX <l> <e>
LPOP <l>
RPOP <l> 2
LSET <l> 0 <e>
LINSERT <l> BEFORE <e> <e>
LREM <l> <i> <e>
LTRIM <l> 0 <i>
LMOVE <l> <l> LEFT RIGHT
RPOPLPUSH <l> <l>
BLMOVE <l> <l> RIGHT LEFT 0.001
BRPOPLPUSH <l> <l> 0.001
BLPOP <l> <l> 0.001
BRPOP <l> 0.001
LMPOP 2 <l> <l> LEFT COUNT 2
BLMPOP 0.001 1 <l> RIGHT
SORT <l> ALPHA STORE <l>
SORT <s> BY nosort STORE <l>
SET <v> <e>
SET <k> <e>
SET <v> <e> KEEPTTL
SET <v> <i> EX <sec>
SET <v> <e> PX <ms> GET
SET <v> <e> EXAT <at>
SET <v> <e> NX
SETNX <v> <e>
SETEX <v> <sec> <e>
PSETEX <v> <ms> <e>
MSET <v> <e> <v> <e>
MSETNX <v> <e> <v> <e>
GETSET <v> <e>
GETDEL <v>
GETEX <v> EX <sec>
GETEX <v> PXAT <atms>
GETEX <v> PERSIST
APPEND <v> <e>
SETRANGE <v> 2 <e>
INCR <v>
DECR <v>
INCRBY <v> <i>
DECRBY <v> <i>
INCRBYFLOAT <v> <d>
SETBIT <v> 5 1
BITOP XOR <v> <v> <v>
BITOP NOT <v> <v>
BITFIELD <v> SET u8 0 <i> INCRBY u8 8 3
PFADD <p> <e> <e>
PFMERGE <p> <p> <p>
PFCOUNT <p> <p>
PFCOUNT <p>
XADD <x> * f <e>
XADD <x> NOMKSTREAM MAXLEN 3 * f <e>
XADD <x> <id> f <e>
XDEL <x> <id>
XTRIM <x> MAXLEN 2
XSETID <x> 9999999999999-1
XGROUP CREATE <x> grp 0 MKSTREAM
XGROUP CREATECONSUMER <x> grp con
XGROUP DELCONSUMER <x> grp con
XGROUP SETID <x> grp 0
XGROUP DESTROY <x> grp
XREADGROUP GROUP grp con COUNT 2 STREAMS <x> >
XREADGROUP GROUP grp dos NOACK STREAMS <x> >
XACK <x> grp <id>
XCLAIM <x> grp dos 0 <id>
XAUTOCLAIM <x> grp con 0 0
DEL <k>
DEL <k> <k> <k>
UNLINK <k> <k>
RENAME <k> <k>
RENAMENX <k> <k>
COPY <k> <k>
COPY <k> <k> REPLACE
COPY <k> <k> DB 1 REPLACE
COPY <k> <k> DB 0 REPLACE
MOVE <k> 0
MOVE <k> 1
EXPIRE <k> <sec>
EXPIRE <k> <sec> NX
PEXPIRE <k> <ms>
EXPIREAT <k> <at>
PEXPIREAT <k> <atms>
PEXPIREAT <k> <atms> GT
PERSIST <k>
PERSIST j:h1
RESTORE <k> 0 <dump> REPLACE
RESTORE <k> <atms> <dump> REPLACE ABSTTL
`), "\n")

// drawn gives a word of a template.
func drawn(rt *rapid.T, word string) string {
	kind, ok := strings.CutPrefix(word, "<")
	if !ok {
		return word
	}
	kind = strings.TrimSuffix(kind, ">")
	if v, ok := plain(rt, kind); ok {
		return v
	}
	keys := poolKeys[kind]
	if keys == nil {
		panic("a template with " + word)
	}
	// Now and then the wrong type, and often a key that is each type in turn.
	switch n := rapid.IntRange(0, 15).Draw(rt, "pool"); {
	case n == 0:
		return rapid.SampledFrom(allKeys).Draw(rt, "key")
	case n < 5:
		return rapid.SampledFrom(mixedKeys).Draw(rt, "key")
	}
	return rapid.SampledFrom(keys).Draw(rt, "key")
}

// plain draws what isn't a key of one type.
func plain(rt *rapid.T, kind string) (word string, ok bool) {
	now := time.Now().UnixMilli()
	switch kind {
	case "k":
		return rapid.SampledFrom(allKeys).Draw(rt, "key"), true
	case "f":
		return rapid.SampledFrom([]string{"f0", "f1", "f2", "", "j:h0"}).Draw(rt, "field"), true
	case "e":
		return rapid.SampledFrom([]string{"1", "7", "e1", "", "j:v1", "out:h", "j:\x00\r\n", "*1\r\n"}).Draw(rt, "value"), true
	case "i":
		return fmt.Sprint(rapid.IntRange(-3, 5).Draw(rt, "number")), true
	case "d":
		return rapid.SampledFrom([]string{"1", "-2.5", "0", "3e10", "0.1"}).Draw(rt, "score"), true
	case "sec":
		return rapid.SampledFrom([]string{"1000", "1", "0", "-5"}).Draw(rt, "seconds"), true
	case "ms":
		return rapid.SampledFrom([]string{"1000000", "20", "1", "-5"}).Draw(rt, "ms"), true
	case "at":
		return fmt.Sprint((now + rapid.SampledFrom([]int64{-5000, 1000, 100_000}).Draw(rt, "at")) / 1000), true
	case "atms":
		return fmt.Sprint(now + rapid.SampledFrom([]int64{-5000, 1, 15, 100_000}).Draw(rt, "atms")), true
	case "id":
		return rapid.SampledFrom([]string{"1-1", "2-1", "3-7", "0-1"}).Draw(rt, "id"), true
	}
	return "", false
}

// fromTemplate draws a command of the hand-written ones. dump is a payload for
// RESTORE.
func fromTemplate(rt *rapid.T, dump string) []string {
	template := rapid.SampledFrom(templates).Draw(rt, "template")
	var cmd []string
	for _, word := range strings.Split(template, " ") {
		if word == "<dump>" {
			cmd = append(cmd, dump)
		} else {
			cmd = append(cmd, drawn(rt, word))
		}
	}
	return cmd
}

// docArg is an argument as COMMAND DOCS describes it.
type docArg struct {
	name, kind, token        string
	optional, multiple, each bool
	args                     []docArg
}

// documented is a command of the server's list with its arguments.
type documented struct {
	words []string
	args  []docArg
}

// generate draws arguments for a command from its description.
func (d documented) generate(rt *rapid.T) []string {
	g := generator{rt: rt, cmd: slices.Clone(d.words), counts: -1}
	for _, a := range d.args {
		g.argument(a)
	}
	return g.cmd
}

type generator struct {
	rt     *rapid.T
	cmd    []string
	counts int // the place of a number of keys that isn't known yet, or -1
}

func (g *generator) argument(a docArg) {
	if a.optional && rapid.IntRange(0, 2).Draw(g.rt, "optional") > 0 {
		return
	}
	times := 1
	if a.multiple {
		times = rapid.IntRange(1, 3).Draw(g.rt, "times")
	}
	if a.kind == "key" && g.counts >= 0 {
		g.cmd[g.counts] = fmt.Sprint(times)
		g.counts = -1
	}
	for i := range times {
		if a.token != "" && a.kind != "pure-token" && (i == 0 || a.each) {
			g.cmd = append(g.cmd, a.token)
		}
		g.value(a)
	}
}

func (g *generator) value(a docArg) {
	switch {
	case a.kind == "oneof":
		g.argument(rapid.SampledFrom(a.args).Draw(g.rt, "one of"))
	case a.kind == "block":
		for _, sub := range a.args {
			g.argument(sub)
		}
	case a.kind == "pure-token":
		g.cmd = append(g.cmd, a.token)
	case a.name == "numkeys":
		g.counts = len(g.cmd)
		g.cmd = append(g.cmd, "1")
	default:
		g.cmd = append(g.cmd, g.word(a))
	}
}

// word draws a plain value. Times to wait are short ones.
func (g *generator) word(a docArg) string {
	switch {
	case a.name == "timeout":
		return "0.001"
	case a.name == "milliseconds":
		return fmt.Sprint(rapid.IntRange(1, 20).Draw(g.rt, "ms"))
	case a.name == "id" || a.name == "start" && a.kind == "string":
		return drawn(g.rt, "<id>")
	case a.kind == "key":
		return drawn(g.rt, "<k>")
	case a.kind == "integer":
		return rapid.SampledFrom([]string{"0", "1", "2", "-1", "7", "100"}).Draw(g.rt, "integer")
	case a.kind == "double":
		return drawn(g.rt, "<d>")
	case a.kind == "pattern":
		return rapid.SampledFrom([]string{"*", "j:*", "nosort"}).Draw(g.rt, "pattern")
	case a.kind == "unix-time":
		return fmt.Sprint(time.Now().Unix() + rapid.SampledFrom([]int64{-5, 1, 1000, math.MaxInt32}).Draw(g.rt, "time"))
	}
	return rapid.SampledFrom([]string{"f0", "f1", "grp", "con", "1", "j:h0", "out:v"}).Draw(g.rt, "string")
}
