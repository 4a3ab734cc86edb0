package api

import (
	"context"
	"net/http"
)

// drills registers restores on trial.
func (r routes) drills() {
	type drillInput struct {
		JobPath
		Checkpoint string `query:"checkpoint" doc:"id or savepoint name; the newest restorable one when left out"`
	}
	add(r, http.MethodPost, "/jobs/{job}/drill", "drill", "Restore a checkpoint on trial, beside the state, and compare every element", 202,
		func(ctx context.Context, in *drillInput) (Operation, error) {
			which := in.Checkpoint
			if which == latest {
				which = ""
			}
			return started(r.Coordinator.Drill(ctx, in.Job, which))
		}, operator)
}
