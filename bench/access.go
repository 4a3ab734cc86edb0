package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/memory"
	"keyframe/statebackend/redis"
)

// delay is the value whose access is measured: as large as those of the
// datasets.
type delay struct {
	Carrier string  `json:"carrier"`
	Flights int64   `json:"flights"`
	Mean    float64 `json:"mean"`
	Max     int64   `json:"max"`
}

func delayOf(i int) delay {
	return delay{Carrier: "WN", Flights: int64(i % 10_000), Mean: float64(i%6_000) / 100, Max: int64(i % 2_000)}
}

// accessKeys is how many typed keys the accesses go round.
const accessKeys = 1_000

// accessGroup measures one access at a time: a value state's handle on the
// Redis store beside bare go-redis, and on the memory store beside a mutex and
// a map. The baselines register nothing and, in memory, encode nothing.
func accessGroup(ctx context.Context, o Options, r *Report) (err error) {
	fmt.Fprintln(o.verbose, "access")
	s, err := startServer(ctx, o.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	b, err := redis.Open(ctx, redis.Config{URL: s.url()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	bare := bareRedis(s)
	handle, err := handleOn(b)
	if err != nil {
		return err
	}
	if err := compareAccess(ctx, o, r, "Redis", "bare go-redis", 20_000/o.Scale, bare, handle); err != nil {
		return err
	}
	m := memory.New(memory.Options{})
	defer func() { err = errors.Join(err, m.Close()) }()
	if handle, err = handleOn(m); err != nil {
		return err
	}
	return compareAccess(ctx, o, r, "memory", "mutex and map", 400_000/o.Scale, bareMap(), handle)
}

// accessor is one way to write and to read the value of the i-th key.
type accessor struct {
	update, get func(ctx context.Context, i int) error
}

func compareAccess(ctx context.Context, o Options, r *Report, store, against string, n int, bare, handle accessor) error {
	for _, what := range []struct {
		name       string
		bare, ours func(context.Context, int) error
	}{{"update", bare.update, handle.update}, {"read", bare.get, handle.get}} {
		p, err := interleave(o.Pairs,
			func() (float64, error) { return perAccess(ctx, n, what.bare) },
			func() (float64, error) { return perAccess(ctx, n, what.ours) })
		if err != nil {
			return fmt.Errorf("%s, %s: %w", store, what.name, err)
		}
		r.add("access", Figure{Name: fmt.Sprintf("value state in %s, %s", store, what.name), Unit: "µs", Against: against}.compared(p, limits{}))
	}
	return nil
}

// perAccess is the mean time of one access, in µs.
func perAccess(ctx context.Context, n int, access func(context.Context, int) error) (float64, error) {
	began := time.Now()
	for i := range n {
		if err := access(ctx, i); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(began).Nanoseconds()) / 1000 / float64(n), nil
}

// handleOn is our side: a value state in the job's layout.
func handleOn(store statebackend.Store) (accessor, error) {
	state, err := statebackend.NewValueState(statebackend.SoloSpace(store, job),
		statebackend.Descriptor[delay]{Name: "delays", TypeName: "com.example.Delays"})
	if err != nil {
		return accessor{}, err
	}
	key := func(i int) statebackend.Key { return statebackend.StringKey(strconv.Itoa(i % accessKeys)) }
	return accessor{
		update: func(ctx context.Context, i int) error { return state.Update(ctx, key(i), delayOf(i)) },
		get: func(ctx context.Context, i int) error {
			_, err := state.Get(ctx, key(i))
			return err
		},
	}, nil
}

// bareRedis is what a program does that keeps the same hash by itself.
func bareRedis(s *server) accessor {
	const key = "bare"
	field := func(i int) string { return "s:" + strconv.Itoa(i%accessKeys) }
	return accessor{
		update: func(ctx context.Context, i int) error {
			b, err := json.Marshal(delayOf(i))
			if err != nil {
				return err
			}
			return s.client.HSet(ctx, key, field(i), b).Err()
		},
		get: func(ctx context.Context, i int) error {
			b, err := s.client.HGet(ctx, key, field(i)).Bytes()
			if err != nil {
				return err
			}
			var d delay
			return json.Unmarshal(b, &d)
		},
	}
}

// bareMap is the least that keeps values between goroutines.
func bareMap() accessor {
	var mu sync.Mutex
	values := map[string]delay{}
	field := func(i int) string { return "s:" + strconv.Itoa(i%accessKeys) }
	return accessor{
		update: func(_ context.Context, i int) error {
			mu.Lock()
			defer mu.Unlock()
			values[field(i)] = delayOf(i)
			return nil
		},
		get: func(_ context.Context, i int) error {
			mu.Lock()
			defer mu.Unlock()
			if _, ok := values[field(i)]; !ok {
				return errors.New("no value")
			}
			return nil
		},
	}
}
