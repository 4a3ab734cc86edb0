package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/coordinator/restore"
	"keyframe/internal/redistest"
	"keyframe/snapshot"
)

const largeJobs = `
  - name: torture
    maxParallelism: 128
    checkpoint: {timeout: 1h, maxPause: 30m}
`

// size is how large the state of a test is, and what the coordinator may take.
type size struct {
	fields, keys, items, blob int
	memory                    int64 // bytes
}

// A checkpoint of values that don't compress has about 50 MB alive at once, and
// Go lets that double. Whoever holds one of the large keys whole takes as much
// again, and more than the bound.
var (
	reduced = size{fields: 500_000, keys: 60_000, items: 300_000, blob: 64 << 20, memory: 192 << 20}
	full    = size{fields: 10_000_000, keys: 1_000_000, items: 300_000, blob: 64 << 20, memory: 256 << 20}
)

// TestMemoryIsBoundedWhateverTheState (I8): one hash of millions of fields, a
// million small keys, one long list and one large value are checkpointed,
// recovered after a loss, and restored over the living state, by a process that
// never takes more than its bound.
func TestMemoryIsBoundedWhateverTheState(t *testing.T) {
	t.Parallel()
	s := reduced
	if os.Getenv("KEYFRAME_LARGE") == "1" {
		s = full
	}
	server := redistest.Start(t)
	c := server.Client().WithTimeout(30 * time.Minute)
	began := time.Now()
	s.populate(t, c)
	digest := wholeDigest(t, c)
	t.Logf("%d fields, %d keys, %d items, a value of %d bytes: written in %s, the server takes %d MB",
		s.fields, s.keys, s.items, s.blob, took(began), used(t, c)>>20)

	d := newDaemon(t, server, largeJobs)
	d.start()
	began = time.Now()
	cp := must[snapshot.Checkpoint](d, "checkpoint", "create", job.Name)
	require.EqualValues(t, s.keys+3, cp.Keys)
	require.EqualValues(t, s.fields+2*s.keys+s.items+1, cp.Elements)
	d.memory(s, "checkpoint", began)

	began = time.Now()
	must[restore.Result](d, "restore", job.Name, "--yes", "--no-undo")
	d.memory(s, "restore over the living state", began)

	require.NoError(t, c.FlushAll(t.Context()).Err())
	began = time.Now()
	d.awaitRecovery()
	d.memory(s, "recovery", began)
	d.stop()
	require.NoError(t, c.Del(t.Context(), job.Record(), job.Assignment(), job.Lease()).Err())
	require.Equal(t, digest, wholeDigest(t, c), "everything is as it was, byte for byte")
}

// awaitRecovery waits as long as it takes for the loss to be seen and mended.
func (d *daemon) awaitRecovery() {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		for _, e := range get[api.List[event]](d, "/events?job="+job.Name).Items {
			if e.Kind == "recovered" {
				return true
			}
		}
		return false
	}, 30*time.Minute, 50*time.Millisecond)
}

// event is what is read of an event here.
type event struct {
	Kind string `json:"kind"`
}

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// memory holds the most that the process has ever taken against the bound.
func (d *daemon) memory(s size, what string, began time.Time) {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	require.NoError(d.t, err)
	found := highWater.FindSubmatch(text)
	require.NotNil(d.t, found, "%s", text)
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(d.t, err)
	d.t.Logf("%-30s %8s, at most %d MiB of memory so far", what, took(began), kb>>10)
	require.Less(d.t, kb<<10, s.memory, "the coordinator's memory after the %s", what)
}

func took(began time.Time) time.Duration { return time.Since(began).Round(100 * time.Millisecond) }

func wholeDigest(t *testing.T, c *redis.Client) string {
	t.Helper()
	d, err := c.Do(t.Context(), "DEBUG", "DIGEST").Text()
	require.NoError(t, err)
	return d
}

func used(t *testing.T, c *redis.Client) int64 {
	t.Helper()
	info, err := c.InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	n, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	require.NoError(t, err)
	return n
}

// bigHash, smallKeys and longList write elements ARGV[1] up to ARGV[2].
var (
	bigHash = redis.NewScript(`
local words = {}
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  words[#words + 1] = 's:k' .. i
  words[#words + 1] = '"v' .. i * 7 .. '"'
  if #words == 2000 then redis.call('HSET', KEYS[1], unpack(words)); words = {} end
end
if #words > 0 then redis.call('HSET', KEYS[1], unpack(words)) end`)
	smallKeys = redis.NewScript(`
local names, schemas = {}, {}
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local name = KEYS[3] .. ':cg:g:topic:orders:p:' .. i % 128 .. ':state:op:small:s:' .. i
  redis.call('HSET', name, '"count"', i, '"mean"', i .. '.5')
  if i % 50 == 0 then redis.call('PEXPIREAT', name, 2208988800000 + i) end
  names[#names + 1] = name
  schemas[#schemas + 1] = name
  schemas[#schemas + 1] = 'java.lang.Double|1'
  if #names == 1000 then
    redis.call('SADD', KEYS[1], unpack(names)); redis.call('HSET', KEYS[2], unpack(schemas))
    names, schemas = {}, {}
  end
end
if #names > 0 then redis.call('SADD', KEYS[1], unpack(names)); redis.call('HSET', KEYS[2], unpack(schemas)) end`)
	longList = redis.NewScript(`
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do redis.call('RPUSH', KEYS[1], 'item ' .. i % 1000 .. string.rep('.', i % 90)) end`)
)

// populate writes the state by scripts, in batches.
func (s size) populate(t *testing.T, c *redis.Client) {
	t.Helper()
	ctx := t.Context()
	batches := func(script *redis.Script, n int, keys ...string) {
		t.Helper()
		const batch = 100_000
		for from := 0; from < n; from += batch {
			err := script.Run(ctx, c, keys, from, min(n, from+batch)).Err()
			if err != redis.Nil {
				require.NoError(t, err)
			}
		}
	}
	big, list, blob := key(0, "big"), keyed(1, "long", "s:l"), key(2, "blob")
	batches(bigHash, s.fields, big)
	batches(smallKeys, s.keys, job.Index(), job.Registry(), job.Root())
	batches(longList, s.items, list)
	r := rand.NewChaCha8([32]byte{7})
	part := make([]byte, 1<<20)
	for range s.blob / len(part) {
		_, _ = r.Read(part) // never fails
		require.NoError(t, c.Append(ctx, blob, string(part)).Err())
	}
	for _, name := range []string{big, list, blob} {
		for _, words := range register(name) {
			require.NoError(t, c.Do(ctx, words...).Err())
		}
	}
}
