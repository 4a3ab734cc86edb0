package config

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRatesAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]Rate{
		"": 0, "0": 0, "50MB": 50e6, "50 mb": 50e6, "64KiB": 64 << 10, "64kib": 64 << 10, "3kB": 3000, "1001": 1001, "7B": 7, "2GiB": 2 << 30, "2GB": 2e9, "-1MB": -1e6,
	} {
		var r Rate
		require.NoError(t, r.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, r, text)
	}
	for _, text := range []string{"MB", "fast", "1.5MB", "50MB/s", "99999999999GB", "-99999999999GB", "0x10"} {
		var r Rate
		require.ErrorContains(t, r.UnmarshalText([]byte(text)), "want a whole number of bytes per second", text)
	}
	var r Rate
	require.ErrorContains(t, json.Unmarshal([]byte(`50`), &r), "want a string")
}

func TestARateComesBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]int64{1, 1000, 1 << 10, 1e6, 1 << 20, 1e9}).Draw(t, "unit")
		want := Rate(rapid.Int64Range(-5000, 5000).Draw(t, "n") * unit)
		b, err := json.Marshal(want)
		require.NoError(t, err)
		var got Rate
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, want, got, string(b))
	})
}

func TestARateInYAML(t *testing.T) {
	for text, want := range map[string]Rate{"0": 0, "1048576": 1 << 20, "50MB": 50e6, "'1 MiB'": 1 << 20} {
		j, err := ParseJob([]byte("name: x\ncheckpoint: {maxReadRate: " + text + "}\n"))
		require.NoError(t, err, text)
		require.Equal(t, want, j.Checkpoint.MaxReadRate, text)
	}
	_, err := ParseJob([]byte("name: x\ncheckpoint: {maxReadRate: 5 apples}\n"))
	require.ErrorContains(t, err, "line 2: checkpoint.maxReadRate: rate \"5 apples\"")
}

func TestWhatIsLeftOutIsToldFromItsZero(t *testing.T) {
	for text, want := range map[string]struct {
		increments bool
		check      int
	}{
		"{}": {true, 100}, "{incremental: , selfCheckEvery: }": {true, 100},
		"{incremental: false, selfCheckEvery: 0}": {false, 0}, "{incremental: true, selfCheckEvery: 7}": {true, 7},
	} {
		j, err := ParseJob([]byte("name: x\ncheckpoint: " + text + "\n"))
		require.NoError(t, err, text)
		for range 2 {
			require.Equal(t, want.increments, j.Checkpoint.Increments(), text)
			require.Equal(t, want.check, j.Checkpoint.SelfCheck(), text)
			j = j.WithDefaults()
		}
		b, err := json.Marshal(j)
		require.NoError(t, err)
		again, err := ParseJob(b)
		require.NoError(t, err)
		require.Equal(t, j, again, "as the API and the journal keep it")
	}
	_, err := ParseJob([]byte("name: x\ncheckpoint: {incremental: perhaps, selfCheckEvery: 1.5}\n"))
	require.ErrorContains(t, err, "checkpoint.incremental: perhaps: want true or false")
	require.ErrorContains(t, err, "checkpoint.selfCheckEvery: 1.5: want a whole number")
}

func TestNullInJSONSaysNothing(t *testing.T) {
	var c Checkpoint
	c.MaxStall, c.MaxReadRate = Duration(50*time.Millisecond), 1<<20
	require.NoError(t, json.Unmarshal([]byte(`{"maxStall": null, "maxReadRate": null}`), &c))
	require.Equal(t, Duration(50*time.Millisecond), c.MaxStall)
	require.Equal(t, Rate(1<<20), c.MaxReadRate)
}
