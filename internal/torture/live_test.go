package torture

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

// patient is a client that waits as long as a pause or a large reply lasts.
func patient(s *redistest.Server) *redis.Client {
	return s.Client().WithTimeout(5 * time.Minute)
}

// live is everything on a server, read while nobody writes.
type live struct {
	content                   // of the job
	others  map[string]string // digest and expiry of keys that don't belong to the job's state
	staged  []string          // keys that a restore has left behind
	record  map[string]string
	now     int64 // the server's clock, ms, after the last read
}

// readLive reads a whole server with commands of its own.
func readLive(t *testing.T, c *redis.Client, job statebackend.Job) live {
	t.Helper()
	ctx := t.Context()
	names := allKeys(t, c)
	l := live{content: content{keys: map[string]entry{}}}
	var err error
	l.index, err = c.SMembers(ctx, job.Index()).Result()
	require.NoError(t, err)
	sort.Strings(l.index)
	l.schema, err = c.HGetAll(ctx, job.Registry()).Result()
	require.NoError(t, err)
	l.modes, err = c.HGetAll(ctx, job.OperatorStates()).Result()
	require.NoError(t, err)
	l.record, err = c.HGetAll(ctx, job.Record()).Result()
	require.NoError(t, err)
	if text := l.record["epoch"]; text != "" {
		l.epoch, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	ours := map[string]bool{job.Index(): true, job.Registry(): true, job.OperatorStates(): true, job.Record(): true, job.Assignment(): true, job.Lease(): true}
	indexed := map[string]bool{}
	for _, name := range l.index {
		indexed[name] = true
	}
	var state, foreign []string
	for _, name := range names {
		switch {
		case ours[name]:
		case strings.Contains(name, ":coordinator:stage:"):
			l.staged = append(l.staged, name)
		case indexed[name]:
			state = append(state, name)
		default:
			foreign = append(foreign, name)
		}
	}
	l.keys = readKeys(t, c, state)
	l.others = digests(t, c, foreign)
	at, err := c.Time(ctx).Result()
	require.NoError(t, err)
	l.now = at.UnixMilli()
	return l
}

func allKeys(t *testing.T, c *redis.Client) []string {
	t.Helper()
	var all []string
	seen := map[string]bool{}
	it := c.Scan(t.Context(), 0, "", 2000).Iterator()
	for it.Next(t.Context()) {
		if !seen[it.Val()] {
			seen[it.Val()] = true
			all = append(all, it.Val())
		}
	}
	require.NoError(t, it.Err())
	sort.Strings(all)
	return all
}

// digests are the server's own digest and the exact expiry of each key, by
// name. A key that expires before both are read is left out.
func digests(t *testing.T, c *redis.Client, names []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	if len(names) == 0 {
		return out
	}
	pipe := c.Pipeline()
	sums, expiries := make([]*redis.Cmd, len(names)), make([]*redis.Cmd, len(names))
	for i, name := range names {
		sums[i] = pipe.Do(t.Context(), "DEBUG", "DIGEST-VALUE", name)
		expiries[i] = pipe.Do(t.Context(), "PEXPIRETIME", name)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	for i, name := range names {
		sum, err := sums[i].Slice()
		require.NoError(t, err)
		at, err := expiries[i].Int64()
		require.NoError(t, err)
		if at != -2 {
			out[name] = fmt.Sprintf("%v expires %d", sum[0], at)
		}
	}
	return out
}

// readKeys reads keys by elements. A key that expires between two reads is
// left out, as one that expired before.
func readKeys(t *testing.T, c *redis.Client, names []string) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	for len(names) > 0 {
		n := min(len(names), 500)
		readPage(t, c, names[:n], out)
		names = names[n:]
	}
	return out
}

func readPage(t *testing.T, c *redis.Client, names []string, out map[string]entry) {
	t.Helper()
	ctx := t.Context()
	pipe := c.Pipeline()
	types, expiries := make([]*redis.StatusCmd, len(names)), make([]*redis.Cmd, len(names))
	for i, name := range names {
		types[i] = pipe.Type(ctx, name)
		expiries[i] = pipe.Do(ctx, "PEXPIRETIME", name)
	}
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	reads := make([]func() []string, len(names))
	pipe = c.Pipeline()
	for i, name := range names {
		reads[i] = read(ctx, pipe, types[i].Val(), name)
	}
	_, err = pipe.Exec(ctx)
	if err != nil {
		require.ErrorIs(t, err, redis.Nil) // a string that expired meanwhile
	}
	for i, name := range names {
		at, err := expiries[i].Int64()
		require.NoError(t, err)
		if elements := reads[i](); at != -2 && len(elements) > 0 {
			out[name] = entry{Type: types[i].Val(), ExpireAt: max(at, 0), Elements: elements}
		}
	}
}

// read asks for a key's elements; what it gives puts them in order.
func read(ctx context.Context, pipe redis.Pipeliner, kind, name string) func() []string {
	switch kind {
	case "hash":
		cmd := pipe.HGetAll(ctx, name)
		return func() []string { return hashOf(cmd.Val()).Elements }
	case "list":
		cmd := pipe.LRange(ctx, name, 0, -1)
		return cmd.Val
	case "set":
		cmd := pipe.SMembers(ctx, name)
		return func() []string { sort.Strings(cmd.Val()); return cmd.Val() }
	case "zset":
		cmd := pipe.ZRangeWithScores(ctx, name, 0, -1)
		return func() []string {
			var all []string
			for _, z := range cmd.Val() {
				all = append(all, scored(z.Member.(string), z.Score))
			}
			sort.Strings(all)
			return all
		}
	case "none":
		return func() []string { return nil }
	case "string":
		return whole(pipe.Get(ctx, name))
	}
	return whole(pipe.Dump(ctx, name))
}

// whole is a key of one element; none when it expired meanwhile.
func whole(cmd *redis.StringCmd) func() []string {
	return func() []string {
		if cmd.Err() != nil {
			return nil
		}
		return []string{cmd.Val()}
	}
}
