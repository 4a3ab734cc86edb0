package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompactAbove(t *testing.T) {
	for text, want := range map[string]float64{
		"": 2, "store: {}": 2, "store: {compactAbove: }": 2, "store: {compactAbove: 0}": 0, "store: {compactAbove: 0.0}": 0,
		"store: {compactAbove: 3}": 3, "store: {compactAbove: 1.5}": 1.5, "store: {path: x.db, compactAbove: 2.75}": 2.75,
	} {
		f, err := Parse([]byte(text))
		require.NoError(t, err, text)
		require.InDelta(t, want, f.Store.CompactAbove, 0, text)
	}
	for text, says := range map[string]string{
		"1":         "store.compactAbove: 1: give 0 for never, or a ratio of at least 1.5, such as 2.0",
		"1.49":      "store.compactAbove: 1.49: give 0",
		"-2":        "store.compactAbove: -2: give 0",
		`"2.0"`:     "store.compactAbove: 2.0: want a number such as 2.0",
		"true":      "want a number",
		"[2]":       "want a number",
		"{x: 2}":    "want a number",
		".inf":      "want a number",
		".nan":      "want a number",
		"1e400":     "compactAbove",
		"2 percent": "want a number",
	} {
		_, err := Parse([]byte("store:\n  compactAbove: " + text))
		require.ErrorContains(t, err, "line 2: ", text)
		require.ErrorContains(t, err, says, text)
	}
	_, err := Parse([]byte("store: {compactAbov: 2}"))
	require.ErrorContains(t, err, "unknown field; known are path, compactAbove, onDamage, copies, checkCopies")
	f, err := Parse([]byte("store: {onDamage: refuse}"))
	require.NoError(t, err)
	require.Equal(t, DamageRefuse, f.Store.OnDamage)
	_, err = Parse([]byte("store: {onDamage: ignore}"))
	require.ErrorContains(t, err, "store.onDamage: \"ignore\": want one of salvage, refuse")
}

func TestCopiesAreDirectoriesEachNamedOnce(t *testing.T) {
	f, err := Parse([]byte("store: {path: a.db, copies: [{path: /mnt/b/}, {path: c}]}"))
	require.NoError(t, err)
	require.Equal(t, []string{"/mnt/b", "c"}, f.Store.CopyPaths())
	f, err = Parse([]byte("store: {copies: []}"))
	require.NoError(t, err)
	require.Empty(t, f.Store.CopyPaths())
	for text, says := range map[string]string{
		"[{path: ''}]":                   `store.copies[0].path: "": give a directory that exists`,
		"[{path: /a}, {path: /b/../a/}]": "store.copies[1].path: \"/b/../a/\": is the directory of store.copies[0] too",
		"[/mnt/b]":                       "store.copies[0]: want fields with values",
		"/mnt/b":                         "store.copies: want a list",
		"[{}]":                           "store.copies[0].path",
	} {
		_, err := Parse([]byte("store:\n  copies: " + text))
		require.ErrorContains(t, err, says, text)
	}
}
