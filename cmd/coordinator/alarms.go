package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
	"keyframe/coordinator/api"
	"keyframe/coordinator/metrics"
)

// startHooks begins the deliveries to hooks. What becomes of them is told to
// the others. The returned function ends them: what waits is tried once more, and
// what is left then is tried after the next start.
func (d *daemon) startHooks(others coordinator.Listener) (hooks *alarm.Dispatcher, end func()) {
	hooks = alarm.NewDispatcher(alarm.Options{Alarms: d.file.Alarms, Version: versionText(), Tell: others, Journal: d.db.Journal()})
	return hooks, func() {
		ctx, cancel := context.WithTimeout(context.Background(), serveTime)
		defer cancel()
		hooks.Close(ctx)
	}
}

// startHeartbeat begins the heartbeat, and shows its figures and those of the
// hooks.
func (d *daemon) startHeartbeat(c *coordinator.Coordinator, hooks *alarm.Dispatcher, m *metrics.Metrics, others coordinator.Listener) *alarm.Heartbeat {
	beat := alarm.NewHeartbeat(alarm.Options{Alarms: d.file.Alarms, Version: versionText(), Jobs: c.Jobs, Tell: others})
	m.WatchAlarms(hooks.Hooks, beat.Status)
	return beat
}

// alarmsCommand shows what became of alarms.
func (a *app) alarmsCommand() *cli.Command {
	return &cli.Command{Name: "alarms", Usage: "show how deliveries to hooks and heartbeats stand", Action: a.alarms}
}

func (a *app) alarms(ctx *cli.Context) error {
	_, c, err := a.begin(ctx)
	if err != nil {
		return err
	}
	var out api.Alarms
	if err := c.Call(ctx.Context, http.MethodGet, "/alarms", nil, &out); err != nil {
		return err
	}
	return a.show(out, func(w io.Writer) { showAlarms(w, out) })
}

func showAlarms(w io.Writer, out api.Alarms) {
	if len(out.Hooks) == 0 {
		fmt.Fprintln(w, "no hooks are configured")
	}
	for _, h := range out.Hooks {
		waiting := h.Queued
		if h.Trying {
			waiting++
		}
		fmt.Fprintf(w, "hook %s (%s): %s waiting, %s delivered (%s), %s given up, %s dropped\n", quoted(h.Name), quoted(h.Target),
			count(uint64(waiting)), count(h.Delivered), lastTime(h.LastDeliveredAt), count(h.GivenUp), count(h.Dropped))
		if h.Failed > 0 {
			fmt.Fprintf(w, "  %s failed (%s)", number(int(h.Failed), "try"), lastTime(h.LastFailedAt))
			if h.LastError != "" {
				fmt.Fprintf(w, ": %s", sentence(h.LastError))
			}
			fmt.Fprintln(w)
		}
	}
	b := out.Heartbeat
	switch {
	case !b.On:
		fmt.Fprintln(w, "no heartbeat is configured")
	case b.Held:
		fmt.Fprintf(w, "the heartbeat is held back: something is wrong with a job (%s)\n", lastTime(b.LastSentAt))
	default:
		fmt.Fprintf(w, "heartbeat: %s sent (%s), %s failed\n", count(b.Sent), lastTime(b.LastSentAt), count(b.Failed))
	}
}

func lastTime(t *time.Time) string {
	if t == nil {
		return "never since the start"
	}
	return "the last " + when(*t)
}
