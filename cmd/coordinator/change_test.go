package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/internal/redistest"
)

// withFlights is a coordinator beside a Redis that holds the state of job flights.
func withFlights(t *testing.T) (*service, *redistest.Server) {
	t.Helper()
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "old")
	d := start(t, yaml(t, r.URL(), flightsJob))
	d.health("flights", "ok")
	return d, r
}

// withGate is withFlights with a gate between the coordinator and Redis.
func withGate(t *testing.T) (*service, *redistest.Server, *gate) {
	t.Helper()
	r := startRedis(t)
	put(t, r.URL(), "flights", 130, "old")
	g := newGate(t, r.Addr)
	d := start(t, yaml(t, strings.Replace(r.URL(), r.Addr, g.addr, 1), flightsJob))
	d.health("flights", "ok")
	return d, r, g
}

// field reads one element of the job's state.
func field(r *redistest.Server, name string) any {
	return r.Do("HGET", "streaming:runtime:flights:cg:stats:topic:flights:p:3:state:count:total", name)
}

var restoreAnswers = map[string]struct {
	answer   string
	terminal bool
	code     int
	says     string
}{
	"n":            {"n\n", true, exitFailed, "not confirmed; nothing was changed"},
	"only return":  {"\n", true, exitFailed, "not confirmed"},
	"another word": {"yessir\n", true, exitFailed, "not confirmed"},
	"end of input": {"", true, exitFailed, "not confirmed"},
	"no terminal":  {"y\n", false, exitUsage, "stdin is no terminal"},
}

func TestRestoreAsksBeforeItReplacesAnything(t *testing.T) {
	d, r := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	put(t, r.URL(), "flights", 131, "new")
	restore := func(answer string, terminal bool, args ...string) result {
		d.in, d.terminal = strings.NewReader(answer), terminal
		defer func() { d.in, d.terminal = nil, false }()
		return d.run(append([]string{"restore", "flights"}, args...)...)
	}
	for name, c := range restoreAnswers {
		res := restore(c.answer, c.terminal)
		require.Equal(t, c.code, res.code, name)
		require.Contains(t, res.err, c.says, name)
		require.Empty(t, res.out, name)
		require.Equal(t, c.terminal, strings.Contains(res.err, "Restore checkpoint 1"), "the plan is shown before the question: %s", name)
		require.Equal(t, `"new-7"`, field(r, "s:key-7"), name)
	}
	require.Len(t, d.object("checkpoint", "list", "flights")["items"], 1, "no undo checkpoint was taken either")

	res := restore("Yes\n", true)
	require.Equal(t, exitDone, res.code, res.err)
	require.Contains(t, res.err, `Replace the live state of job "flights" by checkpoint 1? [y/N]`)
	require.Contains(t, res.out, "checkpoint 1 is live")
	require.Equal(t, `"old-7"`, field(r, "s:key-7"))
	require.Nil(t, field(r, "s:key-130"))

	// "y" without a line's end is an answer too.
	d.in, d.terminal = strings.NewReader("y"), true
	undone := d.run("undo", "flights")
	d.in, d.terminal = nil, false
	require.Equal(t, exitDone, undone.code, undone.err)
	require.Equal(t, `"new-130"`, field(r, "s:key-130"))
}

func TestEveryDestructiveCommandAsks(t *testing.T) {
	d, r := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	put(t, r.URL(), "flights", 131, "new")
	d.ok("restore", "flights", "--yes", "--checkpoint", "latest")
	before := d.object("job", "show", "flights")
	for _, line := range []string{
		"restore flights", "undo flights", "rescale flights -p 3", "job delete flights", "job delete flights --purge", "checkpoint delete flights 1",
	} {
		require.Contains(t, d.refused(exitUsage, strings.Fields(line)...).Hint, "--yes", line)
	}
	for _, line := range []string{"restore flights --dry-run", "undo flights --dry-run", "rescale flights -p 3 --dry-run"} {
		d.ok(strings.Fields(line)...)
		d.object(strings.Fields(line)...)
	}
	after := d.object("job", "show", "flights")
	for _, same := range []string{"epoch", "parallelism", "undo", "lastCheckpoint"} {
		require.Equal(t, before[same], after[same], same)
	}
}

func TestAnInterruptAtTheQuestionChangesNothing(t *testing.T) {
	d, r := withFlights(t)
	d.ok("checkpoint", "create", "flights")
	put(t, r.URL(), "flights", 131, "new")
	keyboard, person := io.Pipe()
	d.in, d.terminal = keyboard, true
	var out, errs record
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- d.app(&out, &errs).run(ctx, []string{"coordinator", "restore", "flights"}) }()
	require.Eventually(t, func() bool { return strings.Contains(errs.String(), "[y/N]") }, 10*time.Second, 5*time.Millisecond)
	interrupt()
	require.Equal(t, exitFailed, <-ended, "it doesn't wait for the answer")
	require.Contains(t, errs.String(), "error: interrupted")
	require.NoError(t, person.Close())
	require.Equal(t, `"new-7"`, field(r, "s:key-7"))
}

func TestAnInterruptDuringAWaitAbortsTheOperation(t *testing.T) {
	d, _, gate := withGate(t)
	reached := gate.arm("PAUSE")
	var out, errs record
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	app := d.app(&out, &errs)
	go func() {
		ended <- app.run(ctx, []string{"coordinator", "checkpoint", "create", "flights", "--note", "n"})
	}()
	<-reached
	interrupt()
	require.Equal(t, exitFailed, <-ended)
	require.Empty(t, out.String())
	require.Regexp(t, `^error: .*aborted on request`, errs.String())
	gate.open()
	cp := d.object("checkpoint", "show", "flights", "1")
	require.Equal(t, "failed", cp["state"])
	require.Equal(t, "aborted", cp["failure"].(map[string]any)["reason"])
	d.ok("checkpoint", "create", "flights")
	require.True(t, d.object("store", "verify")["ok"].(bool))
}

func TestWithoutWaitingTheOperationIsShown(t *testing.T) {
	d, _ := withFlights(t)
	op := d.object("checkpoint", "create", "flights", "--wait=false")
	require.Equal(t, "checkpoint", op["kind"])
	require.Regexp(t, `^op-`, op["id"])
	d.logged("checkpoint 1 completed")
	require.Regexp(t, `^operation op-\S+ \(restore\) started\n$`, d.ok("restore", "flights", "--yes", "--wait=false"))
	d.logged("restore done")
}

func TestBusyAndGuards(t *testing.T) {
	d, _, gate := withGate(t)
	require.Equal(t, fault.NoCheckpoint, d.refused(exitAbsent, "restore", "flights", "--dry-run").Code)
	require.Equal(t, fault.NoCheckpoint, d.refused(exitAbsent, "undo", "flights", "--yes").Code)
	require.Equal(t, fault.NoCheckpoint, d.refused(exitAbsent, "checkpoint", "show", "flights", "9").Code)
	require.Equal(t, fault.NoJob, d.refused(exitAbsent, "checkpoint", "create", "flight").Code)
	require.Equal(t, fault.Usage, d.refused(exitUsage, "checkpoint", "create", "flights", "--name", "latest").Code)
	d.ok("checkpoint", "create", "flights", "--name", "sp")
	require.Equal(t, fault.Refused, d.refused(exitRefused, "checkpoint", "create", "flights", "--name", "sp").Code)
	require.Equal(t, fault.Refused, d.refused(exitRefused, "rescale", "flights", "-p", "11", "--dry-run").Code)
	require.Contains(t, d.refused(exitRefused, "checkpoint", "delete", "flights", "sp", "--yes").Hint, "--force")
	reached := gate.arm("PAUSE")
	d.ok("checkpoint", "create", "flights", "--wait=false")
	<-reached
	require.Equal(t, fault.Busy, d.refused(exitRefused, "restore", "flights", "--yes").Code)
	require.Equal(t, fault.Busy, d.refused(exitRefused, "job", "delete", "flights", "--yes").Code)
	gate.open()
	d.logged("checkpoint 2 completed")
}

func TestProgressIsShownOnATerminalAndEnds(t *testing.T) {
	d, _, gate := withGate(t)
	reached := gate.arm("PAUSE")
	d.terminal = true
	var out, errs record
	ended := make(chan int, 1)
	app := d.app(&out, &errs)
	go func() {
		ended <- app.run(context.Background(), []string{"coordinator", "checkpoint", "create", "flights"})
	}()
	d.terminal = false
	<-reached
	require.Eventually(t, func() bool { return strings.Contains(errs.String(), "checkpoint copy") }, 10*time.Second, 5*time.Millisecond)
	require.Contains(t, errs.String(), " keys, ", "progress is on stderr")
	gate.open()
	require.Equal(t, exitDone, <-ended, errs.String())
	require.Contains(t, out.String(), "checkpoint 1 completed in")
	require.NotContains(t, out.String(), "\x1b")

	// The bar ends too when the coordinator goes away.
	d.terminal = true
	reached = gate.arm("PAUSE")
	app = d.app(&out, &errs)
	go func() {
		ended <- app.run(context.Background(), []string{"coordinator", "checkpoint", "create", "flights"})
	}()
	d.terminal = false
	<-reached
	d.hurry()
	require.Equal(t, exitFailed, <-ended, errs.String())
	require.Contains(t, errs.String(), "the coordinator is stopping")
	require.Equal(t, exitDone, d.end())
	require.Equal(t, fault.NoDaemon, d.refused(exitNoDaemon, "job", "list").Code)
}
