package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
)

// planFrom shows what the restore of an archive would do. Nothing is imported.
func (a *app) planFrom(ctx *cli.Context, c *api.Client, job string) error {
	path, err := fromPath(ctx, job)
	if err != nil {
		return err
	}
	q := url.Values{"job": {job}}
	if as := ctx.String("as"); as != "" {
		q.Set("as", as)
	}
	if ctx.Bool("accept-schema") {
		q.Set("acceptSchema", "true")
	}
	var plan restore.Plan
	if err := sendArchive(ctx, c, "/import/plan?"+q.Encode(), path, &plan); err != nil {
		return err
	}
	return a.show(plan, func(w io.Writer) {
		fmt.Fprintf(w, "%s:\n", quoted(path))
		showRestorePlan(w, plan)
	})
}

// fromPath is the archive that --from means for a job: the file, or the newest
// cut of the job in a directory.
func fromPath(ctx *cli.Context, job string) (string, error) {
	if ctx.IsSet("checkpoint") {
		return "", fault.New(fault.Usage, "give one of them", "--from and --checkpoint both say what to restore")
	}
	all, err := archives(ctx.String("from"))
	if err != nil {
		return "", err
	}
	if len(all) > 1 {
		all = slices.DeleteFunc(all, func(f found) bool { return f.of.Job != job })
		if len(all) == 0 {
			return "", fault.New(fault.NoCheckpoint, "give the file itself", "%s has no checkpoint of job %q", ctx.String("from"), job)
		}
	}
	newest := slices.MaxFunc(all, func(x, y found) int { return cmp.Or(x.info.CutAt.Compare(y.info.CutAt), cmp.Compare(x.of.ID, y.of.ID)) })
	return newest.path, nil
}

// sendArchive posts a file and decodes the answer.
func sendArchive(ctx *cli.Context, c *api.Client, to, path string, out any) error {
	f, err := os.Open(path)
	if err != nil {
		return fault.Wrap(err, fault.Usage, "", "archive")
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return fault.Wrap(err, fault.Usage, "", "archive")
	}
	return c.Upload(ctx.Context, to, f, info.Size(), out)
}
