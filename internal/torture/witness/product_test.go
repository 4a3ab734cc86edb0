package witness

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// byProduct is a State as the product's own reader gives the keys.
func byProduct(root string, keys []snapshot.RecordedKey) *State {
	s := &State{Keys: map[string]Entry{}, Registry: map[string]string{}, Others: map[string]string{}}
	for _, k := range keys {
		name, e := string(k.Key.Name), Entry{Type: k.Key.Type.String(), ExpireAt: k.Key.ExpireAt}
		if k.Key.Type == snapshot.TypeOpaque {
			e.Type = k.Key.TypeName
		}
		for _, el := range k.Elements {
			e.Elements = append(e.Elements, productText(k.Key.Type, el))
		}
		if e.Type != "list" {
			slices.Sort(e.Elements)
		}
		there := k.Key.Type != snapshot.TypeMissing && !k.End.Expired
		switch k.Key.Section {
		case snapshot.SectionKeyed, snapshot.SectionOperator:
			s.Names = append(s.Names, name)
			if there {
				s.Keys[name] = e
			}
		case snapshot.SectionMeta:
			tail := strings.TrimPrefix(name, root+":")
			switch {
			case !there:
			case tail == "stateSchema":
				for _, el := range k.Elements {
					s.Registry[string(el.Field)] = string(el.Value)
				}
			default:
				s.Others[tail] = e.Text()
			}
		}
	}
	slices.Sort(s.Names)
	return s
}

func productText(t snapshot.KeyType, e snapshot.RecordedElement) string {
	switch t {
	case snapshot.TypeHash:
		return HashText(string(e.Field), string(e.Value))
	case snapshot.TypeZSet:
		return ScoreText(e.Score, string(e.Value))
	}
	return StringText(string(e.Value))
}

// requireSame compares two states to the bit, also where Diff looks away.
func requireSame(t *testing.T, want, got *State) {
	t.Helper()
	require.Equal(t, want.Names, got.Names)
	require.Equal(t, len(want.Keys), len(got.Keys))
	for name, e := range want.Keys {
		require.Equal(t, e.Text(), got.Keys[name].Text(), "key %q", name)
	}
	require.Equal(t, want.Registry, got.Registry)
	require.Equal(t, want.Others, got.Others)
}

// golden reads the manifest and the chunks of a folder of golden files.
func golden(t *testing.T, dir string) ([]byte, map[string][]byte) {
	t.Helper()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	chunks := map[string][]byte{}
	var m []byte
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		if id, ok := strings.CutSuffix(f.Name(), ".chunk"); ok {
			chunks[id] = data
		} else if f.Name() == "manifest" {
			m = data
		}
	}
	return m, chunks
}

func getFrom(chunks map[string][]byte) chunkOf {
	return func(id string) ([]byte, error) {
		if data, ok := chunks[id]; ok {
			return data, nil
		}
		return nil, os.ErrNotExist
	}
}

// readGolden reads golden files with the witness. Their keys' names begin with
// "job:", whatever their manifest says.
func readGolden(m []byte, chunks map[string][]byte) (*State, error) {
	opened, err := openManifest(m)
	if err != nil {
		return nil, err
	}
	all, err := readSections(opened, getFrom(chunks))
	if err != nil {
		return nil, err
	}
	return opened.state(all, "job")
}

func TestTheWitnessReadsTheGoldenFilesAsTheProductDoes(t *testing.T) {
	for _, dir := range []string{"golden-1", "golden-2"} {
		t.Run(dir, func(t *testing.T) {
			m, chunks := golden(t, filepath.Join("../../../snapshot/testdata", dir))
			got, err := readGolden(m, chunks)
			require.NoError(t, err)
			var r snapshot.Recorder
			product := &snapshot.MemChunks{}
			for id, data := range chunks {
				known, err := snapshot.ParseChunkID(id)
				require.NoError(t, err)
				product.Put(known, data)
			}
			opened, err := snapshot.DecodeManifest(m)
			require.NoError(t, err)
			require.NoError(t, snapshot.Walk(t.Context(), product, opened, &r))
			requireSame(t, byProduct("job", r.Keys), got)
			require.GreaterOrEqual(t, len(got.Keys), 15)
			require.Contains(t, got.Names, "job:missing")
			require.NotContains(t, got.Keys, "job:expired while read")
			require.Contains(t, got.Keys["job:windowDue"].Elements, ScoreText(math.Copysign(0, -1), "member-6\x011\x012"))
		})
	}
}

// The archive of golden files holds the same checkpoint in another place.
func TestTheWitnessReadsWhatAnArchiveCarries(t *testing.T) {
	f, err := os.Open("../../../snapshot/archive/testdata/golden-1.kfa")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	info, err := f.Stat()
	require.NoError(t, err)
	a, err := archive.NewFile(f, info.Size(), f.Name())
	require.NoError(t, err)
	m, chunks := golden(t, "../../../snapshot/testdata/golden-2")
	want, err := readGolden(m, chunks)
	require.NoError(t, err)
	for id := range chunks {
		known, err := snapshot.ParseChunkID(id)
		require.NoError(t, err)
		chunks[id], err = a.Chunk(t.Context(), known)
		require.NoError(t, err)
	}
	got, err := readGolden(m, chunks)
	require.NoError(t, err)
	requireSame(t, want, got)
}

func TestAnyChangedByteOfGoldenFilesIsNoticed(t *testing.T) {
	m, chunks := golden(t, "../../../snapshot/testdata/golden-2")
	for at := range m {
		m[at] ^= 1
		_, err := openManifest(m)
		require.Error(t, err, "byte %d of the manifest", at)
		m[at] ^= 1
	}
	opened, err := openManifest(m)
	require.NoError(t, err)
	refs := opened.Chunks
	for _, l := range opened.Layers {
		refs = append(refs, l.Chunks...)
	}
	for _, ref := range refs {
		data := chunks[ref.ID]
		_, _, err := unpack(data, ref)
		require.NoError(t, err)
		for at := 0; at < len(data); at += 1 + at/64 {
			data[at] ^= 0x10
			_, _, err := unpack(data, ref)
			require.Error(t, err, "byte %d of chunk %s", at, ref.ID)
			data[at] ^= 0x10
		}
		require.Error(t, func() error { _, _, err := unpack(data[:len(data)-1], ref); return err }())
	}
}
