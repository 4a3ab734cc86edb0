package api

import (
	"context"
	"net/http"

	"keyframe/coordinator/alarm"
)

// Alarms is how deliveries to hooks and heartbeats stand.
type Alarms struct {
	Hooks     []alarm.HookStatus    `json:"hooks"` // in the order of the configuration
	Heartbeat alarm.HeartbeatStatus `json:"heartbeat"`
}

func (r routes) alarms() {
	add(r, http.MethodGet, "/alarms", "show-alarms", "How deliveries to hooks and heartbeats stand", 200, func(context.Context, *none) (Alarms, error) {
		if r.Alarms == nil {
			return Alarms{Hooks: []alarm.HookStatus{}}, nil
		}
		a := r.Alarms()
		a.Hooks = nonNil(a.Hooks)
		return a, nil
	}, viewer)
}
