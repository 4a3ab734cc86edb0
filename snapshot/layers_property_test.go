package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// genMember makes an element whose identity is one of n.
func genMember(t *rapid.T, kt KeyType, n int) RecordedElement {
	i := rapid.IntRange(0, n-1).Draw(t, "identity")
	e := genElement(t, kt, i)
	if kt == TypeHash {
		e.Field = keep(fmt.Appendf(nil, "f\xff%d", i))
		return e
	}
	if kt == TypeSet || kt == TypeZSet {
		e.Value = keep([]byte(text(i*i*3, "member") + string(rune('a'+i))))
		e.Size = uint64(len(e.Value))
	}
	return e
}

// genState makes a key of the model; those with a name in common may differ in
// everything.
func genState(t *rapid.T, s Section, name string) RecordedKey {
	k := genKey(t)
	k.Key.Section, k.Key.Name = s, keep([]byte(name))
	if !k.Key.Type.patched() || k.End.Expired {
		return k
	}
	return refill(t, k)
}

// refill gives a key of elements other ones, some of them the same.
func refill(t *rapid.T, k RecordedKey) RecordedKey {
	kt := k.Key.Type
	var fresh []RecordedElement
	for range rapid.IntRange(1, 12).Draw(t, "elements") {
		e := genMember(t, kt, 20)
		if !slices.ContainsFunc(fresh, func(o RecordedElement) bool { return identityOf(kt, o) == identityOf(kt, e) }) {
			fresh = append(fresh, e)
		}
	}
	return with(k, fresh...)
}

// evolve makes the next state of a world.
func evolve(t *rapid.T, w world) world {
	next := w.clone()
	for s := SectionKeyed; s <= SectionSource; s++ {
		for i := range 5 {
			n := sectionName{s, fmt.Sprintf("job:%d", i)}
			old, ok := w[n]
			switch rapid.SampledFrom([]string{"stay", "stay", "stay", "other", "fields", "fields", "expiry", "go"}).Draw(t, "what") {
			case "other":
				next.put(genState(t, s, n.name))
			case "go":
				delete(next, n)
			case "fields":
				if ok && old.Key.Type.patched() && !old.End.Expired {
					next.put(changed(old, refill(t, with(old)).Elements[:1], identityOf(old.Key.Type, old.Elements[0])))
				}
			case "expiry":
				if ok && old.Key.Type != TypeMissing && !old.End.Expired {
					old.Key.ExpireAt = int64(rapid.IntRange(0, 3).Draw(t, "expireAt"))
					next.put(old)
				}
			}
		}
	}
	return next
}

// genLayers makes a history of states, and the layers between them. A whole
// key below the last layer may be loose; when a newer record of it comes, its
// count may be anything.
func genLayers(t *rapid.T, n int) (worlds []world, layers [][]RecordedKey) {
	w := world{}
	for i := range n {
		w = evolve(t, w)
		pushed := w.clone()
		if i+1 < n {
			maps.DeleteFunc(pushed, func(n sectionName, _ RecordedKey) bool { return n.section == SectionSource })
		}
		before := world{}
		if i > 0 {
			before = worlds[i-1]
		}
		layers = append(layers, layerOf(before, pushed, func(RecordedKey) bool { return rapid.Bool().Draw(t, "whole") }))
		worlds = append(worlds, pushed)
	}
	over := map[sectionName]bool{}
	for i := n - 1; i >= 0; i-- {
		for j := range layers[i] {
			k := &layers[i][j].Key
			name := sectionName{k.Section, string(k.Name)}
			if k.Op == OpWhole && rapid.IntRange(0, 3).Draw(t, "loose") == 0 {
				k.Loose = true
				if over[name] && k.Type != TypeMissing && k.Type != TypeString && k.Type != TypeOpaque {
					k.Count = rapid.Uint64Range(0, 50).Draw(t, "said")
				}
			}
			over[name] = true
		}
	}
	return worlds, layers
}

// Any history of states, in layers of one checkpoint, is its last state; so is
// every merge of its layers; and each is unharmed when the others' chunks go.
func TestAnyLayersAreTheLastState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "layers")
		worlds, layers := genLayers(rt, n)
		target := rapid.SampledFrom([]int{50, 600, 0}).Draw(rt, "target")
		s := &saved{}
		sum := encodeLayers(rt, &s.MemChunks, EncoderOptions{ChunkTarget: target}, layers...)
		require.True(rt, sum.Sorted)
		s.m = stacked(rt, nil, sum, worlds[n-1])
		holds(rt, s, worlds[n-1])
		only := Section(rapid.IntRange(1, 4).Draw(rt, "only"))
		want := slices.DeleteFunc(worlds[n-1].keys(rt), func(k RecordedKey) bool { return k.Key.Section != only })
		require.Empty(rt, DiffKeys(want, walk(rt, s, only)))

		from := rapid.IntRange(0, len(s.m.Layers)).Draw(rt, "from")
		out := merged(rt, s, from, target)
		holds(rt, out, worlds[n-1])
		data, err := EncodeManifest(out.m)
		require.NoError(rt, err)
		back, err := DecodeManifest(data)
		require.NoError(rt, err)
		require.Equal(rt, out.m, back)
	})
}

// Checkpoints one over the other, each by an encoder of its own: each is its
// own state, also when all chunks of the others that it doesn't name are gone.
func TestEachOfAChainOfCheckpointsStandsAlone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(rt, "checkpoints")
		var all MemChunks
		var parent *Manifest
		var manifests []*Manifest
		var states []world
		before := world{}
		for i := range n {
			w := evolve(rt, before)
			sum := encodeLayers(rt, &all, EncoderOptions{ChunkTarget: 300, Over: i > 0},
				layerOf(before, w, func(RecordedKey) bool { return rapid.Bool().Draw(rt, "whole") }))
			parent = stacked(rt, parent, sum, w)
			manifests, states = append(manifests, parent), append(states, w)
			before = w
		}
		i := rapid.IntRange(0, n-1).Draw(rt, "kept")
		alone := &saved{m: manifests[i]}
		for ref := range alone.m.AllChunks() {
			data, err := all.Chunk(ctx, ref.ID)
			require.NoError(rt, err)
			alone.Put(ref.ID, data)
		}
		holds(rt, alone, states[i])
		from := rapid.IntRange(0, len(alone.m.Layers)).Draw(rt, "from")
		holds(rt, merged(rt, alone, from, 300), states[i])
	})
}

// A layer that brings back what an older one had is another chunk.
func TestALayerThatGoesBackIsNoChunkTwice(t *testing.T) {
	a := worldOf(hashKey(SectionKeyed, "h", 130), key(SectionKeyed, TypeString, "s", element("", "a", 0)))
	b := worldOf(hashKey(SectionKeyed, "h", 130), key(SectionKeyed, TypeString, "s", element("", "b", 0)))
	holds(t, layeredOf(t, EncoderOptions{}, a, b, a, b, a), a)
	var all MemChunks
	parent := stacked(t, nil, encodeLayers(t, &all, EncoderOptions{}, layerOf(nil, a, nil)), a)
	for i := range 6 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		parent = stacked(t, parent, encodeLayers(t, &all, EncoderOptions{Over: true}, layerOf(from, to, nil)), to)
		require.Len(t, parent.Layers, i+1)
		s := &saved{m: parent}
		for ref := range parent.AllChunks() {
			data, err := all.Chunk(ctx, ref.ID)
			require.NoError(t, err)
			s.Put(ref.ID, data)
		}
		holds(t, s, to)
	}
	_, err := Merge(ctx, &all, parent, 0, &all, EncoderOptions{})
	require.NoError(t, err)
}

// Any changed byte of any chunk of any layer is noticed, and Verify names the
// layer.
func TestAnyFlippedByteOfALayerIsNoticed(t *testing.T) {
	a := worldOf(hashKey(SectionKeyed, "h", 6), key(SectionKeyed, TypeSet, "s", element("", "m", 0)), listKey(SectionOperator, "o", 3))
	b := a.clone()
	b.put(changed(hashKey(SectionKeyed, "h", 6), []RecordedElement{element("x", "y", 0)}, "field-1"))
	delete(b, sectionName{SectionKeyed, "s"})
	c := b.clone()
	c.put(listKey(SectionOperator, "o", 4))
	s := layeredOf(t, EncoderOptions{ChunkTarget: 100}, a, b, c)
	holds(t, s, c)
	for layer := range 3 {
		for _, ref := range s.m.layer(layer) {
			good, err := s.Chunk(ctx, ref.ID)
			require.NoError(t, err)
			for i := range good {
				bad := slices.Clone(good)
				bad[i] ^= 0x11
				s.Put(ref.ID, bad)
				require.ErrorIs(t, Walk(ctx, s, s.m, nil), ErrCorrupt)
			}
			problems, err := Verify(ctx, s, s.m)
			require.NoError(t, err)
			require.Len(t, problems, 1, lines(problems))
			if layer > 0 {
				require.Contains(t, problems[0].What, fmt.Sprintf("of layer %d", layer))
			}
			s.Put(ref.ID, good)
		}
	}
	holds(t, s, c)
}
