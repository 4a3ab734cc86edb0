package witness

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTheHashIsXXHash64(t *testing.T) {
	require.Equal(t, uint64(0xef46db3751d8e999), xxhash64(nil), "the specification's vector")
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		require.Equal(t, xxhash.Sum64(b), xxhash64(b))
	})
}

// TestTheWitnessImportsNothingOfTheProduct keeps a mistake from being made on
// both sides.
func TestTheWitnessImportsNothingOfTheProduct(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "go.etcd.io/bbolt")
	for _, dep := range deps {
		if dep != "keyframe/internal/torture/witness" {
			require.False(t, dep == "keyframe" || strings.HasPrefix(dep, "keyframe/"), dep)
		}
	}
	direct, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, ".").Output()
	require.NoError(t, err)
	for _, name := range strings.Fields(string(direct)) {
		first, _, _ := strings.Cut(name, "/")
		if strings.Contains(first, ".") {
			require.Contains(t, []string{"github.com/redis/go-redis/v9", "go.etcd.io/bbolt", "github.com/klauspost/compress/zstd"}, name)
		}
	}
}
