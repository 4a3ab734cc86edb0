package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/snapshot/bolt"
)

func TestMain(m *testing.M) {
	MaybeChild()
	bolt.MaybeProbe()
	goleak.VerifyTestMain(m)
}

// A small run measures every figure, on real servers with the real
// coordinator. No ratio is asserted: a test can't know what else the machine
// does. The states behind the figures are checked by the run itself.
func TestASmallRunMeasuresEveryFigure(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	report, err := Run(t.Context(), Options{Scale: 2000, Pairs: 1, Dir: dir}, &log)
	require.NoError(t, err)
	require.Contains(t, log.String(), "D3: memory")
	var out bytes.Buffer
	report.Render(&out)
	text, err := report.JSON()
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, *report, r)
	require.Equal(t, 2000, r.Scale)
	require.Positive(t, r.Machine.Cores)
	require.NotEmpty(t, r.Machine.Redis)

	seen := map[string][]string{}
	for _, f := range r.Figures {
		seen[f.Name] = append(seen[f.Name], f.Data)
		require.Contains(t, out.String(), f.Name)
		if f.Verdict == NotRun {
			require.Nil(t, f.Ours, "%s %s is told as %s", f.Name, f.Data, f.Verdict)
			require.NotEmpty(t, f.Note)
			continue
		}
		require.NotNil(t, f.Ours, "%s %s", f.Name, f.Data)
		require.GreaterOrEqual(t, *f.Ours, 0.0)
		require.Equal(t, 1, f.Samples)
		if f.Against != "" {
			require.NotNil(t, f.Base, "%s %s", f.Name, f.Data)
			require.Positive(t, *f.Base)
			require.InEpsilon(t, *f.Ours / *f.Base, *f.Ratio, 1e-9)
		}
	}
	all := []string{"D1", "D2", "D3"}
	require.Equal(t, map[string][]string{
		"full durable checkpoint": all, "reading alone": all, "stored bytes": all, "restore": all, "peak memory of the coordinator": all,
		"checkpoint after 1 % changed": {"D1", "D2"}, "stored bytes after 1 % changed": {"D1", "D2"}, "stall of writers": {"D1", "D2"},
		"worst single write during a checkpoint": {"D1", "D2"}, "stall when the state grows 8x": {"D1x8"},
		"value state in Redis, read": {""}, "value state in Redis, update": {""},
		"value state in memory, read": {""}, "value state in memory, update": {""},
		"chunk encoding": {""}, "chunk encoding, allocations per 1,000 elements": {""},
		"chunk decoding": {""}, "chunk decoding, allocations per 1,000 elements": {""},
		"rescale: plan": {""}, "rescale: read, plan and write": {""}, "rescale: peak memory": {""},
	}, seen)

	table := string(report.Markdown("Results"))
	require.Contains(t, table, "# Results\n")
	require.Contains(t, table, "| full durable checkpoint | D2 |")
	require.NotContains(t, table, dir)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.NotContains(t, table, host)
	left, err := filepath.Glob(filepath.Join(dir, "keyframe-bench-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the run's folder goes with it")
}

func TestOptions(t *testing.T) {
	_, err := Sized("huge")
	require.EqualError(t, err, `BENCH="huge": want quick, large, or nothing`)
	_, err = Some("--only", "restore,speed", Groups)
	require.EqualError(t, err, `--only "speed": want some of checkpoint, restore, memory, stall, access, chunks, rescale`)
	_, err = Run(t.Context(), Options{Pairs: -1}, io.Discard)
	require.ErrorContains(t, err, "pairs -1")
	_, err = Run(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "no", "folder")}, io.Discard)
	require.ErrorContains(t, err, "folder for the run")

	o, err := Sized("quick")
	require.NoError(t, err)
	require.Equal(t, Options{Scale: 20, Pairs: 1}, o)
	o.Only, err = Some("--only", "stall,memory", Groups)
	require.NoError(t, err)
	o.Data, err = Some("--data", "D2", Datasets)
	require.NoError(t, err)
	require.True(t, o.wants("stall"))
	require.False(t, o.wants("restore"))
	require.True(t, o.wantsData("D2"))
	require.False(t, o.wantsData("D1"))
	o, err = Options{}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, Options{Scale: 1, Pairs: 5}, o)
	require.True(t, o.wants("rescale"))
	require.False(t, o.wantsData("D1x8"), "only with BENCH=large")
	o, err = Sized("large")
	require.NoError(t, err)
	require.True(t, o.wantsData("D1x8"))
}

func TestInterleaveTakesTurns(t *testing.T) {
	var calls []string
	p, err := interleave(3,
		func() (float64, error) { calls = append(calls, "base"); return 10, nil },
		func() (float64, error) { calls = append(calls, "ours"); return float64(len(calls)), nil })
	require.NoError(t, err)
	require.Equal(t, []string{"base", "ours", "base", "ours", "base", "ours"}, calls)
	require.Equal(t, []float64{2, 4, 6}, p.ours)
	require.InDeltaSlice(t, []float64{0.2, 0.4, 0.6}, p.ratios(), 1e-12)

	broken := errors.New("no server")
	_, err = interleave(1, func() (float64, error) { return 0, broken }, nil)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "baseline")
	_, err = interleave(1, func() (float64, error) { return 1, nil }, func() (float64, error) { return 0, broken })
	require.ErrorContains(t, err, "ours")
}

func TestMedian(t *testing.T) {
	values := []float64{9, 1, 5}
	require.Equal(t, 5.0, median(values))
	require.Equal(t, []float64{9, 1, 5}, values, "not sorted in place")
	require.Equal(t, 4.0, median([]float64{7, 3, 1, 5}))
}

func TestVerdicts(t *testing.T) {
	ratio := limits{must: 0.9, goal: 0.5}
	for _, c := range []struct {
		ours []float64
		l    limits
		want Verdict
	}{
		{[]float64{5, 4, 9}, ratio, MetGoal}, // median of the ratios is 0.5
		{[]float64{9, 8, 1}, ratio, MetMust},
		{[]float64{9.1, 20, 1}, ratio, NotMet},
		{[]float64{9, 8, 1}, limits{must: 10, goal: 2, absolute: true}, MetMust},
		{[]float64{9, 8, 1}, limits{}, ""},
	} {
		f := Figure{Unit: "s"}.compared(pairs{base: []float64{10, 10, 10}, ours: c.ours}, c.l)
		require.Equal(t, c.want, f.Verdict, "%v %+v", c.ours, c.l)
		require.Equal(t, 3, f.Samples)
	}
	// The ratio is the median of the pairs' ratios, not the ratio of medians:
	// what slowed a pair slowed both sides of it.
	f := Figure{}.compared(pairs{base: []float64{1, 10, 2}, ours: []float64{2, 30, 1}}, ratio)
	require.Equal(t, 2.0, *f.Ratio)
	require.Equal(t, []float64{0.5, 3}, []float64{*f.Low, *f.High})
	f = Figure{}.measured([]float64{70, 60, 80}, limits{must: 128, goal: 64})
	require.Equal(t, MetMust, f.Verdict)
	require.Nil(t, f.Ratio)
	require.Equal(t, []float64{60, 80}, []float64{*f.Low, *f.High})
}

func TestNumbersKeepThreeFigures(t *testing.T) {
	for want, v := range map[string]float64{"0.00": 0, "0.004": 0.0042, "0.100": 0.0999, "0.10": 0.1, "9.99": 9.99, "12.3": 12.34, "807": 807.4} {
		require.Equal(t, want, number(&v))
	}
	require.Empty(t, number(nil))
}

func TestDatasetsAreAsDescribed(t *testing.T) {
	for name, want := range map[string][2]int{
		"D1": {16, 1_000_000}, "D2": {200_000, 1_000_000}, "D3": {40_804, 1_000_000}, "D1x8": {16, 8_000_000},
	} {
		d, err := newDataset(name, 1)
		require.NoError(t, err)
		keys, elements := d.size()
		require.Equal(t, want, [2]int{keys, elements}, name)
		names := map[string]bool{}
		for _, r := range d.runs {
			for i := range r.keys {
				names[r.key(i)] = true
			}
		}
		require.Len(t, names, keys, "%s: no two keys have one name", name)
	}
	_, err := newDataset("D9", 1)
	require.ErrorContains(t, err, `dataset "D9"`)
}

// The commands are what the dataset says: one element each, in the form of
// redis-cli --pipe, and the same at every call.
func TestCommandsOfADataset(t *testing.T) {
	d, err := newDataset("D3", 20)
	require.NoError(t, err)
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		w := bufio.NewWriter(b)
		d.write(w)
		require.NoError(t, w.Flush())
	}
	require.True(t, bytes.Equal(first.Bytes(), second.Bytes()))

	count, values := map[string]int{}, 0
	r := bufio.NewReader(&first)
	for {
		words := readCommand(t, r)
		if words == nil {
			break
		}
		if words[0] == "SADD" && words[1] == job.Index() {
			words[0] = "index"
		}
		if words[0] == "HSET" && words[1] == job.Registry() {
			words[0] = "registry"
		}
		count[words[0]]++
		if words[0] == "HSET" {
			require.True(t, json.Valid([]byte(words[3])), words[3])
			values += len(words[3])
		}
	}
	keys, elements := d.size()
	require.Equal(t, map[string]int{"index": keys, "registry": keys, "HSET": elements / 4, "RPUSH": elements / 4,
		"SADD": elements / 4, "ZADD": elements / 4}, count)
	require.InDelta(t, 60, values/count["HSET"], 5, "about 60 bytes of JSON")
}

// readCommand reads one command of RESP; nil at the end.
func readCommand(t *testing.T, r *bufio.Reader) []string {
	t.Helper()
	line, err := r.ReadString('\n')
	if errors.Is(err, io.EOF) {
		require.Empty(t, line)
		return nil
	}
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.Trim(line, "*\r\n"))
	require.NoError(t, err)
	words := make([]string, n)
	for i := range words {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		size, err := strconv.Atoi(strings.Trim(line, "$\r\n"))
		require.NoError(t, err)
		body := make([]byte, size+2)
		_, err = io.ReadFull(r, body)
		require.NoError(t, err)
		words[i] = string(body[:size])
	}
	return words
}

// A state that differs from the dataset fails the run instead of being timed.
func TestAWrongStateIsNotMeasured(t *testing.T) {
	l, err := newLab(t.Context(), Options{Scale: 20, Pairs: 1, Dir: t.TempDir(), verbose: io.Discard}, "D1")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.close()) }()

	_, err = l.rebuild(t.Context(), func() error {
		return errors.Join(l.server.cli(t.Context(), l.commands, "--pipe"),
			l.server.client.HSet(t.Context(), l.data.runs[0].key(3), "s:flight-129", "changed").Err())
	})
	require.ErrorContains(t, err, "the state is another one")

	require.NoError(t, l.adopt(t.Context()))
	require.NoError(t, l.server.client.HDel(t.Context(), l.data.runs[0].key(3), "s:flight-129").Err())
	_, _, err = l.takeNew(t.Context(), l.spec.Checkpoint.Grade)
	require.ErrorContains(t, err, "has 16 keys and 49999 elements, want 16 and 50000")
	require.Error(t, l.server.cli(t.Context(), "", "--rdb", filepath.Join(l.Dir, "no", "such", "folder")))
}

// The writers' log shows a stall that happened.
func TestWritersFeelAPause(t *testing.T) {
	l, err := newLab(t.Context(), Options{Scale: 20, Pairs: 1, Dir: t.TempDir(), verbose: io.Discard}, "D2")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.close()) }()
	const pause = 300
	w, err := l.whileWriting(t.Context(), func() error {
		if err := l.server.client.Do(t.Context(), "client", "pause", pause, "write").Err(); err != nil {
			return err
		}
		// Answered when the pause has ended.
		return l.server.client.Set(t.Context(), "after the pause", 1, 0).Err()
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, w.WorstMs, float64(pause-50))
	require.Positive(t, w.Rate)

	failed := errors.New("no checkpoint")
	_, err = l.whileWriting(t.Context(), func() error { return failed })
	require.ErrorIs(t, err, failed)
}

func TestRescaleLosesNothing(t *testing.T) {
	out, err := redistribute(t.Context(), 10_001)
	require.NoError(t, err)
	require.Positive(t, out.Replays)
	require.Equal(t, 1, child([]string{"rescale", "many"}))
	require.Equal(t, 1, child([]string{"unknown"}))
}
