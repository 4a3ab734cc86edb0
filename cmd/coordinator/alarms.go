package main

import (
	"context"

	"keyframe/coordinator"
	"keyframe/coordinator/alarm"
	"keyframe/coordinator/metrics"
)

// startHooks begins the deliveries to hooks. What becomes of them is told to
// the others. The returned function ends them: what waits is tried once more.
func (d *daemon) startHooks(others coordinator.Listener) (hooks *alarm.Dispatcher, end func()) {
	hooks = alarm.NewDispatcher(alarm.Options{Alarms: d.file.Alarms, Version: versionText(), Tell: others})
	return hooks, func() {
		ctx, cancel := context.WithTimeout(context.Background(), serveTime)
		defer cancel()
		hooks.Close(ctx)
	}
}

// startHeartbeat begins the heartbeat, and shows its figures and those of the
// hooks. The returned function ends it.
func (d *daemon) startHeartbeat(c *coordinator.Coordinator, hooks *alarm.Dispatcher, m *metrics.Metrics, others coordinator.Listener) (end func()) {
	beat := alarm.NewHeartbeat(alarm.Options{Alarms: d.file.Alarms, Version: versionText(), Jobs: c.Jobs, Tell: others})
	m.WatchAlarms(hooks.Hooks, beat.Status)
	return beat.Close
}
