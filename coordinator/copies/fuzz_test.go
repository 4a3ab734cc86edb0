package copies

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"keyframe/snapshot/archive"
)

// FuzzNames: a job's folder is one plain name whatever the job is called, and
// the id in a file's name is the one that it was made with.
func FuzzNames(f *testing.F) {
	f.Add("flights", "0000000007-0123456789abcdef"+archive.Suffix, uint64(7))
	f.Add("../../etc", "0000000000-0123456789abcdef"+archive.Suffix, uint64(0))
	f.Add(strings.Repeat("\x00/", 300), "18446744073709551616-0123456789abcdef"+archive.Suffix, uint64(1<<63))
	f.Add("..", "7", uint64(1))
	f.Fuzz(func(t *testing.T, job, name string, n uint64) {
		folder := plain(job) + "-00000000"
		require.Equal(t, folder, filepath.Base(folder))
		require.Equal(t, folder, filepath.Clean(folder))
		require.LessOrEqual(t, len(folder), mostName+12)
		require.False(t, strings.HasPrefix(folder, "."), "no hidden folder")
		if id, ok := idOf(name); ok {
			require.NotZero(t, id)
			require.True(t, strings.HasPrefix(strings.TrimLeft(name, "0"), id.String()+"-"), name)
		}
		id, ok := idOf(fmt.Sprintf("%010d-0123456789abcdef%s", n, archive.Suffix))
		require.Equal(t, n != 0, ok)
		require.EqualValues(t, n, id)
	})
}
