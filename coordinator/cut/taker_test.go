package cut

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// script is a state store whose cut is given.
type script struct {
	statebackend.Backend
	push func(req statebackend.CutRequest, sink snapshot.LayerSink) (statebackend.Cut, error)
}

func (s script) Cut(_ context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	c, err := s.push(req, sink.(snapshot.LayerSink))
	if c.Grade == "" {
		c.Grade = snapshot.GradePrecopy
	}
	c.At, c.Server, c.Record = time.UnixMilli(1_000_000).UTC(), snapshot.ServerInfo{RunID: "run"}, statebackend.Record{Incarnation: "inc", Epoch: 3}
	return c, err
}

func (s script) Note(context.Context, statebackend.Job, string, statebackend.Notes) error { return nil }

// desk takes checkpoints of what a script pushes into a real store.
type desk struct {
	t    *testing.T
	db   *bolt.DB
	job  config.Job
	base *Base
}

func newDesk(t *testing.T) *desk {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "keyframe.db"), bolt.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		problems, err := db.Check(context.Background())
		require.NoError(t, err)
		require.Empty(t, problems)
		require.NoError(t, db.Close())
	})
	return &desk{t: t, db: db, job: config.Job{Name: tallyJob.Name, MaxParallelism: 16}.WithDefaults()}
}

// take takes a checkpoint; change alters the request.
func (d *desk) take(push func(statebackend.CutRequest, snapshot.LayerSink) (statebackend.Cut, error), change ...func(*Request)) (Outcome, error) {
	d.t.Helper()
	store := memory.New(memory.Options{})
	taker := Taker{Store: d.db, Backend: script{store, push}, Now: func() time.Time { return time.Now().UTC() }}
	req := Request{Job: d.job, Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerManual, Incarnation: "inc", RunID: "run", Epoch: 3, Base: d.base}
	if d.base != nil {
		req.Parent = d.base.Manifest.Checkpoint.ID
	}
	for _, f := range change {
		f(&req)
	}
	out, err := taker.Take(d.t.Context(), req)
	if err == nil {
		d.base = out.Base
	}
	return out, err
}

// all pushes everything, in layers.
func all(token string, layers ...[]snapshot.RecordedKey) func(statebackend.CutRequest, snapshot.LayerSink) (statebackend.Cut, error) {
	return func(_ statebackend.CutRequest, sink snapshot.LayerSink) (statebackend.Cut, error) {
		for i, keys := range layers {
			if i > 0 {
				if err := sink.NextLayer(); err != nil {
					return statebackend.Cut{}, err
				}
			}
			if err := snapshot.Replay(keys, sink); err != nil {
				return statebackend.Cut{}, err
			}
		}
		return statebackend.Cut{Token: token, Tracking: "fields"}, nil
	}
}

// part pushes only what has changed.
func part(token string, layers ...[]snapshot.RecordedKey) func(statebackend.CutRequest, snapshot.LayerSink) (statebackend.Cut, error) {
	push := all(token, slices.Insert(layers, 0, nil)...)
	return func(r statebackend.CutRequest, sink snapshot.LayerSink) (statebackend.Cut, error) {
		c, err := push(r, sink)
		c.Incremental = true
		return c, err
	}
}

// content is what a checkpoint holds, as a model.
func (d *desk) content(m *snapshot.Manifest) model {
	d.t.Helper()
	var r snapshot.Recorder
	require.NoError(d.t, snapshot.Walk(d.t.Context(), d.db, m, &r))
	got := model{}
	for _, k := range r.Keys {
		got[string(k.Key.Name)] = nil
		if k.Key.Type != snapshot.TypeMissing {
			got[string(k.Key.Name)] = map[string]string{}
		}
		for _, e := range k.Elements {
			got[string(k.Key.Name)][string(e.Field)] = string(e.Value)
		}
	}
	return got
}

// large is a model of n hashes that don't compress well.
func large(n int) model {
	m, rng := model{}, rand.New(rand.NewPCG(1, uint64(n)))
	for i := range n {
		m[stateName(i%16, i)] = map[string]string{"s:a": fmt.Sprint(rng.Uint64()), "s:b": fmt.Sprint(rng.Uint64())}
	}
	return m
}

// set gives a layer that sets one field of a key to a value of its own.
func set(m model, name string) []snapshot.RecordedKey {
	m[name] = maps.Clone(m[name])
	m[name]["s:b"] = fmt.Sprint(rand.Uint64())
	k := hashKey(name, map[string]string{"s:b": m[name]["s:b"]})
	k.Key.Op, k.Key.Count = snapshot.OpPatch, uint64(len(m[name]))
	return []snapshot.RecordedKey{k}
}

func TestTooManyNamesAreCountedByReading(t *testing.T) {
	defer func(n int) { MaxLedgerKeys = n }(MaxLedgerKeys)
	d, m := newDesk(t), large(200)
	want := maps.Clone(m)
	first := m.records()
	out, err := d.take(all("t1", first, set(want, stateName(3, 3))))
	require.NoError(t, err)
	small := out.Manifest
	MaxLedgerKeys = 150
	out, err = d.take(all("t2", first, set(want, stateName(3, 3))))
	require.NoError(t, err)
	require.True(t, slices.Equal(withoutBytes(small.States), withoutBytes(out.Manifest.States)), "of the same content")
	require.Len(t, out.Manifest.Groups, 16)
	require.False(t, out.Checkpoint.BytesEstimated)
	require.True(t, small.Checkpoint.BytesEstimated)
	require.Equal(t, want, d.content(out.Manifest))
	out, err = d.take(all("t3", first))
	require.NoError(t, err)
	require.Equal(t, FullSize, out.Full.Code)
	require.Equal(t, "checkpoint 2 has 200 names, and count is kept of at most 150", out.Checkpoint.FullReason)
}

func withoutBytes(all []snapshot.StateStats) []snapshot.StateStats {
	all = slices.Clone(all)
	for i := range all {
		all[i].Bytes = 0
	}
	return all
}

func TestACutMustBeWhatItSays(t *testing.T) {
	d, m := newDesk(t), large(20)
	_, err := d.take(part("t", m.records()))
	require.ErrorContains(t, err, "brings only what has changed, and was not asked to")
	_, err = d.take(all("t1", m.records()))
	require.NoError(t, err)
	lie := all("t2", m.records())
	_, err = d.take(func(r statebackend.CutRequest, s snapshot.LayerSink) (statebackend.Cut, error) {
		c, err := lie(r, s)
		c.Incremental = true
		return c, err
	})
	require.ErrorContains(t, err, "says that it is incremental: true")
	_, err = d.take(func(_ statebackend.CutRequest, s snapshot.LayerSink) (statebackend.Cut, error) {
		return statebackend.Cut{}, s.Element(snapshot.Element{})
	})
	require.ErrorContains(t, err, "content before any key")
	_, err = d.take(part("t2", set(m, stateName(3, 3)))) // the base is as it was
	require.NoError(t, err)
	require.Equal(t, m, d.content(d.base.Manifest))
	out, err := d.take(part("t3", nil))
	require.NoError(t, err, "nothing has changed")
	require.Zero(t, out.Checkpoint.StoredBytes)
	require.Equal(t, m, d.content(out.Manifest))
}

func TestProgressTellsThePhases(t *testing.T) {
	d, m := newDesk(t), large(20)
	var phases []string
	watch := func(r *Request) {
		r.Progress = func(phase string, _, _, _ uint64) {
			if len(phases) == 0 || phases[len(phases)-1] != phase {
				phases = append(phases, phase)
			}
		}
	}
	meta := snapshot.RecordedKey{Key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte("m"), Type: snapshot.TypeMissing}}
	_, err := d.take(all("t1", m.records(), append(set(m, stateName(3, 3)), meta)), watch)
	require.NoError(t, err)
	require.Equal(t, []string{"copy", "rounds", "pause", "store"}, phases)
	phases = nil
	_, err = d.take(func(r statebackend.CutRequest, s snapshot.LayerSink) (statebackend.Cut, error) {
		require.Equal(t, "t1", r.Since)
		require.True(t, r.Check)
		c, err := all("t2", m.records())(r, s)
		c.Marked = statebackend.Marked{Known: true}
		return c, err
	}, watch, func(r *Request) { r.VerifyLive = true })
	require.NoError(t, err)
	require.Equal(t, []string{"copy", "store", "compare"}, phases)
	require.True(t, d.base.Manifest.Checkpoint.SelfChecked)
}

func TestMergesAreBySize(t *testing.T) {
	m := func(base uint64, layers ...uint64) *snapshot.Manifest {
		m := &snapshot.Manifest{Sorted: true, Chunks: []snapshot.ChunkRef{{Stored: base}}}
		for _, n := range layers {
			m.Layers = append(m.Layers, snapshot.Layer{Chunks: []snapshot.ChunkRef{{Stored: n}}})
		}
		return m
	}
	for _, c := range []struct {
		m    *snapshot.Manifest
		from int // -1 for nothing to do
	}{
		{m(100), -1},
		{m(100, 1, 1, 1), -1},
		{m(100, 20, 20, 10), -1},
		{m(100, 20, 20, 11), -1},   // more than half, but of little
		{m(100, 20, 20, 10, 1), 0}, // and many
		{m(100<<20, 40<<20, 20<<20), 0},
		{m(100<<20, 40<<20, 10<<20), -1},
		{m(100, 1, 1, 1, 1), 1},       // all alike: all together
		{m(1000, 40, 1, 1, 1), 2},     // the large one isn't written again
		{m(1000, 100, 30, 1, 1), 3},   // nor are these two
		{m(1000, 4, 2, 1, 1), 1},      // they add up
		{m(1000, 90, 30, 9, 3, 1), 3}, // too many to leave each by itself: it goes on to the bound
	} {
		p, due := plan(c.m)
		if c.from < 0 {
			require.False(t, due, "%v", c.m.Layers)
			continue
		}
		require.True(t, due)
		require.Equal(t, c.from, p.from, "%v", c.m.Layers)
		if p.from > 0 {
			require.LessOrEqual(t, 1+p.from, SoftLayers, "after it there are few enough")
		}
	}
	unsorted := m(100, 20, 20, 10, 1)
	unsorted.Sorted = false
	require.False(t, Due(unsorted))
}

func TestMergingKeepsTheContent(t *testing.T) {
	d, m := newDesk(t), large(400)
	_, err := d.take(all("t0", m.records()))
	require.NoError(t, err)
	g, merges := Merger{Store: d.db}, 0
	for i := range 40 {
		_, err := d.take(part(fmt.Sprint("t", i+1), set(m, stateName(i%16, i)), set(m, stateName(i%16, i))))
		require.NoError(t, err)
		before := d.base.Manifest
		require.NoError(t, g.Merge(t.Context(), d.job, d.base))
		if d.base.Manifest != before {
			merges++
		}
		require.LessOrEqual(t, d.base.Manifest.Checkpoint.Layers, SoftLayers)
		stored, err := d.db.Manifest(t.Context(), d.job.Name, d.base.Manifest.Checkpoint.ID)
		require.NoError(t, err)
		require.Equal(t, m, d.content(stored))
		require.Equal(t, stored.Checkpoint.Layers, d.base.Manifest.Checkpoint.Layers)
		if i > 5 {
			require.NoError(t, d.db.Delete(t.Context(), d.job.Name, snapshot.ID(i-4)))
		}
	}
	require.Greater(t, merges, 5)
	require.True(t, d.base.Manifest.Checkpoint.BytesEstimated)
	require.NoError(t, g.Flatten(t.Context(), d.job, d.base))
	c := d.base.Manifest.Checkpoint
	require.Equal(t, 1, c.Layers)
	require.False(t, c.BytesEstimated, "everything was read")
	require.Equal(t, m, d.content(d.base.Manifest))
	out, err := d.take(part("last", []snapshot.RecordedKey{hashKey(stateName(1, 1), map[string]string{"only": "this"})}))
	require.NoError(t, err)
	require.False(t, out.Checkpoint.BytesEstimated, "the ledger has followed")
}

func TestAMergeThatIsStoppedChangesNothing(t *testing.T) {
	d, m := newDesk(t), large(400)
	_, err := d.take(all("t0", m.records(), set(m, stateName(1, 1)), set(m, stateName(2, 2)), set(m, stateName(3, 3)), set(m, stateName(4, 4))))
	require.NoError(t, err)
	before := *d.base
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, Merger{Store: d.db}.Merge(ctx, d.job, d.base))
	require.Error(t, Merger{Store: d.db}.Flatten(ctx, d.job, d.base))
	require.Equal(t, before, *d.base)
	stored, err := d.db.Manifest(t.Context(), d.job.Name, 1)
	require.NoError(t, err)
	require.Equal(t, 5, stored.Checkpoint.Layers)
	require.Equal(t, m, d.content(stored))
}

func TestAPatchOfAKeyThatExpiredMeanwhile(t *testing.T) {
	d, m := newDesk(t), large(20)
	name := stateName(3, 3)
	_, err := d.take(all("t1", m.records()))
	require.NoError(t, err)
	k := hashKey(name, map[string]string{"s:b": "the last that was read"})
	k.Key.Op, k.Key.Count, k.Key.ExpireAt, k.End.Expired = snapshot.OpPatch, 2, 999_999, true
	out, err := d.take(part("t2", []snapshot.RecordedKey{k}))
	require.NoError(t, err)
	require.EqualValues(t, 39, out.Checkpoint.Elements, "what was read is all that is left of it")
	m[name] = map[string]string{"s:b": "the last that was read"}
	require.Equal(t, m, d.content(out.Manifest), "its totals are right too")
	require.False(t, out.Checkpoint.BytesEstimated)
}
