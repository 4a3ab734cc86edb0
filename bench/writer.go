package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// childEnv makes a process that calls MaybeChild one of the bench's own
// children, by its arguments.
const childEnv = "KEYFRAME_BENCH_CHILD"

// MaybeChild is to be called first thing in main (and in TestMain) of a program
// that calls Run. In a child process of a run it does the child's work and
// exits; otherwise it returns at once.
func MaybeChild() {
	if os.Getenv(childEnv) != "" {
		os.Exit(child(os.Args[1:]))
	}
}

// childCommand runs this program as a child, which ends with it.
func childCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("path of this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = dieWithParent()
	return cmd, nil
}

// child runs as a child process and gives its exit code.
func child(args []string) int {
	err := errors.New("want writer or rescale")
	switch {
	case len(args) == 4 && args[0] == "writer":
		err = writerChild(args[1], args[2], args[3])
	case len(args) == 2 && args[0] == "rescale":
		err = rescaleChild(args[1])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench child %q: %v\n", args, err)
		return 1
	}
	return 0
}

// writers, each with a connection; together they make writeRate.
const writers = 4

// writerChild writes into existing fields of a dataset until its input ends,
// says "ready" after the first writes, and then what it saw.
func writerChild(addr, name, scale string) error {
	n, err := strconv.Atoi(scale)
	if err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	data, err := newDataset(name, n)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var warm sync.WaitGroup
	warm.Add(writers)
	logs := make([]written, writers)
	var g errgroup.Group
	for i := range writers {
		g.Go(func() (err error) {
			logs[i], err = write(addr, data.runs[0], uint64(i), stop, warm.Done)
			return err
		})
	}
	warm.Wait()
	fmt.Println("ready")
	_, readErr := io.Copy(io.Discard, os.Stdin)
	close(stop)
	if err := errors.Join(readErr, g.Wait()); err != nil {
		return err
	}
	var sum written
	for _, w := range logs {
		sum.Writes += w.Writes
		sum.Rate += w.Rate
		sum.WorstMs = max(sum.WorstMs, w.WorstMs)
	}
	return json.NewEncoder(os.Stdout).Encode(sum)
}

// warmWrites are made before warm is called, and not logged.
const warmWrites = 100

// most is how many writes a writer makes at once when it is behind its rate:
// ten milliseconds' worth. What a longer stall kept from being written is not
// made up for.
const most = writeRate / writers / 100

// write is one writer: single HSETs, each waiting for its answer, some every
// millisecond.
func write(addr string, r keys, seed uint64, stop <-chan struct{}, warm func()) (w written, err error) {
	var once sync.Once
	defer once.Do(warm) // also when the connection fails
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return w, err
	}
	defer func() { _ = c.Close() }() // each answer was read
	h := hsetter{out: bufio.NewWriter(c), in: bufio.NewReader(c), run: r, rnd: rand.New(rand.NewPCG(seed, 3))}
	for range warmWrites {
		if err := h.hset(); err != nil {
			return w, err
		}
	}
	once.Do(warm)
	began := time.Now()
	last := began
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			w.Rate = float64(w.Writes) / time.Since(began).Seconds()
			return w, nil
		case <-tick.C:
		}
		var due int
		if due, last = dueSince(last); due > most {
			due, last = most, time.Now()
		}
		for range due {
			at := time.Now()
			if err := h.hset(); err != nil {
				return w, err
			}
			w.Writes++
			w.WorstMs = max(w.WorstMs, float64(time.Since(at).Microseconds())/1000)
		}
	}
}

// dueSince is how many writes of one writer have become due, and until when.
func dueSince(last time.Time) (due int, until time.Time) {
	due = int(time.Since(last).Seconds() * writeRate / writers)
	return due, last.Add(time.Duration(due) * time.Second * writers / writeRate)
}

// hsetter writes to random fields of the hashes of a run, without a client
// library: on a small machine its CPU time would be taken from the server.
type hsetter struct {
	out         *bufio.Writer
	in          *bufio.Reader
	run         keys
	rnd         *rand.Rand
	name, value []byte
}

func (h *hsetter) hset() error {
	h.name = field(h.name[:0], h.rnd.IntN(h.run.width))
	h.value = value(h.value[:0], h.rnd)
	command(h.out, "HSET", []byte(h.run.key(h.rnd.IntN(h.run.keys))), h.name, h.value)
	if err := h.out.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	reply, err := h.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if string(reply) != ":0\r\n" { // the field is there already
		return fmt.Errorf("answer %q to HSET of an existing field", reply)
	}
	return nil
}
