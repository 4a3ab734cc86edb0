package snapshot

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
)

// world is a state as a model has it: whole keys by section and name.
type world map[sectionName]RecordedKey

func worldOf(keys ...RecordedKey) world {
	w := world{}
	for _, k := range keys {
		w.put(k)
	}
	return w
}

func (w world) put(k RecordedKey) { w[sectionName{k.Key.Section, string(k.Key.Name)}] = k }

func (w world) clone() world { return maps.Clone(w) }

// inOrder sorts keys as a layer has them.
func inOrder(keys []RecordedKey) []RecordedKey {
	slices.SortStableFunc(keys, func(a, b RecordedKey) int {
		return cmp.Or(cmp.Compare(a.Key.Section, b.Key.Section), CompareNames(a.Key.Name, b.Key.Name))
	})
	return keys
}

// keys are the world as a walk gives it, ends and all.
func (w world) keys(t tb) []RecordedKey {
	t.Helper()
	var r Recorder
	require.NoError(t, Replay(inOrder(slices.Collect(maps.Values(w))), &r))
	return r.Keys
}

func identityOf(t KeyType, e RecordedElement) string {
	if t == TypeHash {
		return string(e.Field)
	}
	return string(e.Value)
}

// patchOf is what turns one key into another of the same type.
func patchOf(from, to RecordedKey) RecordedKey {
	p := RecordedKey{Key: to.Key}
	p.Key.Op, p.End.Expired = OpPatch, to.End.Expired
	old := map[string]RecordedElement{}
	for _, e := range from.Elements {
		old[identityOf(to.Key.Type, e)] = e
	}
	for _, e := range to.Elements {
		id := identityOf(to.Key.Type, e)
		before, ok := old[id]
		delete(old, id)
		if !ok || compareElements(before, e) != 0 {
			p.Elements = append(p.Elements, e)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		p.Elements = append(p.Elements, removal(to.Key.Type, id))
	}
	return p
}

func removal(t KeyType, id string) RecordedElement {
	if t == TypeHash {
		return RecordedElement{Field: keep([]byte(id)), Removed: true}
	}
	return RecordedElement{Value: keep([]byte(id)), Size: uint64(len(id)), Removed: true}
}

// patch is a key that changes elements of an older one, which then has count.
func patch(s Section, t KeyType, name string, count int, elements ...RecordedElement) RecordedKey {
	k := key(s, t, name, elements...)
	k.Key.Op, k.Key.Count = OpPatch, uint64(count)
	return k
}

func gone(s Section, name string) RecordedKey {
	return RecordedKey{Key: Key{Section: s, Op: OpGone, Name: []byte(name)}}
}

// layerOf is what turns one world into another; whole says which of the keys
// that could be patched are whole nevertheless.
func layerOf(from, to world, whole func(RecordedKey) bool) []RecordedKey {
	var out []RecordedKey
	for n, k := range to {
		old, ok := from[n]
		switch {
		case n.section == SectionSource:
			out = append(out, k)
		case ok && sameKey(old, k):
		case ok && old.Key.Type == k.Key.Type && k.Key.Type.patched() && !old.End.Expired && !k.End.Expired && !whole(k):
			out = append(out, patchOf(old, k))
		default:
			out = append(out, k)
		}
	}
	for n := range from {
		if _, ok := to[n]; !ok && n.section != SectionSource {
			out = append(out, gone(n.section, n.name))
		}
	}
	return inOrder(out)
}

func sameKey(a, b RecordedKey) bool { return len(diffKey(&a, &b)) == 0 }

// encodeLayers writes layers; over says that they stand over a parent.
func encodeLayers(t tb, to ChunkWriter, opts EncoderOptions, layers ...[]RecordedKey) Summary {
	t.Helper()
	enc := NewEncoder(ctx, to, opts)
	for i, keys := range layers {
		if i > 0 {
			require.NoError(t, enc.NextLayer())
		}
		require.NoError(t, Replay(keys, enc))
	}
	sum, err := enc.Close()
	require.NoError(t, err)
	return sum
}

// stacked is a manifest over the parent (nil for none) whose numbers are those
// of the world that it holds.
func stacked(t tb, parent *Manifest, sum Summary, w world) *Manifest {
	t.Helper()
	base, layers, err := Stack(parent, sum.Layers)
	require.NoError(t, err)
	m := manifestOf(Summary{Chunks: base})
	m.Layers, m.Sorted = layers, true
	c := &m.Checkpoint
	c.Layers, c.Incremental, c.StoredBytes = 1+len(layers), parent != nil, sum.Fresh
	for _, k := range w {
		if k.Key.Section > SectionOperator {
			continue
		}
		if k.Key.Type == TypeMissing {
			c.Missing++
			continue
		}
		c.Keys++
		c.Bytes += uint64(len(k.Key.Name))
		for _, e := range k.Elements {
			if uint64(len(e.Value)) == e.Size {
				c.Elements++
				c.Bytes += uint64(len(e.Field)) + e.Size
			}
		}
	}
	for ref := range m.AllChunks() {
		c.FullBytes += ref.Stored
	}
	c.StoredBytes = min(c.StoredBytes, c.FullBytes)
	require.NoError(t, m.Validate())
	return m
}

// layeredOf writes worlds one over the other into one checkpoint.
func layeredOf(t tb, opts EncoderOptions, worlds ...world) *saved {
	t.Helper()
	s := &saved{}
	var layers [][]RecordedKey
	var before world
	for i, w := range worlds {
		if i+1 < len(worlds) {
			w = w.clone()
			maps.DeleteFunc(w, func(n sectionName, _ RecordedKey) bool { return n.section == SectionSource })
		}
		layers = append(layers, layerOf(before, w, func(RecordedKey) bool { return false }))
		before = w
	}
	s.sum = encodeLayers(t, &s.MemChunks, opts, layers...)
	s.m = stacked(t, nil, s.sum, before)
	s.keys = before.keys(t)
	return s
}

// holds checks that a checkpoint is the world, in the order of its keys.
func holds(t tb, s *saved, w world) {
	t.Helper()
	verified(t, s)
	got := walk(t, s)
	require.Empty(t, DiffKeys(w.keys(t), got))
	for i := 1; i < len(got); i++ {
		a, b := got[i-1].Key, got[i].Key
		require.Less(t, cmp.Or(cmp.Compare(a.Section, b.Section), CompareNames(a.Name, b.Name)), 0)
	}
	require.Equal(t, got, walk(t, s), "always in the same order")
}

// with gives a copy of a key with these elements, and the count that goes with
// them.
func with(k RecordedKey, elements ...RecordedElement) RecordedKey {
	k.Elements = elements
	k.Key.Count = uint64(len(elements))
	return k
}

// changed replaces, adds and removes elements of a key.
func changed(k RecordedKey, put []RecordedElement, remove ...string) RecordedKey {
	t := k.Key.Type
	all := slices.DeleteFunc(slices.Clone(k.Elements), func(e RecordedElement) bool {
		id := identityOf(t, e)
		return slices.Contains(remove, id) ||
			slices.ContainsFunc(put, func(p RecordedElement) bool { return bytes.Equal([]byte(id), []byte(identityOf(t, p))) })
	})
	return with(k, append(all, put...)...)
}
