package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// crew is the writers of one round: each with its own keys, its own connection
// and its own log of what was acknowledged. They know nothing of checkpoints.
type crew struct {
	server *redistest.Server
	addr   atomic.Pointer[string] // where the writers write
	logs   []*ledger
	lossy  atomic.Bool // the server may lose what was written, and refuse commands
	rate   int         // commands a second of all together

	cancel context.CancelFunc
	wg     sync.WaitGroup
	acked  atomic.Int64 // commands
	pause  *holds

	mu   sync.Mutex
	errs []error
}

// holds tells which writes were held by the test's own copies, and how long
// the others took.
type holds struct {
	n       atomic.Int64
	inside  atomic.Bool
	longest atomic.Int64 // ns: of a write that no copy held
	held    atomic.Int64 // ns: of one that a copy held
	rough   atomic.Bool  // links are broken: a pause may last as long as its lease
	broken  atomic.Int64 // ns: of a write meanwhile
}

func (h *holds) begin() (before int64) {
	if h.inside.Load() {
		return -1
	}
	return h.n.Load()
}

func (h *holds) end(before int64, took time.Duration) {
	where := &h.longest
	switch {
	case h.rough.Load():
		where = &h.broken
	case before < 0 || h.n.Load() != before:
		where = &h.held
	}
	for {
		was := where.Load()
		if int64(took) <= was || where.CompareAndSwap(was, int64(took)) {
			return
		}
	}
}

// soakPatience is a client's timeout: far above any stall that is right.
const soakPatience = 20 * time.Second

func newCrew(t *testing.T, server *redistest.Server, size, rate int, big bool, seed uint64, pause *holds) *crew {
	c := &crew{server: server, rate: rate, pause: pause}
	c.addr.Store(&server.Addr)
	for i := range size {
		c.logs = append(c.logs, newLedger(i, seed, i == 0 && big))
	}
	c.prepare(t)
	return c
}

// prepare writes the big hash, and makes payloads for RESTORE.
func (c *crew) prepare(t *testing.T) {
	client := patient(c.server)
	big := &kept{kind: "hash", hash: map[string]string{}}
	l := c.logs[0]
	l.keys[l.bigKey()], l.index[l.bigKey()] = big, true
	pipe := client.Pipeline()
	pipe.SAdd(t.Context(), job.Index(), l.bigKey())
	words := []any{"HSET", l.bigKey()}
	for i := range bigFields {
		f, v := "s:k"+strconv.Itoa(i), strconv.Itoa(i*7)
		big.hash[f] = v
		if words = append(words, f, v); len(words) > 2000 {
			pipe.Do(t.Context(), words...)
			words = []any{"HSET", l.bigKey()}
		}
	}
	if len(words) > 2 {
		pipe.Do(t.Context(), words...)
	}
	for n := range 2 * coldKeys {
		pipe.SAdd(t.Context(), job.Index(), coldKey(n))
		pipe.HSet(t.Context(), coldKey(n), "still", n, "there", n*3)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	c.dumps(t, client)
}

// coldKeys is half of how many keys nobody writes to again. Evictions take
// them first.
const coldKeys = 1500

func coldKey(n int) string { return ring(15, "cold", n) }

func (c *crew) dumps(t *testing.T, client *redis.Client) {
	samples := map[string]*kept{"h": {kind: "hash", hash: map[string]string{}, set: map[string]bool{}, zset: map[string]float64{}}, "s": {kind: "set", set: map[string]bool{}}, "l": {kind: "list"}}
	for i := range 300 {
		f := "f" + strconv.Itoa(i)
		samples["h"].hash[f] = strconv.Itoa(3 * i)
		samples["s"].set[f] = true
		samples["l"].list = append(samples["l"].list, f)
		require.NoError(t, client.HSet(t.Context(), "sample:h", f, 3*i).Err())
		require.NoError(t, client.SAdd(t.Context(), "sample:s", f).Err())
		require.NoError(t, client.RPush(t.Context(), "sample:l", f).Err())
	}
	for name, value := range samples {
		payload, err := client.Dump(t.Context(), "sample:"+name).Result()
		require.NoError(t, err)
		for _, l := range c.logs {
			l.dumps = append(l.dumps, dumped{payload, value})
		}
	}
	for _, l := range c.logs { // a map's order is none that a seed repeats
		sortDumps(l.dumps)
	}
}

func sortDumps(d []dumped) {
	for i := range d {
		for j := i; j > 0 && d[j].value.kind < d[j-1].value.kind; j-- {
			d[j], d[j-1] = d[j-1], d[j]
		}
	}
}

func (c *crew) start(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	for _, l := range c.logs {
		client := c.client()
		c.wg.Go(func() {
			defer func() { _ = client.Close() }() // every answer was read
			c.run(ctx, l, client)
		})
	}
	t.Cleanup(c.stop)
}

// client is a client as an application has it, but for a longer patience. It
// follows its server to another address.
func (c *crew) client() *redis.Client {
	return redis.NewClient(&redis.Options{MaxRetries: -1, ReadTimeout: soakPatience, WriteTimeout: soakPatience,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", *c.addr.Load())
		}})
}

// stop ends the writers, each after the answer to what it has sent.
func (c *crew) stop() {
	c.cancel()
	c.wg.Wait()
}

// stepsEach is how many random changes go into one transaction.
const stepsEach = 24

func (c *crew) run(ctx context.Context, l *ledger, client *redis.Client) {
	began, sent := time.Now(), 0
	for ctx.Err() == nil {
		n, err := c.transact(l, client)
		if err != nil && !c.lossy.Load() {
			c.mu.Lock()
			c.errs = append(c.errs, fmt.Errorf("writer %d, transaction %d: %w", l.id, l.n, err))
			c.mu.Unlock()
			return
		}
		sent += n
		due := began.Add(time.Duration(float64(sent) * float64(len(c.logs)) / float64(c.rate) * float64(time.Second)))
		if behind := time.Since(due); behind > time.Second {
			began, sent = time.Now(), 0 // what a stall has held back isn't made up for
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// transact sends one transaction and waits for its answer.
func (c *crew) transact(l *ledger, client *redis.Client) (int, error) {
	l.queue, l.after = l.queue[:0], nil
	l.even()
	for range 1 + l.rng.IntN(2*stepsEach) {
		l.step()
	}
	l.last()
	before, began := c.pause.begin(), time.Now()
	var last *redis.Cmd
	_, err := client.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
		for _, words := range l.queue {
			last = p.Do(context.Background(), words...)
		}
		return nil
	})
	took := time.Since(began)
	var reply redis.Error
	if err != nil && !(c.lossy.Load() && errors.As(err, &reply)) {
		return len(l.queue), l.refused(err)
	}
	c.pause.end(before, took)
	c.acked.Add(int64(len(l.queue)))
	if l.after != nil && err == nil {
		l.after(last.Val())
	}
	return len(l.queue), nil
}

// refused says which command a server has refused.
func (l *ledger) refused(err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return fmt.Errorf("one of %d commands was refused: %w", len(l.queue), err)
	}
	return err
}

// requireUndisturbed fails when a writer has seen an error.
func (c *crew) requireUndisturbed(t *testing.T, repeat string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.errs, "writers saw errors; %s", repeat)
}

// requireLog holds the live state to the writers' logs: nothing that was
// acknowledged is lost, and no error was seen.
func (c *crew) requireLog(t *testing.T, repeat string) {
	t.Helper()
	c.requireUndisturbed(t, repeat)
	want := map[string]fact{}
	for _, l := range c.logs {
		for name, v := range l.keys {
			want[name] = v.fact()
		}
	}
	got := c.live(t)
	for name := range got {
		if strings.Contains(name, ":stream") || strings.Contains(name, ":flash:") {
			delete(got, name)
		}
	}
	require.Empty(t, differentFacts(want, got, time.Now()), "the writers' logs and the live state; %s", repeat)
	index, err := patient(c.server).SMembers(t.Context(), job.Index()).Result()
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, l := range c.logs {
		for name := range l.index {
			listed[name] = true
		}
	}
	for n := range 2 * coldKeys {
		listed[coldKey(n)] = true
	}
	for _, name := range index {
		require.True(t, listed[name], "name %q is in the index; %s", name, repeat)
		delete(listed, name)
	}
	require.Empty(t, listed, "names that are missing in the index; %s", repeat)
}

// live is every key of these writers, in the index or not.
func (c *crew) live(t *testing.T) map[string]fact {
	t.Helper()
	o := &copied{}
	for _, name := range allKeys(t, patient(c.server)) {
		for _, l := range c.logs {
			if strings.HasPrefix(name, job.Root()+":") && strings.Contains(name, fmt.Sprintf(":state:op%d:", l.id)) {
				o.names = append(o.names, name)
			}
		}
	}
	o.indexed = len(o.names)
	conn, err := dialPlain(c.server.Addr)
	require.NoError(t, err)
	defer func() { _ = conn.conn.Close() }() // all was read
	require.NoError(t, o.readKinds(conn))
	require.NoError(t, o.readValues(conn, false))
	all, err := o.facts()
	require.NoError(t, err)
	return all
}
