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

const goldenDir = "testdata/golden-1"

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

func readGolden(t *testing.T) *goldenSource {
	t.Helper()
	s := &goldenSource{}
	files, err := os.ReadDir(goldenDir)
	require.NoError(t, err)
	total := 0
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(goldenDir, f.Name()))
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
	require.Equal(t, 1, FormatVersion, "a later format has golden files of its own: these stay as they are")
	require.NoError(t, os.RemoveAll(goldenDir))
	require.NoError(t, os.MkdirAll(goldenDir, 0o755))
	s := encode(t, 10_000, goldenKeys())
	for _, id := range s.IDs() {
		data, err := s.Chunk(ctx, id)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(goldenDir, id.String()+".chunk"), data, 0o644))
	}
	data, err := EncodeManifest(s.m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(goldenDir, "manifest"), data, 0o644))
	var lines strings.Builder
	for _, k := range bySection(t, goldenKeys()) {
		lines.WriteString(goldenLine(k))
	}
	require.NoError(t, os.WriteFile(filepath.Join(goldenDir, "expected.txt"), []byte(lines.String()), 0o644))
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
	if *update {
		writeGolden(t)
	}
	src := readGolden(t)
	m, err := DecodeManifest(src.manifest)
	require.NoError(t, err)
	problems, err := Verify(ctx, src, m)
	require.NoError(t, err)
	require.Empty(t, problems)

	var r Recorder
	require.NoError(t, Walk(ctx, src, m, &r))
	same(t, bySection(t, goldenKeys()), r.Keys)
	var lines strings.Builder
	for _, k := range r.Keys {
		lines.WriteString(goldenLine(k))
	}
	want, err := os.ReadFile(filepath.Join(goldenDir, "expected.txt"))
	require.NoError(t, err)
	require.Equal(t, string(want), lines.String())

	fresh := encode(t, 10_000, goldenKeys())
	require.Equal(t, fresh.m.Identity, m.Identity)
	require.Equal(t, fresh.m.Checkpoint.Sources, m.Checkpoint.Sources)
	require.Equal(t, fresh.m.OperatorStates, m.OperatorStates)
	require.Equal(t, fresh.m.Ranges, m.Ranges)
	for i, ref := range m.Chunks { // Stored may change with the compressor, the content may not
		require.Equal(t, ref.ID, fresh.m.Chunks[i].ID)
	}
	chunks := map[Section]int{}
	for _, ref := range m.Chunks {
		chunks[ref.Section]++
	}
	require.Greater(t, chunks[SectionKeyed], 5)
	require.Greater(t, chunks[SectionOperator], 5)
	require.Len(t, chunks, 4)
}
