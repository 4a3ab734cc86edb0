package witness

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
)

func TestI4PlantedFaultsOfARescaleAreFound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	before := r.look().State
	r.done(r.c.Rescale(t.Context(), r.spec.Name, coordinator.RescaleRequest{Parallelism: 3}))
	check := func() []Finding { return CheckRescale(r.job.Root(), before, r.look().State, 3, r.now()) }
	require.Empty(t, check())
	ctx, c := t.Context(), r.client
	assigned, err := c.Get(ctx, r.job.Assignment()).Result()
	require.NoError(t, err)
	list := func(n int) string { return r.operator("offsets", n) }
	for _, plant := range []struct {
		text     string
		do, undo []any
	}{
		{"1 items were lost", []any{"LPOP", list(0)}, []any{"LPUSH", list(0), c.LIndex(ctx, list(0), 0).Val()}},
		{"1 are new", []any{"RPUSH", list(1), c.LIndex(ctx, list(0), 0).Val()}, []any{"RPOP", list(1)}},
		{"another content than subtask 0", []any{"RPUSH", r.operator("seen", 2), "x"}, []any{"RPOP", r.operator("seen", 2)}},
		{"subtask 1: a copy of 2", []any{"HSET", r.operator("rules", 1), "more", "1"}, []any{"HDEL", r.operator("rules", 1), "more"}},
		{"keyed key", []any{"SPOP", r.name("largeset", 2)}, []any{"SADD", r.name("largeset", 2)}},
		{"subtask 2 has none", []any{"RENAME", r.operator("rules", 2), "away"}, []any{"RENAME", "away", r.operator("rules", 2)}},
		{"subtask 7 of 3 has a part", []any{"COPY", r.operator("rules", 2), r.operator("rules", 7)}, []any{"DEL", r.operator("rules", 7)}},
		{"has 2 owners", []any{"SET", r.job.Assignment(), altered(t, assigned, 0, +1)}, []any{"SET", r.job.Assignment(), assigned}},
		{"has 0 owners", []any{"SET", r.job.Assignment(), altered(t, assigned, 1, -1)}, []any{"SET", r.job.Assignment(), assigned}},
	} {
		if plant.text == "subtask 7 of 3 has a part" {
			require.NoError(t, c.SAdd(ctx, r.job.Index(), r.operator("rules", 7)).Err())
		}
		done, err := c.Do(ctx, plant.do...).Result()
		require.NoError(t, err)
		if plant.text == "keyed key" { // which member went is the server's choice
			plant.undo = append(plant.undo, done)
		}
		f := check()
		if plant.text == "subtask 1: a copy of 2" { // found already by comparing with subtask 0
			plant.text = "another content"
		}
		requireFound(t, "I4", plant.text, f)
		require.NoError(t, c.Do(ctx, plant.undo...).Err())
		require.Empty(t, check(), plant.text)
	}
	requireFound(t, "I4", "5 was asked for", CheckRescale(r.job.Root(), before, r.look().State, 5, r.now())[:1])
}

// altered is an assignment whose range n ends elsewhere.
func altered(t *testing.T, assigned string, n, by int) string {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal([]byte(assigned), &all))
	one := all["ranges"].([]any)[n].(map[string]any)
	one["end"] = one["end"].(float64) + float64(by)
	b, err := json.Marshal(all)
	require.NoError(t, err)
	return string(b)
}

// Each copy of a union that comes back counts once, and what a subtask added to
// it counts.
func TestI4AUnionThatGrewIsFound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	rescale := func(n int) (before, after *State) {
		before = r.look().State
		r.done(r.c.Rescale(t.Context(), r.spec.Name, coordinator.RescaleRequest{Parallelism: n}))
		after = r.look().State
		require.Empty(t, CheckRescale(r.job.Root(), before, after, n, r.now()), "to %d", n)
		return before, after
	}
	rescale(3)
	require.NoError(t, r.client.RPush(t.Context(), r.operator("seen", 1), "added by one").Err())
	before, after := rescale(2)
	seen := after.Keys[r.operator("seen", 0)]
	require.Len(t, seen.Elements, 15, "14 and the one that was added")

	grown := &State{Keys: maps.Clone(after.Keys), Names: after.Names, Registry: after.Registry, Others: after.Others}
	for n := range 2 {
		e := grown.Keys[r.operator("seen", n)]
		e.Elements = append(e.Elements[:len(e.Elements):len(e.Elements)], e.Elements[:14]...)
		grown.Keys[r.operator("seen", n)] = e
	}
	requireFound(t, "I4", "14 are new", CheckRescale(r.job.Root(), before, grown, 2, r.now()))
}

// TestAnyRescaleIsSound goes from one parallelism to another at random, while
// subtasks add to their lists and unions, write back what they were handed, and
// equal contributions meet.
func TestAnyRescaleIsSound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	seed := rand.Uint64()
	rng, from := rand.New(rand.NewPCG(seed, 2)), 2
	for step := range 5 {
		for range rng.IntN(6) {
			part := r.operator([]string{"offsets", "seen"}[rng.IntN(2)], rng.IntN(from))
			item := fmt.Sprintf("item %d", rng.IntN(3))
			r.pipe([][]any{{"RPUSH", part, item}, {"SADD", r.job.Index(), part}})
		}
		n, part := rng.IntN(from), r.operator("seen", rng.IntN(from))
		switch rng.IntN(3) {
		case 0: // a part that is empty
			r.pipe([][]any{{"DEL", r.operator("offsets", n)}})
		case 1: // one that doesn't begin with what was handed out
			r.pipe([][]any{{"LPUSH", part, "in front"}})
		}
		to := 1 + (from+rng.IntN(7))%8
		before := r.look().State
		r.done(r.c.Rescale(t.Context(), r.spec.Name, coordinator.RescaleRequest{Parallelism: to}))
		require.Empty(t, CheckRescale(r.job.Root(), before, r.look().State, to, r.now()), "seed %d, step %d, from %d to %d", seed, step, from, to)
		from = to
	}
}
