package restore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot/storetest"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// scribble writes random keys of all kinds: few names, so that types and
// contents of the same key differ from one call to the next.
func scribble(t *rapid.T, w *world, label string) {
	j := w.job.Key()
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab:\x00\x01ÿ🙂")), 0, 6, -1)
	for i := range rapid.IntRange(0, 12).Draw(t, label) {
		key := rapid.SampledFrom([]string{
			j.StateKey(w.scope(i%5), "v"), j.KeyedKey(w.scope(1), "m", "s:x"), j.Root() + ":odd\xff",
			j.OperatorKey("g", "t", i%2, "op", "n"), j.WindowDueKey(w.scope(2), "w"),
		}).Draw(t, label+" key")
		at := func(what string) string { return text.Draw(t, label+" "+what) }
		w.do(t, statebackend.Command(statebackend.OpDel, key))
		schema := rapid.SampledFrom([]string{"", "A|1", "B|2"}).Draw(t, label+" schema")
		switch rapid.IntRange(0, 6).Draw(t, label+" type") {
		case 0:
			for range 3 {
				w.put(t, key, schema, cmd(statebackend.OpHSet, at("field"), at("value")))
			}
		case 1:
			w.put(t, key, schema, cmd(statebackend.OpRPush, at("a"), at("b"), at("a")))
		case 2:
			w.put(t, key, schema, cmd(statebackend.OpSAdd, at("m1"), at("m2")))
		case 3:
			w.put(t, key, schema, cmd(statebackend.OpZAdd, fmt.Sprint(rapid.Float64().Draw(t, label+" score")), at("member")))
		case 4:
			w.put(t, key, schema, cmd(statebackend.OpSet, at("string")))
		case 5: // a name without a key
			w.put(t, key, schema, cmd(statebackend.OpSet, "x"))
			w.do(t, statebackend.Command(statebackend.OpDel, key))
		case 6: // a name that leaves the index
			w.do(t, statebackend.Command(statebackend.OpSRem, j.Index(), key), statebackend.Command(statebackend.OpHDel, j.Registry(), key))
		}
		if rapid.Bool().Draw(t, label+" expires") {
			w.expire(t, key, start.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, label+" in"))*time.Second))
		}
	}
}

// TestI3AnyStateComesBackEqual: whatever the state was and whatever it became,
// a restore makes it what it was, but for what has expired since.
func TestI3AnyStateComesBackEqual(t *testing.T) {
	db := openStore(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		c := &clock{}
		c.at.Store(start.UnixMilli())
		mem := memory.New(memory.Options{Now: c.Now})
		w := assemble(db, mem, c, testJob(fmt.Sprintf("job%d", n)))
		other := assemble(db, mem, c, testJob(w.job.Name+":x"))
		scribble(t, w, "before")
		scribble(t, other, "other")
		w.adopt(t)
		other.adopt(t)
		m := w.take(t)
		want := w.live(t)
		scribble(t, w, "after")
		theirs := other.live(t)
		if rapid.Bool().Draw(t, "later") {
			c.advance(time.Duration(rapid.IntRange(0, 6000).Draw(t, "seconds")) * time.Second)
			theirs = other.live(t)
		}
		req := Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true}
		plan, err := w.exec.Plan(context.Background(), req, nil)
		require.NoError(t, err)
		res, err := w.exec.Run(context.Background(), req, nil)
		require.NoError(t, err)
		require.Equal(t, []uint64{plan.Keys, plan.Elements, plan.Expired, plan.Epoch},
			[]uint64{res.Keys, res.Elements, res.Expired, res.Epoch}, "the plan told what would be done")
		got := w.live(t)
		var expired uint64
		for name, text := range want {
			var at int64
			if _, err := fmt.Sscanf(after(text, "expires "), "%d:", &at); err == nil && at != 0 && at <= c.Now().UnixMilli() {
				expired++
				require.NotEqual(t, text, got[name], "key %q has expired", name)
				require.Contains(t, got, name, "its name stays in the index")
				delete(want, name)
				delete(got, name)
			}
		}
		require.Equal(t, expired, res.Expired)
		requireState(t, want, got)
		requireState(t, theirs, other.live(t))
		w.noTraces(t)
	})
	storetest.MustBeClean(t, db)
}

// after is what follows the first mark in a text.
func after(text, mark string) string {
	for i := 0; i+len(mark) <= len(text); i++ {
		if text[i:i+len(mark)] == mark {
			return text[i+len(mark):]
		}
	}
	return ""
}
