package monkey

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// How a worker process is told what to do.
const (
	envWorker = "MONKEY_WORKER" // its partition
	envRedis  = "MONKEY_REDIS"  // host:port
)

// A worker writes so many records at once, and waits so long after each time.
const (
	batchMost = 9
	workPause = 60 * time.Millisecond
)

// worker is the process that reads one partition of the source.
type worker struct {
	p    *partition
	c    *redis.Client
	gate sync.Mutex // held while the worker is to hold still
}

// workerMain is the worker process: on its input "hold" and "go", on its output
// "held", "ack POSITION EPOCH" for what Redis has confirmed, and "err TEXT".
func workerMain() int {
	part, err := strconv.Atoi(os.Getenv(envWorker))
	all, loadErr := loadPartitions()
	if err := errors.Join(err, loadErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := &worker{p: all[part], c: workerClient(os.Getenv(envRedis))}
	go w.obey()
	for {
		w.gate.Lock()
		err := w.step(context.Background())
		w.gate.Unlock()
		if err != nil {
			fmt.Printf("err %q\n", err)
		}
		pause := time.NewTimer(workPause/2 + time.Duration(rand.Int64N(int64(workPause))))
		<-pause.C
	}
}

// workerClient never repeats a command by itself: what became of it is looked
// at in the state.
func workerClient(addr string) *redis.Client {
	redis.SetLogger(silent{}) // each error is told by the worker itself
	return redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, DisableIdentity: true, PoolSize: 2,
		DialTimeout: time.Second, ReadTimeout: 4 * time.Second, WriteTimeout: 4 * time.Second,
	})
}

type silent struct{}

// Printf implements the logger of go-redis.
func (silent) Printf(context.Context, string, ...any) {}

// obey ends the process when its parent is gone.
func (w *worker) obey() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "hold":
			w.gate.Lock()
			fmt.Println("held")
		case "go":
			w.gate.Unlock()
		}
	}
	os.Exit(0)
}

// step writes the next records in one transaction that happens only when the
// position is still the one that they follow: a restore makes it fail.
func (w *worker) step(ctx context.Context) error {
	key := positionKey(w.p.number)
	err := w.c.Watch(ctx, func(tx *redis.Tx) error {
		pos, err := tx.HGet(ctx, key, positionField).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		to := pos + 1 + rand.IntN(batchMost)
		epoch, err := w.write(ctx, tx, pos, to)
		if err != nil {
			return err
		}
		fmt.Printf("ack %d %s\n", to, epoch)
		return nil
	}, key)
	if errors.Is(err, redis.TxFailedErr) {
		return nil // somebody has put another state in place
	}
	return err
}

// write gives the job's epoch, "-" when it has none.
func (w *worker) write(ctx context.Context, tx *redis.Tx, from, to int) (string, error) {
	var epoch *redis.StringCmd
	_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, words := range w.p.commands(from, to) {
			pipe.Do(ctx, words...)
		}
		epoch = pipe.HGet(ctx, recordKey, "epoch")
		return nil
	})
	if errors.Is(err, redis.Nil) && !errors.Is(err, redis.TxFailedErr) {
		return "-", nil
	}
	return epoch.Val(), err
}

// fastForward brings a job that is not there yet so far at once.
func fastForward(ctx context.Context, c *redis.Client, p *partition, to int) error {
	const step = 500
	for pos := 0; pos < to; pos += step {
		pipe := c.TxPipeline()
		for _, words := range p.commands(pos, min(pos+step, to)) {
			pipe.Do(ctx, words...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("partition %d at %d: %w", p.number, pos, err)
		}
	}
	return nil
}
