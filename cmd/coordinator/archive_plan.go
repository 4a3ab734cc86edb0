package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// planFrom asks what the restore of an archive would do. Nothing is imported.
func (a *app) planFrom(ctx *cli.Context, c *api.Client, job string, from source) (restore.Plan, error) {
	q := restoreQuery(ctx)
	q.Set("job", job)
	var plan restore.Plan
	if err := sendArchive(ctx, c, "/import/plan?"+q.Encode(), from.path, &plan); err != nil {
		return plan, err
	}
	plan.Warnings = append(plan.Warnings, from.notes...)
	return plan, nil
}

func restoreQuery(ctx *cli.Context) url.Values {
	q := url.Values{}
	if as := ctx.String("as"); as != "" {
		q.Set("as", as)
	}
	if ctx.Bool("accept-schema") {
		q.Set("acceptSchema", "true")
	}
	return q
}

func showPlanFrom(w io.Writer, from source, plan restore.Plan) {
	fmt.Fprintf(w, "%s:\n", quoted(from.path))
	showRestorePlan(w, plan)
}

// source is the archive that --from means, and how it was chosen.
type source struct {
	path  string
	notes []string // why it, and what newer ones were passed over; none for a file
}

// fromPath is the archive that --from means for a job: the file, or of a
// directory what was live last.
func fromPath(ctx *cli.Context, job string) (source, error) {
	if ctx.IsSet("checkpoint") {
		return source{}, fault.New(fault.Usage, "give one of them", "--from and --checkpoint both say what to restore")
	}
	all, err := archives(ctx.String("from"))
	if err != nil {
		return source{}, err
	}
	if len(all) > 1 {
		all = slices.DeleteFunc(all, func(f found) bool { return f.of.Job != job })
		if len(all) == 0 {
			return source{}, fault.New(fault.NoCheckpoint, "give the file itself", "%s has no checkpoint of job %q", ctx.String("from"), job)
		}
	}
	if len(all) == 1 && all[0].path == ctx.String("from") {
		return source{path: all[0].path}, nil
	}
	groups := byFolder(all)
	best := slices.MaxFunc(groups, func(x, y folder) int {
		return cmp.Or(x.chosen.TakenAt.Compare(y.chosen.TakenAt), cmp.Compare(x.path, y.path))
	})
	s := source{path: best.archives[best.chosen.Index].path, notes: best.notes()}
	for _, g := range groups {
		if g.path != best.path {
			s.notes = append(s.notes, fmt.Sprintf("%s has copies of job %q too, the chosen of them older", g.path, job))
		}
	}
	return s, nil
}

// folder is the archives of one job in one directory.
type folder struct {
	path     string
	archives []found
	chosen   coordinator.ArchiveChoice
	trouble  string // with the file that says what is live
}

// byFolder tells, for each folder and job, what was live last. The order is that
// of the archives.
func byFolder(all []found) (groups []folder) {
	for _, f := range all {
		dir := filepath.Dir(f.path)
		i := slices.IndexFunc(groups, func(g folder) bool { return g.path == dir && g.archives[0].of.Job == f.of.Job })
		if i < 0 {
			i, groups = len(groups), append(groups, folder{path: dir})
		}
		groups[i].archives = append(groups[i].archives, f)
	}
	for i := range groups {
		groups[i].choose()
	}
	return groups
}

func (g *folder) choose() {
	manifests := make([]*snapshot.Manifest, 0, len(g.archives))
	for _, f := range g.archives {
		manifests = append(manifests, f.info)
	}
	var live *archive.Live
	l, err := archive.ReadLive(g.path)
	switch {
	case err == nil && l.Job == g.archives[0].of.Job:
		live = &l
	case err != nil && !archive.NoLive(err):
		g.trouble = fmt.Sprintf("what says which checkpoint is live can't be read, and is not gone by: %v", err)
	}
	g.chosen = coordinator.ChooseArchive(manifests, live)
}

func (g folder) notes() []string {
	all := []string{g.chosen.Why}
	for _, i := range slices.Backward(slices.Sorted(maps.Keys(g.chosen.Passed))) {
		all = append(all, g.chosen.Passed[i])
	}
	if g.trouble != "" {
		all = append(all, g.trouble)
	}
	return all
}

// branch is what a folder says of one of its archives.
func (g folder) branch(i int) coordinator.Branch {
	if g.chosen.GaveUp[i] {
		return coordinator.BranchGivenUp
	}
	return coordinator.BranchLive
}

// choice is what a folder says of one archive.
type choice struct {
	chosen bool
	why    string
}

// choices are what the folders say, by path.
func choices(all []found, of string) map[string]choice {
	out := map[string]choice{}
	if len(all) == 1 && all[0].path == of {
		return out
	}
	for _, g := range byFolder(all) {
		for i, f := range g.archives {
			out[f.path] = choice{why: g.chosen.Passed[i]}
		}
		out[g.archives[g.chosen.Index].path] = choice{true, g.chosen.Why}
	}
	return out
}

// branches are what the folders say of archives, by path. A file that was named
// alone says nothing.
func branches(all []found, of string) map[string]coordinator.Branch {
	out := map[string]coordinator.Branch{}
	if len(all) == 1 && all[0].path == of {
		return out
	}
	for _, g := range byFolder(all) {
		for i, f := range g.archives {
			out[f.path] = g.branch(i)
		}
	}
	return out
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
