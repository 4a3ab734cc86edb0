package witness

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// drawn is a key as the newest layer has it, and what its layers said of it.
type drawn struct {
	kind     snapshot.KeyType
	elements map[string]snapshot.RecordedElement // by field or member
	list     []snapshot.RecordedElement          // of ordered types
	gone     bool
	expired  bool
	expireAt int64
}

var ctx = context.Background()

var drawnTypes = []snapshot.KeyType{snapshot.TypeString, snapshot.TypeHash, snapshot.TypeList, snapshot.TypeSet,
	snapshot.TypeZSet, snapshot.TypeOpaque, snapshot.TypeMissing}

// draws are random choices that a seed repeats: thousands for each state, which
// is more than rapid draws in the time.
type draws struct{ *rand.Rand }

func (d *draws) between(least, most int) int { return least + d.IntN(most-least+1) }

func oneOf[T any](d *draws, all []T) T { return all[d.IntN(len(all))] }

// drawElement draws an element: its identity is id in hashes, sets and zsets.
// Values may be longer than a chunk.
func drawElement(t *draws, kind snapshot.KeyType, id string) snapshot.RecordedElement {
	size := oneOf(t, []int{0, 1, 30, 600, 9000})
	value := strings.Repeat(oneOf(t, []string{"v", "\xff\x00", "u"}), size)
	e := snapshot.RecordedElement{Value: []byte(value)}
	switch kind {
	case snapshot.TypeHash:
		e.Field = []byte(id)
	case snapshot.TypeSet:
		e.Value = []byte(id)
	case snapshot.TypeZSet:
		e.Value = []byte(id)
		e.Score = oneOf(t, []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), 0.1, 9007199254740993})
	}
	e.Size = uint64(len(e.Value))
	return e
}

func patchable(kind snapshot.KeyType) bool {
	return kind == snapshot.TypeHash || kind == snapshot.TypeSet || kind == snapshot.TypeZSet
}

func (d *drawn) count() int { return len(d.elements) + len(d.list) }

// whole draws a new content and gives the key's record.
func (d *drawn) whole(t *draws, section snapshot.Section, name string) snapshot.RecordedKey {
	*d = drawn{kind: oneOf(t, drawnTypes), elements: map[string]snapshot.RecordedElement{}}
	if d.kind != snapshot.TypeMissing {
		d.expireAt = oneOf(t, []int64{0, 0, 1893456000123})
	}
	k := snapshot.RecordedKey{Key: snapshot.Key{Section: section, Name: []byte(name), Type: d.kind, ExpireAt: d.expireAt}}
	switch {
	case d.kind == snapshot.TypeMissing:
	case patchable(d.kind):
		for i := range t.between(1, 140) {
			id := fmt.Sprintf("id-%d\xfe", i)
			d.elements[id] = drawElement(t, d.kind, id)
			k.Elements = append(k.Elements, d.elements[id])
		}
	default:
		n := 1
		if d.kind == snapshot.TypeList {
			n = t.between(1, 9)
		}
		for range n {
			d.list = append(d.list, drawElement(t, d.kind, ""))
		}
		k.Elements = d.list
	}
	if d.kind == snapshot.TypeOpaque {
		k.Key.TypeName, k.Key.Server = "stream", "7.0.15"
	}
	k.Key.Count = uint64(len(k.Elements))
	return k
}

// patch draws a patch over a key that can be patched.
func (d *drawn) patch(t *draws, section snapshot.Section, name string) snapshot.RecordedKey {
	k := snapshot.RecordedKey{Key: snapshot.Key{Section: section, Op: snapshot.OpPatch, Name: []byte(name), Type: d.kind}}
	for i := range 160 {
		id := fmt.Sprintf("id-%d\xfe", i)
		_, has := d.elements[id]
		switch what := t.between(0, 9); {
		case what == 0 && has && len(d.elements) > 1:
			e := snapshot.RecordedElement{Removed: true}
			if d.kind == snapshot.TypeHash {
				e.Field = []byte(id)
			} else {
				e.Value, e.Size = []byte(id), uint64(len(id))
			}
			delete(d.elements, id)
			k.Elements = append(k.Elements, e)
		case what == 1:
			d.elements[id] = drawElement(t, d.kind, id)
			k.Elements = append(k.Elements, d.elements[id])
		}
	}
	d.expireAt = oneOf(t, []int64{0, 1893456000999})
	k.Key.ExpireAt, k.Key.Count = d.expireAt, uint64(len(d.elements))
	if d.expireAt > 0 && t.between(0, 4) == 0 {
		k.End.Expired, d.expired = true, true
		d.elements = map[string]snapshot.RecordedElement{}
		for _, e := range k.Elements {
			if !e.Removed {
				d.elements[string(e.Field)+"/"+string(e.Value)] = e
			}
		}
	}
	return k
}

// drawLayers draws a base and layers over it, and the state that they make.
func drawLayers(t *draws) (layers [][]snapshot.RecordedKey, world map[string]*drawn) {
	world = map[string]*drawn{}
	for n := range t.between(1, 4) {
		var layer []snapshot.RecordedKey
		for i := range 12 {
			name := fmt.Sprintf("streaming:runtime:flights:key %d\xff", i)
			section := snapshot.SectionKeyed
			if i%4 == 0 {
				section = snapshot.SectionOperator
			}
			d := world[name]
			switch what := t.between(0, 3); {
			case n == 0 || what == 0:
				world[name] = &drawn{}
				layer = append(layer, world[name].whole(t, section, name))
			case what == 1 && patchable(d.kind) && !d.gone && !d.expired:
				layer = append(layer, d.patch(t, section, name))
			case what == 2:
				*d = drawn{gone: true}
				layer = append(layer, snapshot.RecordedKey{Key: snapshot.Key{Section: section, Op: snapshot.OpGone, Name: []byte(name)}})
			}
		}
		slices.SortFunc(layer, func(a, b snapshot.RecordedKey) int {
			if a.Key.Section != b.Key.Section {
				return int(a.Key.Section) - int(b.Key.Section)
			}
			return snapshot.CompareNames(a.Key.Name, b.Key.Name)
		})
		layers = append(layers, layer)
	}
	return layers, world
}

// totals are those that a manifest says of a drawn state.
func totals(world map[string]*drawn) (keys, missing, elements, bytes uint64) {
	for name, d := range world {
		switch {
		case d.gone:
		case d.kind == snapshot.TypeMissing:
			missing++
		default:
			keys++
			elements += uint64(d.count())
			bytes += uint64(len(name))
			for _, e := range d.elements {
				bytes += uint64(len(e.Field) + len(e.Value))
			}
			for _, e := range d.list {
				bytes += uint64(len(e.Value))
			}
		}
	}
	return keys, missing, elements, bytes
}

// TestAnyLayersAreReadAsTheProductReadsThem draws layers of every kind of
// record, writes them with the product's encoder, and compares both readers.
func TestAnyLayersAreReadAsTheProductReadsThem(t *testing.T) {
	for range 25 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { compareReaders(t, seed) })
	}
}

func compareReaders(t *testing.T, seed uint64) {
	layers, world := drawLayers(&draws{rand.New(rand.NewPCG(seed, 3))})
	chunks := &snapshot.MemChunks{}
	enc := snapshot.NewEncoder(ctx, chunks, snapshot.EncoderOptions{ChunkTarget: 2 << 10})
	for i, layer := range layers {
		if i > 0 {
			require.NoError(t, enc.NextLayer())
		}
		require.NoError(t, snapshot.Replay(layer, enc))
	}
	sum, err := enc.Close()
	require.NoError(t, err)
	sum.Keys, sum.Missing, sum.Elements, sum.Bytes = totals(world)
	m := storetest.ManifestOf(storetest.Attempt("flights"), 9, sum)
	m.Layers, m.Sorted = sum.Layers[1:], true
	data, err := snapshot.EncodeManifest(m)
	require.NoError(t, err)
	var r snapshot.Recorder
	require.NoError(t, snapshot.Walk(ctx, chunks, m, &r))

	opened, err := openManifest(data)
	require.NoError(t, err)
	all, err := readSections(opened, func(id string) ([]byte, error) {
		known, err := snapshot.ParseChunkID(id)
		if err != nil {
			return nil, err
		}
		return chunks.Chunk(ctx, known)
	})
	require.NoError(t, err)
	got, err := opened.state(all, opened.root())
	require.NoError(t, err)
	want := byProduct(opened.root(), r.Keys)
	require.Equal(t, want.Names, got.Names)
	require.Equal(t, want.Keys, got.Keys)
}
