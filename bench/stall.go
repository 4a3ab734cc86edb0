package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"keyframe/snapshot"
)

// writeRate is how many HSETs a second the writers aim at.
const writeRate = 20_000

// stall measures what writers feel: how long the cut says that it held them,
// and the worst single write by the writers' own log. Beside our own choice of
// grade stand stop-and-copy and redis-cli's dump, in turns.
func (l *lab) stall(ctx context.Context, r *Report, stalls map[string]float64) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	var stall, worst pairs
	var last snapshot.Checkpoint
	var rates []float64
	for range l.Pairs {
		dump, err := l.whileWriting(ctx, func() error { _, _, err := l.dump(ctx); return err })
		if err != nil {
			return fmt.Errorf("writing while redis-cli dumps: %w", err)
		}
		var whole, ours snapshot.Checkpoint
		if _, err = l.whileWriting(ctx, func() (err error) { whole, _, err = l.takeNew(ctx, snapshot.GradePaused); return err }); err != nil {
			return fmt.Errorf("writing during stop-and-copy: %w", err)
		}
		felt, err := l.whileWriting(ctx, func() (err error) { ours, _, err = l.takeNew(ctx, snapshot.GradeAuto); return err })
		if err != nil {
			return fmt.Errorf("writing during a checkpoint: %w", err)
		}
		stall.base, stall.ours = append(stall.base, whole.StallMs), append(stall.ours, ours.StallMs)
		worst.base, worst.ours = append(worst.base, dump.WorstMs), append(worst.ours, felt.WorstMs)
		rates, last = append(rates, felt.Rate), ours
	}
	stalls[l.data.name] = median(stall.ours)
	if l.data.name == "D1x8" {
		return nil
	}
	note := fmt.Sprintf("full checkpoints, the last: %s; %.0f HSET/s", how(last), median(rates))
	r.add("stall", Figure{Name: "stall of writers", Data: l.data.name, Unit: "ms", Against: "stop-and-copy", Note: note}.
		compared(stall, limits{must: 5, goal: 1, absolute: true}))
	r.add("stall", Figure{Name: "worst single write during a checkpoint", Data: l.data.name, Unit: "ms",
		Against: "worst write during redis-cli --rdb", Note: note}.compared(worst, limits{must: 25, goal: 10, absolute: true}))
	return nil
}

// grownStall compares the stalls of D1 and of eight times as much.
func grownStall(r *Report, stalls map[string]float64) {
	f := Figure{Name: "stall when the state grows 8x", Data: "D1x8", Unit: "ms", Against: "stall of D1"}
	l := limits{must: 2, goal: 1.1}
	small, large := stalls["D1"], stalls["D1x8"]
	if small == 0 || large == 0 {
		r.add("stall", f.absent(NotRun, l, "BENCH=large measures it, with D1 and D1x8"))
		return
	}
	r.add("stall", f.compared(pairs{base: []float64{small}, ours: []float64{large}}, l))
}

// written is what the writers log.
type written struct {
	Writes  int     `json:"writes"`
	Rate    float64 `json:"rate"` // a second
	WorstMs float64 `json:"worstMs"`
}

// whileWriting runs fn while writers in a process of their own write into the
// dataset.
func (l *lab) whileWriting(ctx context.Context, fn func() error) (w written, err error) {
	cmd, err := childCommand(ctx, "writer", l.server.addr(), l.data.name, strconv.Itoa(l.Scale))
	if err != nil {
		return w, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return w, fmt.Errorf("start the writers: %w", err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return w, fmt.Errorf("start the writers: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return w, fmt.Errorf("start the writers: %w", err)
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	defer func() { _ = in.Close() }() // ends the writers, also after an error
	out := bufio.NewReader(pipe)
	if _, err := out.ReadString('\n'); err != nil {
		return w, fmt.Errorf("the writers did not begin: %w", err)
	}
	if err := fn(); err != nil {
		return w, err
	}
	if err := in.Close(); err != nil {
		return w, fmt.Errorf("stop the writers: %w", err)
	}
	log, err := io.ReadAll(out)
	if err == nil {
		err = json.Unmarshal(log, &w)
	}
	if err != nil {
		return w, fmt.Errorf("log of the writers: %w", err)
	}
	if w.Writes == 0 {
		return w, errors.New("the writers wrote nothing")
	}
	return w, nil
}
