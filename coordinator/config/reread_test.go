package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokensAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	one, two := strings.Repeat("1", 20), strings.Repeat("2", 20)
	api := API{TokenFile: put("default", one+"\n"), Tokens: []Token{{Name: "alice", Role: RoleViewer, File: put("alice", two)}, {Name: "bob", Role: RoleOperator, File: put("bob", strings.Repeat("3", 20))}}}
	keys, problems := api.Reread()
	require.Empty(t, problems)
	first, err := api.Keys()
	require.NoError(t, err)
	require.Equal(t, first, keys)

	put("default", two+"\n")                          // changed
	put("alice", two)                                 // has now the same secret as another
	require.NoError(t, os.Remove(api.Tokens[1].File)) // withdrawn
	keys, problems = api.Reread()
	require.Equal(t, []Key{{Name: DefaultToken, Role: RoleAdmin, Secret: two}}, keys)
	require.Len(t, problems, 2)
	require.Contains(t, problems[0], `token "alice" (api.tokens[0].file): it holds the same token as api.tokenFile`)
	require.Contains(t, problems[1], `token "bob" (api.tokens[1].file): can't be read`)
	for name, text := range map[string]string{"default": "", "alice": "short", "bob": "two\nlines of some length"} {
		put(name, text)
	}
	keys, problems = api.Reread()
	require.Empty(t, keys)
	require.Len(t, problems, 3)
	require.NotContains(t, strings.Join(problems, " "), "short of")
	require.NotContains(t, strings.Join(problems, " "), two)
}
