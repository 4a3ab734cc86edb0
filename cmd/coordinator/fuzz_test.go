package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// FuzzArguments: a command line is put in order without a word lost or made,
// and in order it stays; what follows -- is never a flag.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"job show flights -o json", "restore -- -x --dry-run", "-o=json job list", "checkpoint create flights --name -5", "- -- -", "rescale flights 3 --broadcast a/b=0 --yes", "-", "--", "audit list --limit"} {
		f.Add(s, "filter/rules=0")
	}
	f.Add("x", "a=b/c=07")
	f.Add("x", "/=-1")
	app := (&shell{}).app(&bytes.Buffer{}, &bytes.Buffer{}).cli()
	f.Fuzz(func(t *testing.T, line, choice string) {
		args := append([]string{"coordinator"}, strings.Fields(line)...)
		given := slices.Clone(args)
		out := arrange(app, args)
		require.Equal(t, given, args, "what is given stays as it is")
		// Before its command a flag may be taken for another one of that name.
		once := arrange(app, out)
		require.Equal(t, once, arrange(app, once), "in order it stays")
		if len(out) < len(without(given, "--")) {
			last := given[len(given)-1]
			require.True(t, isFlag(last) && out[len(out)-1] == last, "words are left out only before a flag without its value, which is an error")
			return
		}
		require.ElementsMatch(t, without(given, "--"), without(out, "--"))
		if i := slices.Index(given, "--"); i >= 0 {
			for _, rest := range given[i+1:] {
				at := slices.Index(out, "--")
				require.GreaterOrEqual(t, at, 0)
				require.Contains(t, out[at+1:], rest)
			}
		}
		_ = wantsJSON(out) // must not panic
		choices, err := broadcastChoices([]string{choice})
		if err != nil {
			require.Equal(t, fault.Usage, fault.CodeOf(err))
			return
		}
		for state, n := range choices {
			require.Contains(t, state, "/")
			require.GreaterOrEqual(t, n, 0)
		}
	})
}

// A flag at the end that lacks its value took the "--" that is put before the
// arguments for it: restore flights --as went on, into a job named --.
func TestAFlagWithoutItsValueTakesNoArgumentForIt(t *testing.T) {
	app := (&shell{t: t}).app(&bytes.Buffer{}, &bytes.Buffer{}).cli()
	require.Equal(t, []string{"coordinator", "restore", "--yes", "--as"}, arrange(app, strings.Fields("coordinator restore flights --yes --as")))
	r := (&shell{t: t}).run("restore", "flights", "--as")
	require.Equal(t, 2, r.code, r.err)
	require.Contains(t, r.err, "flag needs an argument")
}
