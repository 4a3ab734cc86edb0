package snapshot

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files of this format anew")

// The golden files of each version: what an earlier one wrote is never changed.
const (
	goldenDir1 = "testdata/golden-1"
	goldenDir2 = "testdata/golden-2"
)

// goldenKeys is what the golden files hold: everything of oddKeys, a key that
// goes on over several chunks, and a value that does.
func goldenKeys() []RecordedKey {
	keys := append(oddKeys(),
		hashKey(SectionKeyed, "job:many fields", 900),
		key(SectionOperator, TypeList, "job:opstate:long items", element("", "first", 0),
			element("", text(70_000, "long item"), 0), element("", "last", 0)))
	cut := key(SectionKeyed, TypeString, "job:expired inside a long value", RecordedElement{Size: 90_000, Value: []byte(text(20_000, "cut"))})
	cut.Key.ExpireAt, cut.End.Expired = 1700000000003, true
	return append(keys, cut)
}

// goldenSource reads the chunks of a folder.
type goldenSource struct {
	MemChunks
	manifest []byte
}

func readGolden(t *testing.T, dir string) *goldenSource {
	t.Helper()
	s := &goldenSource{}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	total := 0
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		total += len(data)
		if name, ok := strings.CutSuffix(f.Name(), ".chunk"); ok {
			id, err := ParseChunkID(name)
			require.NoError(t, err)
			s.Put(id, data)
		} else if f.Name() == "manifest" {
			s.manifest = data
		}
	}
	require.Less(t, total, 200<<10)
	return s
}

func writeGolden(t *testing.T) {
	t.Helper()
	require.Equal(t, 2, FormatVersion, "a later format has golden files of its own: these stay as they are")
	require.NoError(t, os.RemoveAll(goldenDir2))
	require.NoError(t, os.MkdirAll(goldenDir2, 0o755))
	s, last := goldenLayers(t)
	for _, id := range s.IDs() {
		data, err := s.Chunk(ctx, id)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(goldenDir2, id.String()+".chunk"), data, 0o644))
	}
	data, err := EncodeManifest(s.m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(goldenDir2, "manifest"), data, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(goldenDir2, "expected.txt"), []byte(goldenText(last.keys(t))), 0o644))
}

func goldenText(keys []RecordedKey) string {
	var lines strings.Builder
	for _, k := range keys {
		lines.WriteString(goldenLine(k))
	}
	return lines.String()
}

// goldenLayers is what the golden files of version 2 hold: a base and two
// layers, with patches, keys that are gone, removed elements, loose keys whose
// count is right and wrong, and a value and a patch that go on over chunks.
func goldenLayers(t tb) (*saved, world) {
	a, b, c := threeWorlds()
	for _, k := range goldenKeys() { // with those that go on over several chunks
		for _, w := range []world{a, b, c} {
			if _, ok := w[sectionName{k.Key.Section, string(k.Key.Name)}]; !ok && k.Key.Section != SectionSource {
				w.put(k)
			}
		}
	}
	delete(c, sectionName{SectionOperator, "job:opstate:broadcast"})
	delete(c, sectionName{SectionMeta, "job:assignment"})
	many := sectionName{SectionKeyed, "job:many fields"}
	var put []RecordedElement
	for i := range 500 {
		put = append(put, element(fmt.Sprintf("field-%d", 100+i), fmt.Sprintf("patched to %d", i*i), 0))
	}
	c.put(changed(c[many], put, "field-7", "field-899"))
	loose := hashKey(SectionKeyed, "job:loose", 3)
	a.put(loose)
	b.put(hashKey(SectionKeyed, "job:loose", 5))
	c.put(hashKey(SectionKeyed, "job:loose", 5))
	for _, w := range []world{a, b} {
		for n := range w {
			if n.section == SectionSource {
				delete(w, n)
			}
		}
	}
	never := func(RecordedKey) bool { return false }
	layers := [][]RecordedKey{layerOf(nil, a, never), layerOf(a, b, never), layerOf(b, c, never)}
	for i, k := range layers[0] {
		switch string(k.Key.Name) {
		case "job:loose":
			layers[0][i].Key.Loose, layers[0][i].Key.Count = true, 77
		case "job:long field":
			layers[0][i].Key.Loose = true
		}
	}
	s := &saved{}
	s.sum = encodeLayers(t, &s.MemChunks, EncoderOptions{ChunkTarget: 10_000, Salt: 0x0123456789abcdef}, layers...)
	s.m = stacked(t, nil, s.sum, c)
	cp := &s.m.Checkpoint
	cp.Incremental, cp.Tracking, cp.GradeReason, cp.Rounds = true, "fields", "no \xff right", 2
	cp.Hot = []HotKey{{Key: "job:\xfe hot", Elements: 9}}
	return s, c
}

// goldenLine is a key as text: short values whole, long ones by their ends.
func goldenLine(k RecordedKey) string {
	short := func(b []byte) string {
		if len(b) > 60 {
			return fmt.Sprintf("%d bytes %q…%q", len(b), b[:20], b[len(b)-20:])
		}
		return fmt.Sprintf("%q", b)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s count=%d expireAt=%d type=%q server=%q end=%d/%016x/%t\n", k.Key.Section, k.Key.Type,
		short(k.Key.Name), k.Key.Count, k.Key.ExpireAt, k.Key.TypeName, k.Key.Server, k.End.Count, k.End.Digest, k.End.Expired)
	for i, e := range k.Elements {
		if i == 12 {
			fmt.Fprintf(&b, "  … %d elements\n", len(k.Elements))
			break
		}
		fmt.Fprintf(&b, "  %s score=%016x size=%d %s\n", short(e.Field), math.Float64bits(e.Score), e.Size, short(e.Value))
	}
	return b.String()
}

// The files of format 1 stay readable for ever: they are compared with what
// the code says they hold, and with the text beside them.
func TestGoldenFilesOfFormat1(t *testing.T) {
	src := readGolden(t, goldenDir1)
	m := goldenManifest(t, src, 1)
	var r Recorder
	require.NoError(t, Walk(ctx, src, m, &r))
	same(t, bySection(t, goldenKeys()), r.Keys)
	want, err := os.ReadFile(filepath.Join(goldenDir1, "expected.txt"))
	require.NoError(t, err)
	require.Equal(t, string(want), goldenText(r.Keys))

	fresh := encode(t, 10_000, goldenKeys())
	require.Equal(t, fresh.m.Identity, m.Identity)
	require.Equal(t, fresh.m.Checkpoint.Sources, m.Checkpoint.Sources)
	require.Equal(t, fresh.m.OperatorStates, m.OperatorStates)
	require.Equal(t, fresh.m.Ranges, m.Ranges)
	require.Len(t, m.Chunks, len(fresh.m.Chunks))
	for i, ref := range m.Chunks { // Stored may change with the compressor, the content may not
		require.Equal(t, ref.ID, fresh.m.Chunks[i].ID)
	}
	chunks := sectionsOf(m.Chunks)
	require.Greater(t, chunks[SectionKeyed], 5)
	require.Greater(t, chunks[SectionOperator], 5)
	require.Len(t, chunks, 4)

	// Written again it is of today's version, over the same chunks.
	data, err := EncodeManifest(m)
	require.NoError(t, err)
	now, err := DecodeManifest(data)
	require.NoError(t, err)
	require.Equal(t, FormatVersion, now.Format)
	require.Equal(t, 1, m.Format)
	var again Recorder
	require.NoError(t, Walk(ctx, src, now, &again))
	require.Equal(t, r.Keys, again.Keys)
}

// goldenManifest is the manifest beside the chunks, which are sound.
func goldenManifest(t *testing.T, src *goldenSource, version int) *Manifest {
	t.Helper()
	m, err := DecodeManifest(src.manifest)
	require.NoError(t, err)
	require.Equal(t, version, m.Format)
	for ref := range m.AllChunks() {
		data, err := src.Chunk(ctx, ref.ID)
		require.NoError(t, err)
		require.EqualValues(t, version, data[4])
	}
	problems, err := Verify(ctx, src, m)
	require.NoError(t, err)
	require.Empty(t, problems)
	return m
}

func sectionsOf(refs []ChunkRef) map[Section]int {
	chunks := map[Section]int{}
	for _, ref := range refs {
		chunks[ref.Section]++
	}
	return chunks
}

// So do those of format 2.
func TestGoldenFilesOfFormat2(t *testing.T) {
	if *update {
		writeGolden(t)
	}
	src := readGolden(t, goldenDir2)
	m := goldenManifest(t, src, 2)
	fresh, last := goldenLayers(t)
	var r Recorder
	require.NoError(t, Walk(ctx, src, m, &r))
	require.Empty(t, DiffKeys(last.keys(t), r.Keys))
	want, err := os.ReadFile(filepath.Join(goldenDir2, "expected.txt"))
	require.NoError(t, err)
	require.Equal(t, string(want), goldenText(last.keys(t)))
	var again Recorder
	require.NoError(t, Walk(ctx, fresh, fresh.m, &again))
	require.Equal(t, again.Keys, r.Keys, "the order of merged elements too")

	c := fresh.m.Checkpoint
	c.FullBytes, c.StoredBytes = m.Checkpoint.FullBytes, m.Checkpoint.StoredBytes
	require.Equal(t, c, m.Checkpoint)
	require.Len(t, m.Layers, 2)
	for i := range 3 {
		require.Len(t, m.layer(i), len(fresh.m.layer(i)))
		for j, ref := range m.layer(i) {
			require.Equal(t, ref.ID, fresh.m.layer(i)[j].ID)
		}
	}
	require.Greater(t, sectionsOf(m.Layers[0].Chunks)[SectionKeyed], 5)
	require.Greater(t, sectionsOf(m.Layers[1].Chunks)[SectionKeyed], 1)
	require.Len(t, sectionsOf(m.Layers[1].Chunks), 4)
	kinds := map[byte]bool{}
	for ref := range m.AllChunks() {
		o, err := openRef(ctx, src, ref, nil)
		require.NoError(t, err)
		framesOf(t, o.raw, kinds)
	}
	for kind := byte(frameKey); kind <= frameSalt; kind++ {
		require.True(t, kinds[kind], "frame kind %d is in the golden files", kind)
	}
}

// framesOf notes which kinds of frames a chunk has.
func framesOf(t *testing.T, raw []byte, kinds map[byte]bool) {
	t.Helper()
	r := newReader(&Manifest{Layers: []Layer{{Names: MaxChunk}}}, 1, nil)
	r.over = raw[1] == frameSalt
	kinds[frameSalt] = kinds[frameSalt] || r.over
	r.blind = true // whatever it resumes
	require.NoError(t, r.load(Section(raw[0]), opened{raw: raw, version: FormatVersion}))
	kinds[frameResume] = kinds[frameResume] || r.tr.blind
	for r.c.more() {
		kinds[r.c.b[r.c.off]] = true
		require.NoError(t, r.next())
	}
}
