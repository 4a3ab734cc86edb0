package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/restore"
)

// archivePlanPath is the other route whose body is an archive.
const archivePlanPath = importPath + "/plan"

// streamed says that a request's body may be larger than maxBody: it goes to a
// file as it comes, with bounds of its own.
func streamed(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == importPath || r.URL.Path == archivePlanPath)
}

// archivePlan registers what a restore of an archive would do. It is an
// operator's, since it takes room beside the store while it is worked on, and is
// written to the audit log as every request that brings an archive.
func (r routes) archivePlan() {
	op := huma.Operation{OperationID: "plan-restore-archive", Method: http.MethodPost, Path: archivePlanPath,
		Summary: "What the restore of an archive would do", DefaultStatus: 200, Errors: errorStatuses, BodyReadTimeout: -1, MaxBodyBytes: maxBody, // the library reads no body here
		RequestBody: &huma.RequestBody{Required: true, Description: "the bytes of an archive", Content: bytesOf()}}
	declare(&op, operator)
	huma.Register(r.api, op, func(ctx context.Context, in *archivePlanInput) (*body[restore.Plan], error) {
		plan, err := withAudit(ctx, r, in, r.planArchive)
		if err != nil {
			return nil, problem(err)
		}
		return &body[restore.Plan]{Body: plan}, nil
	})
}

func (r routes) planArchive(ctx context.Context, in *archivePlanInput) (restore.Plan, error) {
	a, err := r.receive(in.from)
	if err != nil {
		return restore.Plan{}, err
	}
	plan, err := r.Coordinator.PlanArchive(ctx, in.Job, a, coordinator.RestoreRequest{As: in.As, AcceptSchema: in.AcceptSchema})
	if closeErr := a.Close(); err != nil || closeErr != nil {
		return restore.Plan{}, errors.Join(err, closeErr)
	}
	return plan, nil
}

// archivePlanInput is what a plan from an archive is asked with; the archive is
// read by the handler itself.
type archivePlanInput struct {
	Job          string `query:"job" doc:"job whose history it would be imported into; the one that the archive names when empty"`
	As           string `query:"as" doc:"job to restore into; accepts another job name, prefix or server"`
	AcceptSchema bool   `query:"acceptSchema" doc:"accept registry entries that differ from the live ones"`
	from         huma.Context
}

var _ huma.Resolver = (*archivePlanInput)(nil)

// Resolve implements huma.Resolver.
func (in *archivePlanInput) Resolve(ctx huma.Context) []error {
	in.from = ctx
	return nil
}
