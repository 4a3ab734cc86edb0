package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
)

// abortTime is how long an interrupted command waits for the operation to end.
const abortTime = 15 * time.Second

func waitFlag() cli.Flag {
	return &cli.BoolFlag{Name: "wait", Value: true, Usage: "wait for the end; --wait=false shows the operation to follow"}
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "don't ask"}
}

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "show the plan and change nothing"}
}

// follow waits for an operation, with progress on a terminal. An interrupt
// asks the coordinator to stop the operation and waits for its clean end.
func (a *app) follow(ctx context.Context, c *api.Client, op api.Operation) (api.Operation, error) {
	done, err := a.watch(ctx, c, op)
	if ctx.Err() == nil || done.Final() {
		return done, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	if err := c.Call(late, http.MethodDelete, "/operations/"+api.Segment(op.ID), nil, &done); err != nil {
		return done, err
	}
	done, err = c.Follow(late, done, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		hint := "`coordinator job show " + op.Job + "` shows it"
		if op.Job == "" { // of the store
			hint = "the coordinator's log tells when it has ended"
		}
		return done, fault.New(fault.Failed, hint, "operation %s goes on", op.ID)
	}
	return done, err
}

// watch follows an operation and shows how far it is.
func (a *app) watch(ctx context.Context, c *api.Client, op api.Operation) (api.Operation, error) {
	if !a.errTerminal {
		return c.Follow(ctx, op, nil)
	}
	show, end := a.bar()
	defer end() // before anything else is written
	return c.Follow(ctx, op, show)
}

// bar shows an operation's progress on stderr until end is called.
func (a *app) bar() (show func(api.Operation), end func()) {
	p := mpb.New(mpb.WithOutput(a.err), mpb.WithWidth(40), mpb.WithAutoRefresh())
	var last atomic.Pointer[api.Operation] // the bar is drawn by another goroutine
	last.Store(&api.Operation{})
	b := p.AddBar(0,
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			return fmt.Sprintf("%s %s", last.Load().Kind, last.Load().Progress.Phase)
		}, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			g := last.Load().Progress
			if last.Load().Job == "" { // of the store: there are only bytes
				return fmt.Sprintf("%s of %s", size(g.Bytes), size(g.TotalBytes))
			}
			return fmt.Sprintf("%s keys, %s elements, %s", count(g.Keys), count(g.Elements), size(g.Bytes))
		})))
	end = func() {
		b.Abort(true) // a bar that isn't complete would be waited for
		p.Wait()
	}
	return func(op api.Operation) {
		last.Store(&op)
		total, done := op.Progress.TotalElements, op.Progress.Elements
		if op.Job == "" {
			total, done = op.Progress.TotalBytes, op.Progress.Bytes
		}
		// The state may have grown since the total was known.
		b.SetTotal(int64(max(total, done+1)), false)
		b.SetCurrent(int64(done))
	}, end
}

// confirm shows the plan, if there is one, and asks before something that can't
// simply be taken back. Without a terminal there is nobody to ask.
func (a *app) confirm(ctx *cli.Context, plan func(io.Writer), question string) error {
	if ctx.Bool("yes") {
		return nil
	}
	if !a.inTerminal {
		hint := "give --yes"
		for _, f := range ctx.Command.Flags {
			if f.Names()[0] == "dry-run" {
				hint += ", or --dry-run to see the plan only"
			}
		}
		return fault.New(fault.Usage, hint, "%s: nobody can be asked, stdin is no terminal", ctx.Command.Name)
	}
	if plan != nil {
		plan(a.err)
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	line, err := read(ctx.Context, func() (string, error) { return bufio.NewReader(a.in).ReadString('\n') })
	if err != nil && !errors.Is(err, io.EOF) {
		return fault.Wrap(err, fault.Failed, "nothing was changed", "read the answer")
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return fault.New(fault.Failed, "", "not confirmed; nothing was changed")
}

// read waits for something to be read from stdin, or for an interrupt, which
// the read itself doesn't see.
func read[T any](ctx context.Context, from func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := from()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
