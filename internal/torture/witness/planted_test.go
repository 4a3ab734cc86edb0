package witness

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"keyframe/coordinator"
)

// Each test of this file plants what an invariant forbids, on a real server or
// in a real store file, and demands that it is found; and that nothing is
// where nothing was planted.

// requireFound demands findings of one invariant, all of whose texts hold text.
func requireFound(t *testing.T, invariant, text string, f []Finding) {
	t.Helper()
	require.NotEmpty(t, f, "%s %s", invariant, text)
	for _, one := range f {
		require.Equal(t, invariant, one.Invariant, one.String())
		require.Contains(t, one.String(), invariant+": ")
	}
	require.Contains(t, f[0].Text, text)
}

// damaged is a copy of the rig's store file that change has altered.
func damaged(t *testing.T, path string, change func(file string)) *Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "damaged.db")
	require.NoError(t, copyQuiet(path, file))
	change(file)
	s, err := OpenStore(file, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// edit changes a store file by bbolt.
func edit(t *testing.T, fn func(tx *bbolt.Tx) error) func(file string) {
	return func(file string) {
		db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Second})
		require.NoError(t, err)
		require.NoError(t, db.Update(fn))
		require.NoError(t, db.Close())
	}
}

func jobBucket(tx *bbolt.Tx, name string) *bbolt.Bucket {
	return tx.Bucket([]byte("jobs")).Bucket([]byte("witnessed")).Bucket([]byte(name))
}

func TestI1PlantedDamageOfAStoreIsFound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	id := binary.BigEndian.AppendUint64(nil, uint64(r.checkpoint().ID))
	check := func(s *Store) []Finding {
		_, f, err := CheckReadable(s, r.spec.Name, 0)
		require.NoError(t, err)
		return f
	}
	require.Empty(t, check(damaged(t, r.path, func(string) {})))

	requireFound(t, "I1", "CRC-32C", check(damaged(t, r.path, func(file string) {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		at := bytes.Index(b, []byte("KFCK\x02"))
		require.Positive(t, at)
		b[at+50] ^= 1
		require.NoError(t, os.WriteFile(file, b, 0o600))
	})))
	for text, change := range map[string]func(tx *bbolt.Tx) error{
		"there is a manifest: false": func(tx *bbolt.Tx) error { return jobBucket(tx, "manifests").Delete(id) },
		"its SHA-256 is": func(tx *bbolt.Tx) error {
			m := bytes.Clone(jobBucket(tx, "manifests").Get(id))
			m[len(m)-2] ^= 1
			return jobBucket(tx, "manifests").Put(id, m)
		},
		"its entry in the index is": func(tx *bbolt.Tx) error {
			key, _ := tx.Bucket([]byte("index")).Cursor().First()
			return tx.Bucket([]byte("index")).Delete(key)
		},
		"0 references": func(tx *bbolt.Tx) error {
			key, value := tx.Bucket([]byte("index")).Cursor().First()
			return tx.Bucket([]byte("index")).Put(key, append(bytes.Clone(value[:8]), 0, 0, 0, 0, value[12], value[13], value[14], value[15]))
		},
		"manifest and row differ": func(tx *bbolt.Tx) error {
			row := bytes.Replace(jobBucket(tx, "rows").Get(id), []byte(`"keys":`), []byte(`"keys":1`), 1)
			return jobBucket(tx, "rows").Put(id, row)
		},
	} {
		f := check(damaged(t, r.path, edit(t, change)))
		require.NotEmpty(t, f, text)
		requireFound(t, "I1", text, f)
	}
}

func TestI1ACompletedCheckpointStaysWhatItWas(t *testing.T) {
	row := func(change func(*Checkpoint)) []Checkpoint {
		c := Checkpoint{ID: 3, State: "completed", Keys: 130, Elements: 900, Epoch: 2}
		change(&c)
		return []Checkpoint{c}
	}
	same := func(*Checkpoint) {}
	j := NewJournal()
	require.Empty(t, j.Listed(row(same), 3))
	require.Empty(t, j.Listed(row(func(c *Checkpoint) { c.Pinned, c.Layers, c.FullBytes = true, 4, 99 }), 3), "marks and merged layers")
	requireFound(t, "I1", "is now failed", j.Listed(row(func(c *Checkpoint) { c.State = "failed" }), 3))
	requireFound(t, "I1", "had failed", j.Listed(row(same), 3))
	requireFound(t, "I1", "had 130 keys", j.Listed(row(func(c *Checkpoint) { c.Keys = 131 }), 3))
	require.Len(t, j.Findings(), 3)
}

func TestI3PlantedDifferencesAfterARestoreAreFound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	cp := r.checkpoint()
	r.client.SRem(t.Context(), r.job.Index(), r.name("set", 5)) // foreign for now, and the job's again
	want, before := r.stored(uint64(cp.ID)), r.look()
	r.client.Del(t.Context(), r.name("largeset", 2))
	r.done(r.c.Restore(t.Context(), r.spec.Name, coordinator.RestoreRequest{Checkpoint: cp.ID.String(), NoUndo: true}))
	check := func() []Finding {
		return CheckRestore(r.job.Root(), want, before, r.look(), func(key string) bool { return key == "a log" }, r.now())
	}
	require.Empty(t, check())
	r.pipe([][]any{{"XADD", "a log", "8-1", "k", "v"}}) // a source
	require.Empty(t, check())
	ctx, c := t.Context(), r.client
	for text, plant := range map[string]struct{ do, undo []any }{
		"schema of":               {[]any{"HSET", r.job.Registry(), "k", "v"}, []any{"HDEL", r.job.Registry(), "k"}},
		"a new field":             {[]any{"HSET", r.name("hash", 4), "a new field", "v"}, []any{"HDEL", r.name("hash", 4), "a new field"}},
		"only in the second 1":    {[]any{"ZADD", r.name("largezset", 1), "1", "minus zero"}, []any{"ZADD", r.name("largezset", 1), "-0", "minus zero"}},
		"expires at 410244480012": {[]any{"PEXPIREAT", r.name("string", 8), 4_102_444_800_124}, []any{"PEXPIREAT", r.name("string", 8), 4_102_444_800_123}},
		"only the second's index": {[]any{"SADD", r.job.Index(), r.name("later", 1)}, []any{"SREM", r.job.Index(), r.name("later", 1)}},
		"only the first's index":  {[]any{"SREM", r.job.Index(), r.name("nothing", 10)}, []any{"SADD", r.job.Index(), r.name("nothing", 10)}},
		`key "elsewhere"`:         {[]any{"SET", "elsewhere", "touched"}, []any{"SET", "elsewhere", "foreign"}},
		`key "new"`:               {[]any{"SET", "new", "x"}, []any{"DEL", "new"}},
		"item 1499":               {[]any{"LSET", r.name("largelist", 3), -1, "other"}, []any{"LSET", r.name("largelist", 3), -1, "item 1"}},
		"operatorState":           {[]any{"HSET", r.job.OperatorStates(), "a\x01b", "{}"}, []any{"HDEL", r.job.OperatorStates(), "a\x01b"}},
		"a set of":                {[]any{"RENAME", r.name("set", 5), r.name("hidden", 5)}, []any{"RENAME", r.name("hidden", 5), r.name("set", 5)}},
	} {
		require.NoError(t, c.Do(ctx, plant.do...).Err())
		requireFound(t, "I3", text, check())
		require.NoError(t, c.Do(ctx, plant.undo...).Err())
		require.Empty(t, check(), text)
	}
}

func TestI9WhatACheckpointMayNotChangeIsFound(t *testing.T) {
	r := newRig(t)
	r.populate()
	r.apply()
	r.checkpoint()
	before := r.look()
	r.checkpoint()
	require.Empty(t, CheckUntouched(before, r.look(), r.now()))
	ctx, c := t.Context(), r.client
	for text, plant := range map[string]struct{ do, undo []any }{
		"expires at 0":            {[]any{"PERSIST", r.name("string", 8)}, []any{"PEXPIREAT", r.name("string", 8), 4_102_444_800_123}},
		"only the first's index":  {[]any{"SREM", r.job.Index(), r.name("nothing", 10)}, []any{"SADD", r.job.Index(), r.name("nothing", 10)}},
		`foreign key "elsewhere"`: {[]any{"SET", "elsewhere", "touched"}, []any{"SET", "elsewhere", "foreign"}},
		`"epoch"`:                 {[]any{"HSET", r.job.Record(), "epoch", "7"}, []any{"HSET", r.job.Record(), "epoch", "1"}},
		"4 | 5 elements":          {[]any{"HSET", r.name("hash", 4), "x", "y"}, []any{"HDEL", r.name("hash", 4), "x"}},
	} {
		require.NoError(t, c.Do(ctx, plant.do...).Err())
		requireFound(t, "I9", text, CheckUntouched(before, r.look(), r.now()))
		require.NoError(t, c.Do(ctx, plant.undo...).Err())
		require.Empty(t, CheckUntouched(before, r.look(), r.now()), text)
	}
}
