package config

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]Size{"": 0, "16GiB": 16 << 30, "2 mb": 2e6, "1001": 1001, "-1kB": -1000} {
		var s Size
		require.NoError(t, s.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, s, text)
	}
	s := Size(7)
	require.ErrorContains(t, s.UnmarshalText([]byte("99999999999GiB")), `size "99999999999GiB": want a whole number of bytes with a unit, such as 16GiB`)
	require.Equal(t, Size(7), s, "a text that is refused changes nothing")
	b, err := json.Marshal(Size(3 << 20))
	require.NoError(t, err)
	require.Equal(t, `"3MiB"`, string(b))
}

func TestTheLargestImportIsConfigured(t *testing.T) {
	f, err := Parse(nil)
	require.NoError(t, err)
	require.Equal(t, Size(16<<30), f.API.MaxImport)
	f, err = Parse([]byte("api: {maxImport: 300MB}\n"))
	require.NoError(t, err)
	require.Equal(t, Size(300e6), f.API.MaxImport)
	for _, bad := range []string{"0", "100kB", "-1GB"} {
		_, err = Parse([]byte("api: {maxImport: " + bad + "}\n"))
		require.ErrorContains(t, err, "api.maxImport: "+bad+": give at least 1MiB", bad)
	}
}
