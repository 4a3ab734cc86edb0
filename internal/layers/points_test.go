package layers

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/crashpoint"
)

// TestEveryCrashPointIsInTheTable holds ARCHITECTURE.md's table of crashes to
// the points at which the tests die, both ways.
func TestEveryCrashPointIsInTheTable(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "ARCHITECTURE.md"), "\n## Killed here")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z]+(?:-[a-z]+)+)`").FindAllStringSubmatch(section, -1) {
		require.False(t, named[m[1]], "%s is named twice", m[1])
		named[m[1]] = true
	}
	known := map[crashpoint.Name]bool{}
	for _, p := range crashpoint.Points {
		require.False(t, known[p.Name], "%s is in the list twice", p.Name)
		require.NotEmpty(t, p.Left, p.Name)
		known[p.Name] = true
		require.True(t, named[string(p.Name)], "ARCHITECTURE.md doesn't say what a crash at %s leaves", p.Name)
		delete(named, string(p.Name))
	}
	require.Empty(t, named, "no such points")
}
