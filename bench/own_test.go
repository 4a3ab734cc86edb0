package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

const ownPassword = "own-S3cret"

// ownServer is a server with a password, a job of some thousand elements and a
// small one, as somebody may have it.
func ownServer(t *testing.T) *redistest.Server {
	t.Helper()
	s := redistest.Start(t, redistest.Password(ownPassword))
	d, err := newDataset("D3", 200)
	require.NoError(t, err)
	c := s.Client()
	pipe := c.Pipeline()
	for _, r := range d.runs {
		for i := range r.keys {
			key := r.key(i)
			pipe.SAdd(t.Context(), job.Index(), key)
			pipe.HSet(t.Context(), job.Registry(), key, "com.example.Delays|1")
			for e := range r.width {
				name := string(field(nil, e))
				switch r.kind {
				case "hash":
					pipe.HSet(t.Context(), key, name, "value of "+name)
				case "list":
					pipe.RPush(t.Context(), key, "item of "+name)
				case "set":
					pipe.SAdd(t.Context(), key, "member "+name)
				case "zset":
					pipe.ZAdd(t.Context(), key, goredis.Z{Score: float64(e), Member: name})
				}
			}
		}
	}
	_, err = pipe.Exec(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.HSet(t.Context(), job.Record(), "incarnation", incarnation, "epoch", 4, "attempt", 40, "cut", 18).Err())
	require.NoError(t, c.SAdd(t.Context(), "streaming:runtime:small:stateKeys", "streaming:runtime:small:x").Err())
	require.NoError(t, c.Set(t.Context(), "streaming:runtime:small:x", "small state", 0).Err())
	return s
}

// whole is everything that a server holds.
func whole(t *testing.T, s *redistest.Server) any { return s.Do("DEBUG", "DIGEST") }

func ownOf(s *redistest.Server, pairs int) Own {
	return Own{Redis: redis.Config{URL: "redis://" + s.Addr + "/0", Password: ownPassword}, Pairs: pairs}
}

// figureOf finds a figure by its name.
func figureOf(t *testing.T, r *Report, name string) Figure {
	t.Helper()
	for _, f := range r.Figures {
		if f.Name == name {
			return f
		}
	}
	require.Fail(t, "no figure", name)
	return Figure{}
}

// Measuring leaves the server as it was, the record's due mark too, and nothing
// in the folder.
func TestOwnServerIsReadOnly(t *testing.T) {
	s := ownServer(t)
	before := whole(t, s)
	o := ownOf(s, 2)
	o.Dir = t.TempDir()
	var log bytes.Buffer
	r, err := RunOwn(t.Context(), o, &log)
	require.NoError(t, err)
	require.Equal(t, before, whole(t, s))
	require.Contains(t, log.String(), "pair 2 of 2")
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left)

	require.Equal(t, "bench", r.Subject.Job)
	require.Equal(t, statebackend.DefaultPrefix, r.Subject.Prefix)
	require.False(t, r.Subject.Wrote)
	require.Contains(t, strings.Join(r.Subject.Notes, "\n"), `the job with the most state keys of 2 was chosen; --job takes another: "small" (prefix "streaming:runtime", 1 state keys)`)
	full := figureOf(t, r, "full durable checkpoint")
	require.Equal(t, "redis-cli --rdb", full.Against)
	require.Equal(t, 2, full.Samples)
	require.Equal(t, ownFull.must, full.Must)
	require.NotEmpty(t, full.Verdict)
	require.Contains(t, full.Note, "grade precopy, tracking fields")
	require.Positive(t, *figureOf(t, r, "stored bytes").Base)
	next := figureOf(t, r, "checkpoint right after")
	require.Equal(t, 2, next.Samples)
	require.Contains(t, next.Note, "0 bytes stored")
	require.NotNil(t, figureOf(t, r, "stall of writers").Ours)
	require.Positive(t, *figureOf(t, r, "verify").Ours)
	require.Positive(t, *figureOf(t, r, "peak memory of this process").Ours)
	restored := figureOf(t, r, "restore beside the job")
	require.Equal(t, NotRun, restored.Verdict)
	require.Equal(t, "--write measures it", restored.Note)

	var out bytes.Buffer
	r.Render(&out)
	require.Contains(t, out.String(), `Job "bench" under "streaming:runtime" at redis://`+s.Addr)
	require.Contains(t, out.String(), "nothing was written")
	text, err := r.JSON()
	require.NoError(t, err)
	for _, said := range []string{out.String(), string(text), log.String()} {
		require.NotContains(t, said, ownPassword)
	}
}

// With Write the job is there twice for a moment, and afterwards as before.
func TestOwnServerWithAScratchRestore(t *testing.T) {
	s := ownServer(t)
	before := whole(t, s)
	o := ownOf(s, 1)
	o.Job, o.Write = job, true
	r, err := RunOwn(t.Context(), o, io.Discard)
	require.NoError(t, err)
	require.Equal(t, before, whole(t, s))
	require.True(t, r.Subject.Wrote)
	f := figureOf(t, r, "restore beside the job")
	require.Positive(t, *f.Ours)
	require.Contains(t, f.Note, "flip")
	require.Contains(t, f.Note, "removed again")
	require.Contains(t, figureOf(t, r, "peak memory of this process").Note, "before the restore")
}

// An interrupt in the middle of the restore leaves nothing either.
func TestAnInterruptedScratchRestoreIsRemoved(t *testing.T) {
	s := ownServer(t)
	before := whole(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	o := ownOf(s, 1)
	o.Job, o.Write = job, true
	stop := errors.New("somebody pressed ^C")
	_, err := RunOwn(ctx, o, writerFunc(func(b []byte) {
		if bytes.Contains(b, []byte("scratch job")) {
			cancel(stop)
		}
	}))
	require.ErrorIs(t, err, stop)
	require.Equal(t, before, whole(t, s))
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// A restore that is refused is told, and the other figures stand.
func TestOwnServerWithoutRoomForACopy(t *testing.T) {
	s := ownServer(t)
	c := s.Client()
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "3mb").Err())
	before := whole(t, s)
	o := ownOf(s, 1)
	o.Job, o.Write = job, true
	r, err := RunOwn(t.Context(), o, io.Discard)
	require.ErrorIs(t, err, statebackend.ErrNoRoom)
	require.NotNil(t, figureOf(t, r, "full durable checkpoint").Ours)
	require.Contains(t, figureOf(t, r, "restore beside the job").Note, "room")
	require.Equal(t, before, whole(t, s))
}

// What can't be measured is refused in one sentence, before anything is done.
func TestOwnServerRefusals(t *testing.T) {
	s := ownServer(t)
	c := s.Client()
	refused := func(o Own) error {
		t.Helper()
		r, err := RunOwn(t.Context(), o, io.Discard)
		require.Error(t, err)
		require.Nil(t, r)
		require.NotContains(t, err.Error(), ownPassword)
		require.NotContains(t, err.Error(), "\n")
		return err
	}
	o := ownOf(s, 1)
	o.Job.Name = "nosuch"
	err := refused(o)
	require.Equal(t, fault.NoJob, fault.CodeOf(err))
	require.ErrorContains(t, err, `no job "nosuch" under "streaming:runtime"`)

	o = ownOf(s, 1)
	o.Redis.Password = "wrong"
	require.ErrorIs(t, refused(o), statebackend.ErrAuth)
	o = ownOf(s, -1)
	require.Equal(t, fault.Usage, fault.CodeOf(refused(o)))
	o = ownOf(s, 1)
	o.Redis.URL = "redis://" + s.Addr + "/3"
	require.Equal(t, fault.NoState, fault.CodeOf(refused(o)))
	o = ownOf(s, 1)
	o.Dir = filepath.Join(t.TempDir(), "no", "folder")
	require.ErrorContains(t, refused(o), "folder for the run")

	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">"+ownPassword, "allcommands", "-client|pause", "allkeys").Err())
	o = ownOf(s, 1)
	o.Redis.URL = "redis://reader@" + s.Addr + "/0"
	err = refused(o)
	require.ErrorIs(t, err, statebackend.ErrPermission)
	require.ErrorContains(t, err, "+client|pause")

	require.NoError(t, c.HSet(t.Context(), job.Record(), "restore", `{"id":"r1","kind":"restore","checkpoint":7,"startedAt":"2026-01-02T03:04:05Z"}`).Err())
	require.ErrorIs(t, refused(ownOf(s, 1)), statebackend.ErrMarked)
	require.NoError(t, c.HDel(t.Context(), job.Record(), "restore").Err())

	require.NoError(t, c.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err()) // nobody is there: it keeps its data
	require.ErrorIs(t, refused(ownOf(s, 1)), statebackend.ErrReadOnly)
}

// Without the right to replicate there is no baseline and no tracking by
// fields: both are said, and the rest is measured.
func TestOwnServerWithoutTheRightToReplicate(t *testing.T) {
	s := ownServer(t)
	c := s.Client()
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">"+ownPassword, "allcommands", "-psync", "-sync", "-replconf", "allkeys").Err())
	o := ownOf(s, 1)
	o.Redis.URL, o.Job = "redis://plain@"+s.Addr+"/0", job
	r, err := RunOwn(t.Context(), o, io.Discard)
	require.NoError(t, err)
	full := figureOf(t, r, "full durable checkpoint")
	require.Nil(t, full.Base)
	require.Empty(t, full.Verdict)
	require.Contains(t, full.Note, "tracking keys")
	require.Contains(t, full.Note, "no baseline: redis-cli --rdb")
	require.Contains(t, strings.Join(r.Subject.Notes, "\n"), "track writes by fields")
}

// A dump of a server that holds much else is no measure for one job.
func TestOwnJobAmongManyOtherKeys(t *testing.T) {
	s := ownServer(t)
	o := ownOf(s, 1)
	o.Job = statebackend.Job{Name: "small"}
	r, err := RunOwn(t.Context(), o, io.Discard)
	require.NoError(t, err)
	full := figureOf(t, r, "full durable checkpoint")
	require.NotNil(t, full.Ratio)
	require.Empty(t, full.Verdict)
	require.EqualValues(t, 1, r.Subject.Keys)
	require.Contains(t, strings.Join(r.Subject.Notes, "\n"), "their ratios are not judged")
}

// Scratch copies that a killed run has left are named, and never chosen.
func TestScratchCopiesAreNamed(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	left := statebackend.Job{Prefix: "p", Name: scratchName + "0011"}
	require.NoError(t, c.SAdd(t.Context(), left.Index(), left.Root()+":a", left.Root()+":b").Err())
	require.NoError(t, c.SAdd(t.Context(), "p:mine:stateKeys", "p:mine:x").Err())
	require.NoError(t, c.Set(t.Context(), "p:mine:x", "v", 0).Err())
	r, err := RunOwn(t.Context(), Own{Redis: redis.Config{URL: s.URL()}, Pairs: 1}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "mine", r.Subject.Job)
	require.Contains(t, r.Subject.Notes[0], left.Name)
}

func TestRedisCLIHasNoPasswordInItsArguments(t *testing.T) {
	for url, want := range map[string]string{
		"redis://:in-url@h/2":                "-h h -p 6379 -n 2",
		"redis://me:in-url@10.0.0.1:7000":    "-h 10.0.0.1 -p 7000 --user me",
		"unix:///run/redis.sock?db=3":        "-s /run/redis.sock -n 3",
		"rediss://me:in-url@host.example:99": "-h host.example -p 99 --user me --tls --sni host.example",
	} {
		c, err := newRedisCLI(redis.Config{URL: url})
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(c.args, " "))
		require.Equal(t, strings.Contains(url, "in-url"), c.password == "in-url")
	}
	c, err := newRedisCLI(redis.Config{URL: "rediss://:old@[::1]:1/0", Password: "given", CAFile: "ca.pem"})
	require.NoError(t, err)
	require.Equal(t, "-h ::1 -p 1 -n 0 --tls --cacert ca.pem", strings.Join(c.args, " "))
	require.Equal(t, "given", c.password)
	require.Equal(t, "AUTH … failed", c.lastLine("first\nAUTH given failed\n"))
	t.Setenv("PATH", t.TempDir())
	_, err = newRedisCLI(redis.Config{URL: "redis://h"})
	require.EqualError(t, err, "redis-cli is not installed")
}

// The dump is that of the server, and its beginning lies inside of it.
func TestRedisCLIDumps(t *testing.T) {
	s := ownServer(t)
	require.NoError(t, s.Client().ConfigSet(t.Context(), "repl-diskless-sync-delay", "1").Err())
	c, err := newRedisCLI(redis.Config{URL: s.URL()})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "dump.rdb")
	took, head, err := c.dump(t.Context(), path)
	require.NoError(t, err)
	require.GreaterOrEqual(t, head, 500*time.Millisecond, "the server waits for other replicas")
	require.Greater(t, took, head)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "REDIS", string(b[:5]))
	_, _, err = c.dump(t.Context(), filepath.Join(path, "below-a-file"))
	require.ErrorContains(t, err, "redis-cli --rdb: exit status 1")
}

// Content is the same in any order of keys, and another one for any change.
func TestContentTellsCheckpointsApart(t *testing.T) {
	type key struct {
		name, field, value string
		expire             int64
	}
	sum := func(all ...key) uint64 {
		var c content
		for _, k := range all {
			require.NoError(t, c.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeHash, Name: []byte(k.name), ExpireAt: k.expire}))
			require.NoError(t, c.Element(snapshot.Element{Field: []byte(k.field), Size: uint64(len(k.value)), Value: []byte(k.value)[:1]}))
			require.NoError(t, c.Part([]byte(k.value)[1:]))
			require.NoError(t, c.EndKey(snapshot.KeyEnd{}))
		}
		return c.sum
	}
	a, b := key{"a", "f", "value", 0}, key{"b", "g", "other", 9}
	require.Equal(t, sum(a, b), sum(b, a))
	for _, other := range [][]key{{a}, {a, a}, {a, {"b", "g", "other", 0}}, {a, {"b", "g", "othes", 9}}, {a, {"b", "h", "other", 9}}, {a, {"c", "g", "other", 9}}} {
		require.NotEqual(t, sum(a, b), sum(other...))
	}
}
