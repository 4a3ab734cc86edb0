package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
)

// The change of parallelism that is measured.
const (
	rescaleFrom     = 8
	rescaleTo       = 12
	rescaleElements = 10_000_000
)

// rescaled is what a child process says of one rescale.
type rescaled struct {
	CollectS float64 `json:"collectS"` // reading the old parts once, for their digests
	ComputeS float64 `json:"computeS"`
	WriteS   float64 `json:"writeS"`
	Replays  int     `json:"replays"` // how often Write read the old parts
	PeakMiB  float64 `json:"peakMiB"`
}

// rescaleGroup measures the redistribution of 32,768 key groups and 10 million
// items of list state, each time in a process of its own.
func rescaleGroup(ctx context.Context, o Options, r *Report) error {
	fmt.Fprintln(o.verbose, "rescale")
	elements := rescaleElements / o.Scale
	var times, computes, peaks []float64
	var last rescaled
	for range o.Pairs {
		cmd, err := childCommand(ctx, "rescale", strconv.Itoa(elements))
		if err != nil {
			return err
		}
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &last)
		}
		if err != nil {
			return fmt.Errorf("child: %w", err)
		}
		times = append(times, last.CollectS+last.ComputeS+last.WriteS)
		computes, peaks = append(computes, last.ComputeS*1000), append(peaks, last.PeakMiB)
	}
	note := fmt.Sprintf("%d key groups, %d list items, parallelism %d to %d; generated, not read from a store",
		keygroups.MaxMaxParallelism, elements, rescaleFrom, rescaleTo)
	r.add("rescale", Figure{Name: "rescale: plan", Unit: "ms", Note: note}.measured(computes, limits{}))
	r.add("rescale", Figure{Name: "rescale: read, plan and write", Unit: "s",
		Note: fmt.Sprintf("%s; the old parts were read %d times", note, last.Replays+1)}.measured(times, limits{}))
	r.add("rescale", Figure{Name: "rescale: peak memory", Unit: "MiB", Note: note}.measured(peaks, limits{}))
	return nil
}

func rescaleChild(elements string) error {
	n, err := strconv.Atoi(elements)
	if err != nil {
		return fmt.Errorf("elements: %w", err)
	}
	out, err := redistribute(context.Background(), n)
	if err != nil {
		return err
	}
	kib, err := procField("/proc/self/status", "VmHWM")
	if err != nil {
		return err
	}
	out.PeakMiB = float64(kib) / 1024
	return json.NewEncoder(os.Stdout).Encode(out)
}

// redistribute does what a rescale does to key groups and list state, from a
// source that makes its items as it goes.
func redistribute(ctx context.Context, elements int) (rescaled, error) {
	var out rescaled
	src := &generated{elements: elements}
	began := time.Now()
	c := rescale.NewCollector([]snapshot.OperatorState{src.state()}, src.parse)
	if err := src.replay(ctx, c); err != nil {
		return out, err
	}
	states, err := c.States()
	if err != nil {
		return out, err
	}
	out.CollectS = time.Since(began).Seconds()
	began = time.Now()
	plan, err := rescale.Compute(rescale.Request{
		Rule: keygroups.Rule{MaxParallelism: keygroups.MaxMaxParallelism}.WithDefaults(),
		From: rescaleFrom, To: rescaleTo, Split: rescale.SplitEach, States: states,
	})
	if err != nil {
		return out, err
	}
	out.ComputeS = time.Since(began).Seconds()
	src.replays = 0
	began = time.Now()
	sink := &counting{}
	x := rescale.Execution{Replay: src.replay, Parse: src.parse, KeyOf: src.key, Epoch: 2}
	if _, err := x.Write(ctx, plan, sink); err != nil {
		return out, err
	}
	out.WriteS, out.Replays = time.Since(began).Seconds(), src.replays
	if sink.elements != elements || sink.keys != rescaleTo {
		return out, fmt.Errorf("%d items in %d parts came out of %d in %d", sink.elements, sink.keys, elements, rescaleFrom)
	}
	return out, nil
}

// generated is a list state whose items are the same at each replay.
type generated struct {
	elements int
	replays  int
}

func (g *generated) state() snapshot.OperatorState {
	return snapshot.OperatorState{Operator: "source", Name: "offsets", Mode: snapshot.ModeList}
}

func (g *generated) key(_ snapshot.OperatorState, subtask int) []byte {
	return []byte(job.OperatorKey("stats", "flights", subtask, "source", "offsets"))
}

func (g *generated) parse(key []byte) (snapshot.OperatorState, int, bool) {
	for subtask := range rescaleFrom {
		if string(key) == string(g.key(g.state(), subtask)) {
			return g.state(), subtask, true
		}
	}
	return snapshot.OperatorState{}, 0, false
}

func (g *generated) replay(_ context.Context, sink snapshot.Sink) error {
	g.replays++
	rnd := rand.New(rand.NewPCG(7, 8))
	var v []byte
	for subtask := range rescaleFrom {
		length := g.elements / rescaleFrom
		if subtask < g.elements%rescaleFrom {
			length++
		}
		k := snapshot.Key{Section: snapshot.SectionOperator, Type: snapshot.TypeList, Name: g.key(g.state(), subtask), Count: uint64(length)}
		if err := sink.BeginKey(k); err != nil {
			return err
		}
		for range length {
			v = value(v[:0], rnd)
			if err := sink.Element(snapshot.Element{Size: uint64(len(v)), Value: v}); err != nil {
				return err
			}
		}
		if err := sink.EndKey(snapshot.KeyEnd{}); err != nil {
			return err
		}
	}
	return nil
}
