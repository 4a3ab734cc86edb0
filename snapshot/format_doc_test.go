package snapshot

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The document's example and its tables of numbers are held to the code.
func TestFormatDocument(t *testing.T) {
	b, err := os.ReadFile("FORMAT.md")
	require.NoError(t, err)
	doc := string(b)

	k := key(SectionKeyed, TypeZSet, "job:due", element("", "m1", 1.5))
	k.Key.ExpireAt = 1893456000123
	s := encode(t, 0, []RecordedKey{k})
	require.Len(t, s.m.Chunks, 1)
	data, err := s.Chunk(ctx, s.m.Chunks[0].ID)
	require.NoError(t, err)
	_, raw, err := OpenChunk(data, nil)
	require.NoError(t, err)
	require.Contains(t, doc, strings.TrimSpace(hex.Dump(data)), "the example's envelope:\n"+hex.Dump(data))
	require.Contains(t, doc, "`"+s.m.Chunks[0].ID.String()+"`")
	require.EqualValues(t, codecRaw, data[5], "so that the example shows the frames")
	require.Equal(t, raw, data[headerSize:len(data)-trailerSize])

	for name, n := range map[string]int{
		"MaxName": MaxName, "MaxPart": MaxPart, "MaxChunk": MaxChunk, "MaxManifest": MaxManifest,
		"type name, server version": maxLabel, "DefaultChunkTarget": DefaultChunkTarget,
		"MaxChunkTarget": MaxChunkTarget, "maxMember": maxMember,
	} {
		require.Regexp(t, fmt.Sprintf(`\| %s \| %d \|`, name, n), doc)
	}
	for kind, name := range map[byte]string{frameKey: "key", frameResume: "resume", frameElement: "element",
		frameLong: "long element", framePart: "part", frameEnd: "end"} {
		require.Contains(t, doc, fmt.Sprintf("| %d | %s |", kind, name))
	}
	for kind, name := range map[byte]string{framePatch: "patch", frameGone: "gone", frameRemoved: "removed",
		frameLoose: "loose key", frameSalt: "salt"} {
		require.Contains(t, doc, fmt.Sprintf("| %d | %s *(2)* |", kind, name))
	}
	require.Contains(t, doc, fmt.Sprintf("At most %d layers", MaxLayers))
	for kt := TypeMissing; kt.Valid(); kt++ {
		require.Contains(t, doc, fmt.Sprintf("| %d | %s |", kt, kt))
	}
	for sec := SectionKeyed; sec.Valid(); sec++ {
		require.Contains(t, doc, fmt.Sprintf("| %d | %s |", sec, sec))
	}
	require.Contains(t, doc, "`"+chunkMagic+"`")
	require.Contains(t, doc, "`"+manifestMagic+"`")
}
