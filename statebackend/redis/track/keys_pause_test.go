package track

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

// keyPauseLog is what a test's writers have written: each notes the keys before
// it sends the command, and those of a SET when the server has acknowledged
// it. (Other commands may change nothing, and then they aren't announced.)
type keyPauseLog struct {
	mu     sync.Mutex
	noted  map[string]struct{}
	acked  map[string]struct{} // since the last round
	failed error
}

func (p *keyPauseLog) note(to map[string]struct{}, keys ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		to[k] = struct{}{}
	}
}

// write makes one random write of a writer of its own keys.
func (p *keyPauseLog) write(ctx context.Context, c *redis.Client, r *rand.Rand, writer int) error {
	key := fmt.Sprintf("j:%d:%d", writer, r.IntN(60))
	other := fmt.Sprintf("j:%d:%d", writer, r.IntN(60))
	value := fmt.Sprint(r.Uint64())
	keys, sure := []string{key}, true
	var do func() error
	switch r.IntN(9) {
	case 0:
		sure = false
		do = func() error { return c.Del(ctx, key).Err() }
	case 1:
		sure = false
		keys = append(keys, other)
		do = func() error { return c.Eval(ctx, keyRenameScript, []string{key, other}).Err() }
	case 2:
		keys = append(keys, other)
		do = func() error {
			pipe := c.TxPipeline()
			pipe.Set(ctx, key, value, 0)
			pipe.Set(ctx, other, value, 0)
			_, err := pipe.Exec(ctx)
			return err
		}
	case 3:
		sure = false
		do = func() error { return c.Expire(ctx, key, time.Hour+time.Duration(r.IntN(1000))*time.Second).Err() }
	default:
		do = func() error { return c.Set(ctx, key, value, 0).Err() }
	}
	p.note(p.noted, keys...)
	if err := do(); err != nil {
		return err
	}
	if sure {
		p.note(p.acked, keys...)
	}
	return nil
}

const keyRenameScript = `if redis.call('exists', KEYS[1]) == 1 then redis.call('rename', KEYS[1], KEYS[2]) end return 1`

// keyCopyOf reads whole keys as a cut would.
func keyCopyOf(t *testing.T, c *redis.Client, keys []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	pipe := c.Pipeline()
	dumps, times := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	for i, key := range keys {
		dumps[i], times[i] = pipe.Dump(t.Context(), key), pipe.PExpireTime(t.Context(), key)
	}
	_, _ = pipe.Exec(t.Context()) // a key that isn't there is no failure; each reply is looked at
	for i, key := range keys {
		payload, err := dumps[i].Result()
		if err == redis.Nil {
			continue
		}
		require.NoError(t, err)
		all[key] = payload + fmt.Sprint(times[i].Val())
	}
	return all
}

// What a cut does: the writers are held, the Barrier comes back, the marks are
// taken. A copy of the state that is brought up to date by the marked keys
// alone equals the state, and every write that was acknowledged is marked,
// round after round; with io-threads and TLS too.
func TestKeysMarksUnderPauseCoverEverything(t *testing.T) {
	for name, options := range map[string][]redistest.Option{
		"plain":      nil,
		"io-threads": {redistest.Setting("io-threads 2"), redistest.Setting("io-threads-do-reads yes")},
		"TLS":        {redistest.TLS()},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, options...)
			keyUnderPause(t, s, watch(t, start(t, s, NewKeys), Scope{Root: "j"}))
		})
	}
}

func keyUnderPause(t *testing.T, s *redistest.Server, w Watch) {
	p := &keyPauseLog{noted: map[string]struct{}{}, acked: map[string]struct{}{}}
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for n := range 8 {
		c := s.Client()
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for ctx.Err() == nil {
				if err := p.write(ctx, c, r, n); err != nil && ctx.Err() == nil {
					p.mu.Lock()
					p.failed = err
					p.mu.Unlock()
					return
				}
			}
		})
	}
	defer func() { cancel(); writers.Wait() }()
	rounds := keyPauseRounds{at: position(t, s), guard: s.Client(), w: w, log: p, mirror: map[string]string{}}
	for round := range 40 {
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.failed != nil || len(p.acked) > 50
		}, patience, time.Millisecond)
		rounds.run(t, round)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(t, p.failed)
}

type keyPauseRounds struct {
	at     Position // asked for once, so that nothing comes between the pause and the Barrier
	guard  *redis.Client
	w      Watch
	log    *keyPauseLog
	mirror map[string]string // the copy that is kept up to date by the marks
	before Marks             // of the last round
}

func (p *keyPauseRounds) run(t *testing.T, round int) {
	require.NoError(t, p.guard.Do(t.Context(), "CLIENT", "PAUSE", 10_000, "WRITE").Err())
	require.NoError(t, p.w.Barrier(patient(t), p.at))
	m := p.w.Take()
	require.False(t, m.All, m.Reason)
	marked := keyNames(m)
	for _, key := range marked {
		delete(p.mirror, key)
	}
	maps.Copy(p.mirror, keyCopyOf(t, p.guard, marked))
	all, err := p.guard.Keys(t.Context(), "j:*").Result()
	require.NoError(t, err)
	require.Equal(t, keyCopyOf(t, p.guard, all), p.mirror, "round %d", round)

	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	for key := range p.log.acked {
		// It was executed in this round, or in the last one and acknowledged
		// after its marks were taken.
		require.True(t, touched(m, key) || touched(p.before, key), "round %d: %s", round, key)
	}
	for _, key := range marked {
		require.Contains(t, p.log.noted, key)
	}
	p.before = m
	clear(p.log.acked)
	require.NoError(t, p.guard.Do(t.Context(), "CLIENT", "UNPAUSE").Err())
}
