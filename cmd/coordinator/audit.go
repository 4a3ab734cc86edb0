package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/audit"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// bucketAudit holds what is known of each audit log, by its path.
const bucketAudit = "audit"

// auditAnchor remembers the audit log's newest line, and where its files end, in
// the checkpoint store.
type auditAnchor struct {
	journal snapshot.Journal
	path    string
}

var _ audit.Anchor = auditAnchor{}

// Load implements audit.Anchor.
func (a auditAnchor) Load() (h audit.Known, err error) {
	value, ok, err := a.journal.Get(context.Background(), bucketAudit, a.path)
	if err != nil || !ok {
		return h, err
	}
	return h, json.Unmarshal(value, &h)
}

// Save implements audit.Anchor.
func (a auditAnchor) Save(h audit.Known) error {
	value, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return a.journal.Put(context.Background(), bucketAudit, a.path, value)
}

// openAudit gets the audit log ready. One that can't be written is told and
// keeps changes from being made; it is tried again with each.
func openAudit(path string, journal snapshot.Journal, log hclog.Logger) (*api.Auditor, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Config, "give audit.path as a whole path", "the audit log %q", path)
	}
	l := audit.New(whole, audit.Options{Anchor: auditAnchor{journal, whole}})
	if err := l.Check(); err != nil {
		log.Error("changes are refused: " + err.Error())
	} else {
		// A copy of the hash that who can write the file may not be able to reach.
		log.Info("audit log", "file", whole, "lines", l.Head().Seq, "hash", l.Head().Hash)
	}
	if err := l.Beginning(context.Background()); err != nil {
		// No reason to refuse changes: they are written behind it all the same.
		log.Error("lines of the audit log may have been removed: " + err.Error())
	}
	return api.NewAuditor(l, func(err error) { log.Error("a line is missing in the audit log: " + err.Error()) }), nil
}

// closeAudit writes what is left and tells where the log ends.
func closeAudit(a *api.Auditor, log hclog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), serveTime)
	defer cancel()
	head, err := a.Close(ctx)
	if err != nil {
		log.Error(err.Error())
	}
	log.Info("audit log", "lines", head.Seq, "hash", head.Hash)
}

func (a *app) auditCommand() *cli.Command {
	return &cli.Command{Name: "audit", Usage: "who changed what; `audit verify` follows the log's chain, `audit verify FILE` without a coordinator", ArgsUsage: "[JOB] | verify [FILE]",
		Action: a.audit, Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Usage: "lines about this job only, whatever its name"},
			&cli.Uint64Flag{Name: "after", Usage: "lines after this number, oldest first; the newest lines without it"},
			&cli.IntFlag{Name: "limit", Usage: "how many lines", Value: 50}}}
}

func (a *app) audit(ctx *cli.Context) error {
	args := ctx.Args().Slice()
	if len(args) > 0 && args[0] == "verify" && !ctx.IsSet("job") {
		return a.auditVerify(ctx, args[1:])
	}
	args, c, err := a.begin(ctx, "[JOB]")
	if err != nil {
		return err
	}
	job := args[0]
	if ctx.IsSet("job") {
		if job != "" {
			return fault.New(fault.Usage, "give the job once", "job %q and --job %q", job, ctx.String("job"))
		}
		job = ctx.String("job")
	}
	limit := ctx.Int("limit")
	if limit < 1 || limit > audit.MaxPage {
		return fault.New(fault.Usage, fmt.Sprintf("give 1 to %d", audit.MaxPage), "limit %d", limit)
	}
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if job != "" {
		q.Set("job", job)
	}
	if ctx.IsSet("after") {
		q.Set("after", strconv.FormatUint(ctx.Uint64("after"), 10))
		q.Set("first", "true")
	}
	var page api.AuditPage
	if err := c.Call(ctx.Context, http.MethodGet, "/audit?"+q.Encode(), nil, &page); err != nil {
		return err
	}
	return a.show(page, func(w io.Writer) { showAudit(w, page) })
}

func showAudit(w io.Writer, page api.AuditPage) {
	t := newTable(w, "SEQ", "TIME", "WHO", "FROM", "ACTION", "JOB", "OUTCOME", "WHAT")
	for _, e := range page.Items {
		how := string(e.Phase)
		if e.Outcome != "" {
			how = string(e.Outcome)
		}
		what := details(e.Params) + details(e.Plan)
		if e.Error != "" {
			what += sentence(e.Error)
		}
		t.AppendRow([]any{e.Seq, when(e.At), quoted(e.Principal), quoted(e.Source), quoted(e.Action), quoted(e.Job), how, strings.TrimSpace(what)})
	}
	t.Render()
	fmt.Fprintf(w, "%s of %s\n", number(len(page.Items), "line"), count(page.Last))
}

// details are a line's values in the order of their names.
func details(m map[string]any) string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		value, err := json.Marshal(m[name])
		if err != nil { // it came as JSON
			continue
		}
		fmt.Fprintf(&b, "%s=%s ", quoted(name), quoted(string(value)))
	}
	return b.String()
}

// auditVerify asks the coordinator, or reads a log itself when it is named.
func (a *app) auditVerify(ctx *cli.Context, args []string) error {
	var out audit.Report
	switch len(args) {
	case 0:
		c, err := a.client(ctx)
		if err != nil {
			return err
		}
		if err := c.Call(ctx.Context, http.MethodGet, "/audit/verify", nil, &out); err != nil {
			return err
		}
	case 1:
		var err error
		if out, err = audit.Verify(ctx.Context, args[0]); err != nil {
			if errors.Is(err, context.Canceled) {
				return err
			}
			return fault.Wrap(err, fault.Usage, "give the path of an audit log, such as keyframe.db.audit", "audit verify")
		}
	default:
		return fault.New(fault.Usage, "usage: coordinator audit verify [FILE]", "unexpected argument %q", args[1])
	}
	err := a.show(out, func(w io.Writer) {
		for _, p := range out.Problems {
			fmt.Fprintln(w, sentence(p))
		}
		fmt.Fprintf(w, "%s: lines %d to %d in %s, the last has SHA-256 %s; %s\n", quoted(out.Path), out.First, out.Last, number(out.Files, "file"), out.Hash, number(len(out.Problems), "problem"))
	})
	if err == nil && !out.OK {
		return told(fault.Problems, "problems were found")
	}
	return err
}
