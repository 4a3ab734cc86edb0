package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyframe/snapshot"
)

// OpenJournal is Open for a journal.
type OpenJournal func(t testing.TB) (journal snapshot.Journal, reopen func() snapshot.Journal)

// RunJournal holds a journal against its contract.
func RunJournal(t *testing.T, open OpenJournal) {
	tests := map[string]func(*testing.T, snapshot.Journal, func() snapshot.Journal){
		"WhatIsPutIsThere":           journalPut,
		"BucketsDoNotTouchEachOther": journalBuckets,
		"ValuesAreCopies":            journalCopies,
		"EachGoesOverACopyInOrder":   journalEach,
		"NamesAndContextsAreChecked": journalRefuses,
		"ManyAtOnce":                 journalMany,
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			j, reopen := open(t)
			run(t, j, reopen)
		})
	}
}

func get(t *testing.T, j snapshot.Journal, bucket, key string) (string, bool) {
	t.Helper()
	v, ok, err := j.Get(context.Background(), bucket, key)
	require.NoError(t, err)
	if !ok {
		require.Nil(t, v)
	}
	return string(v), ok
}

func journalPut(t *testing.T, j snapshot.Journal, reopen func() snapshot.Journal) {
	ctx := context.Background()
	_, ok := get(t, j, "jobs", "flights")
	require.False(t, ok)
	require.NoError(t, j.Delete(ctx, "jobs", "flights"), "of what isn't there")
	values := map[string]string{"flights": `{"parallelism":2}`, "empty": "", "\xff\x00": "\x00\xfe", "long": strings.Repeat("0123456789", 30_000)}
	for key, value := range values {
		require.NoError(t, j.Put(ctx, "jobs", key, []byte("before")))
		require.NoError(t, j.Put(ctx, "jobs", key, []byte(value)))
	}
	require.NoError(t, j.Put(ctx, "jobs", "gone", []byte("x")))
	require.NoError(t, j.Delete(ctx, "jobs", "gone"))
	for range 2 {
		for key, value := range values {
			got, ok := get(t, j, "jobs", key)
			require.True(t, ok, "key %q", key)
			require.Equal(t, value, got)
		}
		_, ok := get(t, j, "jobs", "gone")
		require.False(t, ok)
		j = reopen()
	}
}

func journalBuckets(t *testing.T, j snapshot.Journal, reopen func() snapshot.Journal) {
	ctx := context.Background()
	require.NoError(t, j.Put(ctx, "a", "b:c", []byte("one")))
	require.NoError(t, j.Put(ctx, "a:b", "c", []byte("two")))
	require.NoError(t, j.Put(ctx, "ab", "b:c", []byte("three")))
	require.NoError(t, j.Delete(ctx, "ab", "b:c"))
	j = reopen()
	one, _ := get(t, j, "a", "b:c")
	two, _ := get(t, j, "a:b", "c")
	_, ok := get(t, j, "ab", "b:c")
	require.Equal(t, []any{"one", "two", false}, []any{one, two, ok})
}

func journalCopies(t *testing.T, j snapshot.Journal, _ func() snapshot.Journal) {
	ctx := context.Background()
	mine := []byte("value")
	require.NoError(t, j.Put(ctx, "jobs", "key", mine))
	mine[0] = 'X'
	got, _, err := j.Get(ctx, "jobs", "key")
	require.NoError(t, err)
	require.Equal(t, "value", string(got))
	got[1] = 'Y'
	require.NoError(t, j.Each(ctx, "jobs", func(_ string, v []byte) error { v[2] = 'Z'; return nil }))
	again, _ := get(t, j, "jobs", "key")
	require.Equal(t, "value", again)
}

func journalEach(t *testing.T, j snapshot.Journal, _ func() snapshot.Journal) {
	ctx := context.Background()
	require.NoError(t, j.Each(ctx, "none", func(string, []byte) error { return errors.New("there is nothing") }))
	var want []string
	for i := range 300 {
		key := fmt.Sprintf("%03d", i)
		want = append(want, key+"="+key+"v")
		require.NoError(t, j.Put(ctx, "plans", fmt.Sprintf("%03d", (i*7)%300), fmt.Appendf(nil, "%03dv", (i*7)%300)))
	}
	var got []string
	require.NoError(t, j.Each(ctx, "plans", func(key string, value []byte) error {
		got = append(got, key+"="+string(value))
		// The one just seen goes, and one that would come next appears.
		if err := j.Delete(ctx, "plans", key); err != nil {
			return err
		}
		return j.Put(ctx, "plans", key+"x", value)
	}))
	require.Equal(t, want, got)
	stop := errors.New("stop here")
	calls := 0
	require.ErrorIs(t, j.Each(ctx, "plans", func(string, []byte) error { calls++; return stop }), stop)
	require.Equal(t, 1, calls)
}

func journalRefuses(t *testing.T, j snapshot.Journal, _ func() snapshot.Journal) {
	ctx, cancel := context.WithCancel(context.Background())
	require.Error(t, j.Put(ctx, "", "key", []byte("v")))
	require.Error(t, j.Put(ctx, "jobs", "", []byte("v")))
	err := j.Put(ctx, "jobs", strings.Repeat("k", 40_000), []byte("v"))
	require.ErrorContains(t, err, "40000 bytes")
	cancel()
	require.ErrorIs(t, j.Put(ctx, "jobs", "key", []byte("v")), context.Canceled)
	require.ErrorIs(t, j.Delete(ctx, "jobs", "key"), context.Canceled)
	_, _, err = j.Get(ctx, "jobs", "key")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, j.Each(ctx, "jobs", func(string, []byte) error { return nil }), context.Canceled)
}

func journalMany(t *testing.T, j snapshot.Journal, reopen func() snapshot.Journal) {
	ctx := context.Background()
	var g errgroup.Group
	for w := range 4 {
		g.Go(func() error {
			for i := range 10 {
				key := fmt.Sprintf("%d-%d", w, i)
				if err := j.Put(ctx, "many", key, []byte("of "+key)); err != nil {
					return err
				}
				v, ok, err := j.Get(ctx, "many", key)
				if err != nil || !ok || string(v) != "of "+key {
					return fmt.Errorf("key %s: %q, %t: %w", key, v, ok, errors.Join(err, errors.New("not what was put")))
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	n := 0
	require.NoError(t, reopen().Each(ctx, "many", func(key string, v []byte) error {
		n++
		require.Equal(t, "of "+key, string(v))
		return nil
	}))
	require.Equal(t, 40, n)
}
