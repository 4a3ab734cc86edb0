package backendtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// scores are those that a text loses easily.
var scores = []string{"inf", "-inf", "0.1", "3.0000000000000004", "9007199254740993", "9.9999999999999694e-310", "-0", "1e300", "4.9e-324"}

// ugly are bytes that a text loses easily.
var ugly = []string{"", "\x00", "\xff", "\xfe", "a\x00b", "\r\n", `"\'`, "é", "用户", "+Inf", strings.Repeat("long\x00", 9000)}

// hashFields is more than any page or encoding of a hash that a server has.
const hashFields = 1500

// stateName is a state key of a job for one keyed state.
func stateName(j statebackend.Job, partition int, name string) string {
	return j.StateKey(statebackend.Scope{Group: "stats", Topic: "flights", Partition: partition, Operator: "delays"}, name)
}

func operatorName(j statebackend.Job, subtask int, name string) string {
	return j.OperatorKey("stats", "flights", subtask, "source", name)
}

// fill writes state of every type with every kind of byte, registers it, and
// adopts the job. Everything depends on seed, so that two jobs differ.
func fill(t testing.TB, h Harness, j statebackend.Job, seed string) {
	t.Helper()
	w := &filler{t: t, h: h, j: j}
	w.hashes(seed)
	w.rest(seed)
	for subtask := range 2 {
		part := operatorName(j, subtask, "positions")
		for i := range 5 {
			w.add(part, cmd(statebackend.OpRPush, part, fmt.Sprintf(`"%s-%d-%d"`, seed, subtask, i)))
		}
	}
	w.add("", cmd(statebackend.OpHSet, j.OperatorStates(), statebackend.OperatorField("source", "positions"), `{"mode":"list"}`))
	w.add("", cmd(statebackend.OpSAdd, j.Index(), stateName(j, 99, "never written"), "\xff not ours \x00"))
	w.flush()
	_, err := h.Backend.Adopt(ctxOf(t), j, "incarnation-"+seed, assignment())
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
}

func assignment() statebackend.Assignment {
	return statebackend.Assignment{MaxParallelism: 128, Parallelism: 2, Hash: keygroups.HashJava,
		Ranges: []keygroups.Range{{Subtask: 0, Start: 0, End: 63}, {Subtask: 1, Start: 64, End: 127}}}
}

// filler gathers commands, and registers each key as a writer would.
type filler struct {
	t    testing.TB
	h    Harness
	j    statebackend.Job
	cmds []statebackend.Cmd
}

func (w *filler) add(key string, cmds ...statebackend.Cmd) {
	if key != "" {
		w.cmds = append(w.cmds, cmd(statebackend.OpSAdd, w.j.Index(), key),
			cmd(statebackend.OpHSetNX, w.j.Registry(), key, "java.lang.String|3"))
	}
	w.cmds = append(w.cmds, cmds...)
	if len(w.cmds) > 400 {
		w.flush()
	}
}

func (w *filler) flush() {
	w.t.Helper()
	do(w.t, w.h, w.cmds...)
	w.cmds = nil
}

func (w *filler) hashes(seed string) {
	big := stateName(w.j, 1, "big")
	for i := range hashFields {
		w.add("", cmd(statebackend.OpHSet, big, "s:"+seed+strconv.Itoa(i), "value "+strconv.Itoa(i*7)))
	}
	w.add(big)
	odd := stateName(w.j, 2, "odd")
	for i, u := range ugly {
		w.add(odd, cmd(statebackend.OpHSet, odd, u, ugly[len(ugly)-1-i]))
	}
	w.add(odd, cmd(statebackend.OpHSet, odd, "tamper", seed))
	for i := range 150 {
		small := stateName(w.j, i%7, "small") + ":s:" + strconv.Itoa(i)
		w.add(small, cmd(statebackend.OpHSet, small, `"`+seed+`"`, strconv.Itoa(1000+i)))
	}
}

func (w *filler) rest(seed string) {
	list, set, zset := stateName(w.j, 3, "list")+":s:l", stateName(w.j, 4, "set")+":s:m", stateName(w.j, 5, "zset")
	for i := range 300 {
		w.add(list, cmd(statebackend.OpRPush, list, seed+strconv.Itoa(i%10), "twice", "twice"))
		w.add(set, cmd(statebackend.OpSAdd, set, strconv.Itoa(i)+seed))
	}
	for i, u := range ugly {
		w.add(list, cmd(statebackend.OpRPush, list, u))
		w.add(set, cmd(statebackend.OpSAdd, set, u))
		w.add(zset, cmd(statebackend.OpZAdd, zset, scores[i%len(scores)], u))
		named := stateName(w.j, 6, "named") + ":t:" + u
		w.add(named, cmd(statebackend.OpSet, named, strconv.Itoa(i)+seed))
	}
	for i := range 200 {
		w.add(zset, cmd(statebackend.OpZAdd, zset, strconv.Itoa(i)+".25", seed+strconv.Itoa(i)))
	}
	// A member that comes first and is long makes Redis keep the sign of zero.
	signed := stateName(w.j, 5, "signed")
	w.add(signed, cmd(statebackend.OpZAdd, signed, "1", strings.Repeat("x", 65)), cmd(statebackend.OpZAdd, signed, "-0", seed))
	empty, long := stateName(w.j, 7, "empty string"), stateName(w.j, 7, "long string")
	w.add(empty, cmd(statebackend.OpSet, empty, ""))
	w.add(long, cmd(statebackend.OpSet, long, strings.Repeat(seed+"\x00\xff", 3*snapshot.MaxPart/(len(seed)+2))))
	later := laterName(w.j)
	at := w.h.Now(w.t).Add(time.Hour).UnixMilli()
	w.add(later, cmd(statebackend.OpSet, later, "expires"), cmd(statebackend.OpPExpireAt, later, strconv.FormatInt(at, 10)))
}

// laterName is the fixture's key that expires in an hour.
func laterName(j statebackend.Job) string { return stateName(j, 8, "later") }

// fixtureKeys is how many keys fill writes that exist, and fixtureNames how
// many names it gives to the index.
var (
	fixtureKeys  = 1 + 1 + 150 + 4 + len(ugly) + 3 + 2
	fixtureNames = fixtureKeys + 2
)
