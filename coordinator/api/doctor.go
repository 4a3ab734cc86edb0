package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"keyframe/coordinator/doctor"
	"keyframe/coordinator/fault"
)

// doctorInput is what an examination may be told.
type doctorInput struct {
	JobPath
	Watch string `query:"watch" doc:"how long the job's writers are watched at least, such as 2s; at most 1m, 2s when left out"`
}

// defaultWatch is long enough for a worker that writes at all to be seen.
const defaultWatch = 2 * time.Second

func (r routes) doctor() {
	add(r, http.MethodGet, "/jobs/{job}/doctor", "doctor", "Examine a job's state and its server, read-only", 200, func(ctx context.Context, in *doctorInput) (doctor.Report, error) {
		watch := defaultWatch
		if in.Watch != "" {
			var err error
			if watch, err = time.ParseDuration(in.Watch); err != nil {
				return doctor.Report{}, fault.New(fault.Usage, "give a duration such as 2s", "watch %q", in.Watch)
			}
		}
		return r.Coordinator.Doctor(ctx, in.Job, watch)
	}, operator)
}

// Doctor has a job examined. watch is how long its writers are watched at
// least; "" is the coordinator's default.
func (c *Client) Doctor(ctx context.Context, job, watch string) (doctor.Report, error) {
	path := "/jobs/" + Segment(job) + "/doctor"
	if watch != "" {
		path += "?" + url.Values{"watch": {watch}}.Encode()
	}
	var out doctor.Report
	err := c.Call(ctx, http.MethodGet, path, nil, &out)
	return out, err
}
