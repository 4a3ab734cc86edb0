package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHowCopiesAreReadAgain(t *testing.T) {
	for text, want := range map[string]CopyCheck{
		"":                    {Every: Duration(time.Hour), Rate: 16 << 20},
		"{every: 0s}":         {Every: 0, Rate: 16 << 20},
		"{every: 1m, rate: }": {Every: Duration(time.Minute), Rate: 16 << 20},
		"{rate: 0}":           {Every: Duration(time.Hour), Rate: 0},
		"{rate: 3MB}":         {Every: Duration(time.Hour), Rate: 3e6},
	} {
		f, err := Parse([]byte("store:\n  checkCopies: " + text))
		require.NoError(t, err, text)
		require.Equal(t, want, f.Store.CheckCopies, text)
	}
	for text, says := range map[string]string{
		"{every: 59s}": "store.checkCopies.every: 59s: give 0 for never, or at least 1m0s",
		"{every: -1h}": "store.checkCopies.every: -1h0m0s: give 0 for never",
		"{rate: 1}":    "store.checkCopies.rate: 1B: give 0 for no bound, or at least 64KiB",
		"{often: 1h}":  "known are every, rate",
	} {
		_, err := Parse([]byte("store:\n  checkCopies: " + text))
		require.ErrorContains(t, err, says, text)
	}
}
