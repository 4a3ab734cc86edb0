package api

import (
	"context"
	"net/http"

	"keyframe/coordinator/audit"
	"keyframe/coordinator/fault"
)

// auditInput says which lines are wanted.
type auditInput struct {
	Job   string `query:"job" doc:"lines about this job only"`
	After uint64 `query:"after" doc:"lines after this number, oldest first; the newest lines when left out"`
	First bool   `query:"first" doc:"with after left out: from the first line on"`
	Limit int    `query:"limit" minimum:"0" maximum:"1000" doc:"how many lines at most, 100 when left out"`
}

// defaultPage is how many lines of the audit log one answer has.
const defaultPage = 100

// AuditPage is a part of the audit log, oldest first. To go on, ask for what is
// after the last line's number.
type AuditPage struct {
	Path  string        `json:"path"`
	Last  uint64        `json:"last" doc:"Number of the newest line of all"`
	Items []audit.Entry `json:"items"`
}

// errNoAudit is for a service that writes none, which only tests make.
func errNoAudit() error { return fault.New(fault.Refused, "", "this coordinator writes no audit log") }

func (r routes) audits() {
	add(r, http.MethodGet, "/audit", "list-audit", "Who changed what", 200, func(ctx context.Context, in *auditInput) (AuditPage, error) {
		if r.Audit == nil {
			return AuditPage{}, errNoAudit()
		}
		q := audit.Query{After: in.After, Newest: in.After == 0 && !in.First, Job: in.Job, Limit: in.Limit}
		if q.Limit == 0 {
			q.Limit = defaultPage
		}
		log := r.Audit.log
		// Looked at first, so that a log without a line since the start says so.
		if err := log.Check(); err != nil {
			return AuditPage{}, err
		}
		all, err := log.Read(ctx, q)
		if err != nil {
			return AuditPage{}, fault.Wrap(err, fault.Corrupt, "run `coordinator audit verify`", "the audit log")
		}
		return AuditPage{Path: log.Path(), Last: log.Head().Seq, Items: nonNil(all)}, nil
	}, admin)
	add(r, http.MethodGet, "/audit/verify", "verify-audit", "Follow the audit log's chain and report every break", 200, func(ctx context.Context, _ *none) (audit.Report, error) {
		if r.Audit == nil {
			return audit.Report{}, errNoAudit()
		}
		out, err := r.Audit.log.Verify(ctx)
		if err != nil {
			return out, fault.Wrap(err, fault.Store, "", "verify the audit log")
		}
		return out, nil
	}, admin)
}
