package coordinator

import (
	"context"
	"fmt"
	"time"

	"keyframe/coordinator/doctor"
	"keyframe/coordinator/fault"
	"keyframe/statebackend"
)

// MaxDoctorWatch is how long an examination may watch the job's writers.
const MaxDoctorWatch = time.Minute

// Doctor examines a job's state and its server, and changes nothing. It may
// run beside anything else; of one job only one runs at a time. watch is how
// long the job's writers are watched at least, up to MaxDoctorWatch.
func (c *Coordinator) Doctor(ctx context.Context, name string, watch time.Duration) (doctor.Report, error) {
	j, err := c.find(name)
	if err != nil {
		return doctor.Report{}, err
	}
	if watch < 0 || watch > MaxDoctorWatch {
		return doctor.Report{}, fault.New(fault.Usage, "give a duration from 0s to 1m", "watch the writers for %s", watch)
	}
	store, ok := c.opts.Backend.(doctor.Store)
	if !ok {
		return doctor.Report{}, fault.Wrap(statebackend.ErrUnsupported, fault.Refused, "", "doctor of job %q", name)
	}
	if !j.examined.CompareAndSwap(false, true) {
		return doctor.Report{}, fault.New(fault.Busy, "wait for its report", "job %q is being examined already", name)
	}
	defer j.examined.Store(false)
	spec := j.config()
	req := doctor.Request{
		Job: spec.Key(), Rule: spec.Rule(), Last: j.lastGood(),
		MaxReadRate: int64(spec.Checkpoint.MaxReadRate), Watch: watch,
	}
	for _, s := range spec.Sources {
		req.Sources = append(req.Sources, statebackend.SourceRef{Topic: s.Topic, Group: s.Group})
	}
	if c.drillsBeside() {
		if req.Scratch, err = c.orphans(ctx, j); err != nil {
			return doctor.Report{}, Explain(fmt.Errorf("look for scratch keys of job %q: %w", name, err))
		}
	}
	r, err := doctor.Examine(ctx, store, req)
	if err != nil {
		return doctor.Report{}, Explain(err)
	}
	return r, nil
}
