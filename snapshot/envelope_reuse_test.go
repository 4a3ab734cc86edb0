package snapshot

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A buffer that was made for one chunk takes the next one, which is a little
// larger: otherwise every walk would make a new one for nearly each chunk.
func TestABufferIsUsedAgainForASlightlyLargerChunk(t *testing.T) {
	var buf []byte
	for i := range 8 {
		raw := append([]byte{byte(SectionKeyed)}, bytes.Repeat([]byte("value "), 10_000+100*i)...)
		_, data, err := sealChunk(raw, nil)
		require.NoError(t, err)
		ref, got, err := OpenChunk(data, buf)
		require.NoError(t, err)
		require.EqualValues(t, len(raw), ref.Raw)
		require.Equal(t, raw, got)
		if i > 0 {
			require.Same(t, &buf[:1][0], &got[0], "chunk %d", i)
		}
		buf = got[:0]
	}
}
