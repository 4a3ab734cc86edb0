package restore

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
	"keyframe/statebackend/redis"
)

// as is the world seen as another job, on the same stores.
func (w *world) as(job config.Job) *world {
	return assemble(w.store, w.backend, w.now, job)
}

// moved is a state under another root, registry and all.
func moved(s state, from, to statebackend.Job) state {
	all := state{}
	for name, text := range s {
		name = strings.Replace(name, from.Root()+":", to.Root()+":", 1)
		if name == to.Registry() {
			text = strings.ReplaceAll(text, `"`+from.Root()+`:`, `"`+to.Root()+`:`)
		}
		all[name] = text
	}
	return all
}

func TestAsAnotherJobMovesTheRoot(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	original := w.live(t)
	job := testJob("flights:b")
	job.Prefix = "copy"
	b := w.as(job)
	b.put(t, job.Key().StateKey(w.scope(1), "old"), "java.lang.Long|1", cmd(statebackend.OpHSet, "s:q", "8"))
	b.adopt(t)

	plan, err := b.exec.Plan(ctx, Request{Job: job, From: "flights", As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(1), plan.Removed)
	require.Equal(t, "flights", plan.Identity.Checkpoint.Job)
	require.Equal(t, "copy", plan.Identity.Job.Prefix)
	res, err := b.exec.Run(ctx, Request{Job: job, From: "flights", As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, m.Checkpoint.Keys, res.Keys)
	got, c := b.cut(t)
	requireState(t, moved(original, w.job.Key(), job.Key()), got)
	require.Equal(t, "incarnation-of-flights:b", c.Record.Incarnation, "the target keeps its own")
	requireState(t, original, w.live(t))
	b.noTraces(t)
}

func TestAsIntoNothingGetsANewIncarnation(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	b := w.as(testJob("fresh"))
	_, err := b.exec.Run(ctx, Request{Job: b.job, From: "flights", As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	_, c := b.cut(t)
	require.NotEmpty(t, c.Record.Incarnation)
	require.NotEqual(t, m.Incarnation, c.Record.Incarnation)
}

func TestAsAnotherServerKeepsTheNames(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	want := w.live(t)
	there := assemble(w.store, memory.New(memory.Options{Name: "spare", Now: w.now.Now}), w.now, w.job)
	_, err := there.exec.Run(ctx, Request{Job: w.job, As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	requireState(t, want, there.live(t))
}

func TestAsKeepsPositionsOfSharedSourcesOnly(t *testing.T) {
	p := func(topic, group string, n int) snapshot.Position {
		return snapshot.Position{Topic: topic, Group: group, Partition: n, Stream: "stream:topic:" + topic + ":p:1"}
	}
	m := &snapshot.Manifest{Identity: snapshot.Identity{Prefix: "streaming:runtime", Job: "flights"}}
	m.Checkpoint.Sources = []snapshot.Position{p("flights", "stats", 0), p("flights", "audit", 0), p("rain", "stats", 3)}
	own := testJob("flights")
	require.EqualValues(t, m.Checkpoint.Sources, positionsFor(m, own), "its own job gets all of them, whatever it is configured with")
	other := testJob("trains")
	require.Empty(t, positionsFor(m, other))
	other.Sources = []config.Source{{Topic: "rain", Group: "stats"}, {Topic: "flights", Group: "other"}}
	require.Equal(t, []snapshot.Position{p("rain", "stats", 3)}, positionsFor(m, other))
	keep := keepSources(m, other)
	require.True(t, keep([]byte("streaming:mq:commit:rain:p:3")))
	require.False(t, keep([]byte("streaming:mq:commit:flights:p:0")))
	require.True(t, keep(redis.PendingKey("stream:topic:rain:p:1", "stats")))
	require.False(t, keep(redis.PendingKey("stream:topic:flights:p:1", "stats")))
}

func TestRenamerKeepsCountAndMakesTheRegistryAnew(t *testing.T) {
	from, to := statebackend.Job{Prefix: "p", Name: "a"}, statebackend.Job{Prefix: "longer:prefix", Name: "b"}
	keys := []snapshot.RecordedKey{{
		Key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte(from.Registry()), Type: snapshot.TypeHash, Count: 3},
	}}
	for _, f := range []string{"p:a:cg:x", "p:ab:cg:x", "p:a:"} {
		keys[0].Elements = append(keys[0].Elements, snapshot.RecordedElement{Field: []byte(f), Size: 3, Value: []byte("T|1")})
	}
	var was, is snapshot.Recorder
	require.NoError(t, snapshot.Replay(keys, &was))
	r := &renamer{next: &is, from: from, to: to, keep: func([]byte) bool { return false }}
	require.NoError(t, snapshot.Replay(was.Keys, r), "the recorder checks the new digest")
	require.Equal(t, "longer:prefix:b:stateSchema", string(is.Keys[0].Key.Name))
	var fields []string
	for _, e := range is.Keys[0].Elements {
		fields = append(fields, string(e.Field))
	}
	require.Equal(t, []string{"longer:prefix:b:cg:x", "p:ab:cg:x", "longer:prefix:b:"}, fields)
	require.NotEqual(t, was.Keys[0].End.Digest, is.Keys[0].End.Digest)
}
