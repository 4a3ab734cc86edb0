package restore

import (
	"context"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// Content pushes what a restore of req would have put in place if no key had
// expired: the checkpoint's keys under the job's own root. It reads the
// checkpoint and nothing else. Errors are those of Plan.
func (e *Executor) Content(ctx context.Context, req Request, sink snapshot.Sink) error {
	if req.From == "" {
		req.From = req.Job.Name
	}
	r, err := e.open(ctx, req)
	if err != nil {
		return err
	}
	defer r.release()
	return Fault(e.feed(ctx, r.manifest, req.Job, sink, nil), fault.Store, "read checkpoint %d of job %q", req.Checkpoint, req.From)
}
