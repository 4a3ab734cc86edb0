package config

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
)

func sized(id snapshot.ID, keys, elements uint64) snapshot.Checkpoint {
	return snapshot.Checkpoint{ID: id, Keys: keys, Elements: elements}
}

func TestAShrinkIsFlaggedFromItsShareOn(t *testing.T) {
	off, tenth, all := 0.0, 0.1, 1.0
	for _, c := range []struct {
		name          string
		limits        Shrink
		before, after snapshot.Checkpoint
		flagged       bool
	}{
		{"half of the elements", Shrink{}, sized(4, 10, 1000), sized(5, 10, 500), true},
		{"less than half", Shrink{}, sized(4, 10, 1000), sized(5, 10, 501), false},
		{"half of the keys", Shrink{}, sized(4, 200, 90), sized(5, 100, 90), true},
		{"growth", Shrink{}, sized(4, 200, 1000), sized(5, 300, 5000), false},
		{"the same", Shrink{}, sized(4, 200, 1000), sized(5, 200, 1000), false},
		{"a small state", Shrink{}, sized(4, 99, 99), sized(5, 0, 0), false},
		{"just large enough", Shrink{}, sized(4, 1, 100), sized(5, 0, 0), true},
		{"few keys, many elements: keys say nothing", Shrink{}, sized(4, 16, 100000), sized(5, 1, 90000), false},
		{"off for both", Shrink{Keys: &off, Elements: &off}, sized(4, 1000, 1000), sized(5, 0, 0), false},
		{"off for elements only", Shrink{Elements: &off}, sized(4, 1000, 1000), sized(5, 1000, 0), false},
		{"a tenth", Shrink{Elements: &tenth}, sized(4, 10, 1000), sized(5, 10, 900), true},
		{"only when all is gone", Shrink{Keys: &all, Elements: &all}, sized(4, 1000, 1000), sized(5, 1, 1), false},
		{"all is gone", Shrink{Keys: &all, Elements: &all}, sized(4, 1000, 1000), sized(5, 0, 1), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.limits.Flag(c.before, c.after)
			if !c.flagged {
				require.Nil(t, got)
				return
			}
			require.Equal(t, &snapshot.Shrunk{Base: 4, KeysBefore: c.before.Keys, KeysAfter: c.after.Keys,
				ElementsBefore: c.before.Elements, ElementsAfter: c.after.Elements}, got)
		})
	}
}

func TestLessThanAFlaggedCheckpointIsFlaggedToo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(0, 1).Draw(t, "share")
		limits := Shrink{Keys: &share, Elements: &share}
		before := sized(1, rapid.Uint64Range(0, 5000).Draw(t, "keys"), rapid.Uint64Range(0, math.MaxUint64).Draw(t, "elements"))
		after := sized(2, rapid.Uint64Range(0, 5000).Draw(t, "keys after"), rapid.Uint64Range(0, math.MaxUint64).Draw(t, "elements after"))
		less := sized(3, after.Keys/2, after.Elements/2)
		if limits.Flag(before, after) != nil {
			require.NotNil(t, limits.Flag(before, less))
		}
	})
}

func TestSharesOfAShrink(t *testing.T) {
	f, err := Parse([]byte("jobs:\n  - {name: a}\n  - {name: b, checkpoint: {shrink: {keys: 0, elements: 0.25}}}\n  - {name: c, checkpoint: {shrink: {elements: 1}}}"))
	require.NoError(t, err)
	for i, want := range [][2]float64{{0.5, 0.5}, {0, 0.25}, {0.5, 1}} {
		s := f.Jobs[i].Checkpoint.Shrink
		require.Equal(t, want, [2]float64{*s.Keys, *s.Elements}, f.Jobs[i].Name)
		require.Equal(t, f.Jobs[i], f.Jobs[i].WithDefaults(), "0 is kept")
	}
	for text, says := range map[string]string{
		"{keys: 1.01}":      "checkpoint.shrink.keys: 1.01: give the share whose loss flags a checkpoint, such as 0.5 for half",
		"{elements: -0.1}":  "checkpoint.shrink.elements: -0.1: give the share",
		"{elements: .nan}":  "want a number",
		"{keys: half}":      "want a number",
		"0.5":               "checkpoint.shrink",
		"{keys: 50}":        "checkpoint.shrink.keys: 50: give the share",
		"{element: 0.5}":    "unknown field",
		"{keys: [0.5, .1]}": "checkpoint.shrink.keys",
	} {
		_, err := Parse([]byte("jobs:\n  - name: a\n    checkpoint: {shrink: " + text + "}"))
		require.ErrorContains(t, err, says, text)
	}
	nan := math.NaN()
	require.Error(t, Job{Name: "a", Checkpoint: Checkpoint{Shrink: Shrink{Keys: &nan}}}.WithDefaults().Validate())
}
