package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/api"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
)

// exportCommand is one half of moving checkpoints between hosts; importCommand is
// the other.
func (a *app) exportCommand() *cli.Command {
	return &cli.Command{Name: "export", Usage: "write a checkpoint to a file that restores alone", ArgsUsage: "JOB ID", Action: a.checkpointExport, Flags: []cli.Flag{
		&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "the new file; one that exists is refused"}}}
}

func (a *app) importCommand() *cli.Command {
	return &cli.Command{Name: "import", Usage: "bring checkpoints from files into a job's history", Action: a.checkpointImport, Flags: []cli.Flag{
		&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "a file that was exported, or a directory of them or of store.copies"},
		&cli.StringFlag{Name: "job", Usage: "job to import into; the one that the file names without it"},
		&cli.StringFlag{Name: "name", Usage: "make it a savepoint, kept until you delete it"},
		&cli.StringFlag{Name: "note", Usage: "a remark in the place of the checkpoint's own"}}}
}

// found is an archive that a command was pointed at.
type found struct {
	path string
	of   snapshot.Checkpoint
	info *snapshot.Manifest
}

// archives finds the archives that a path means: the file itself, or all in a
// directory and one level below, by job and id. One that can't be read is an
// error: what is skipped would look as if it weren't there.
func archives(path string) ([]found, error) {
	return archivesBut(path, func(_ string, err error) error { return err })
}

// archivesBut leaves out those that can't be read where bad gives no error.
func archivesBut(path string, bad func(path string, err error) error) ([]found, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "give a file that was exported, or a directory of them", "archive")
	}
	paths := []string{path}
	if info.IsDir() {
		paths = nil
		for _, depth := range []string{"*", "*/*"} {
			more, err := filepath.Glob(filepath.Join(escapeGlob(path), depth+archive.Suffix))
			if err != nil {
				return nil, fault.Wrap(err, fault.Usage, "", "look for archives in %s", path)
			}
			paths = append(paths, more...)
		}
		if len(paths) == 0 {
			return nil, fault.New(fault.NoCheckpoint, "the files of exports and copies end with "+archive.Suffix, "no archive is in %s", path)
		}
	}
	var all []found
	for _, p := range paths {
		a, err := openArchive(p)
		if err != nil {
			if err = bad(p, err); err != nil {
				return nil, err
			}
			continue
		}
		all = append(all, found{p, a.Manifest().Checkpoint, a.Manifest()})
		_ = a.Close() // it was only read
	}
	slices.SortStableFunc(all, func(x, y found) int { return cmp.Or(cmp.Compare(x.of.Job, y.of.Job), cmp.Compare(x.of.ID, y.of.ID)) })
	return all, nil
}

func openArchive(path string) (*archive.Archive, error) {
	a, err := archive.Open(path)
	switch {
	case err == nil:
		return a, nil
	case errors.Is(err, archive.ErrUnfinished):
		return nil, fault.Wrap(err, fault.Corrupt, "export it again", "read")
	}
	return nil, coordinator.Explain(err)
}

// escapeGlob makes a path stand for itself in a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

func needFile(ctx *cli.Context) (string, error) {
	if file := ctx.String("file"); file != "" {
		return file, nil
	}
	return "", fault.New(fault.Usage, "give it with -f", "no file is given")
}

// exported is what export answers.
type exported struct {
	Job        string      `json:"job"`
	Checkpoint snapshot.ID `json:"checkpoint"`
	File       string      `json:"file"`
	Bytes      int64       `json:"bytes"`
	Chunks     int         `json:"chunks"`
	Keys       uint64      `json:"keys"`
	Elements   uint64      `json:"elements"`
}

func (a *app) checkpointExport(ctx *cli.Context) error {
	args, c, err := a.begin(ctx, "JOB", "ID")
	if err != nil {
		return err
	}
	file, err := needFile(ctx)
	if err != nil {
		return err
	}
	err = archive.Save(ctx.Context, archive.OS{}, file, func(w io.Writer) error {
		return c.Download(ctx.Context, checkpointPath(args[0], args[1], "/archive"), w)
	})
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(err, fault.Refused, "name a file that isn't there yet", "export")
	case err != nil && fault.CodeOf(err) == fault.Internal && !errors.Is(err, context.Canceled):
		return fault.Wrap(err, fault.Failed, "nothing was written", "export")
	case err != nil:
		return err
	}
	in, err := openArchive(file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	cp, chunks := in.Manifest().Checkpoint, 0
	for range in.Manifest().AllChunks() {
		chunks++
	}
	out := exported{Job: cp.Job, Checkpoint: cp.ID, File: file, Bytes: in.Bytes(), Chunks: chunks, Keys: cp.Keys, Elements: cp.Elements}
	return a.show(out, func(w io.Writer) {
		fmt.Fprintf(w, "checkpoint %d of job %s exported to %s: %s, %s keys, %s elements\n", out.Checkpoint, quoted(out.Job), quoted(file), size(uint64(out.Bytes)), count(out.Keys), count(out.Elements))
	})
}

func (a *app) checkpointImport(ctx *cli.Context) error {
	_, c, err := a.begin(ctx)
	if err != nil {
		return err
	}
	file, err := needFile(ctx)
	if err != nil {
		return err
	}
	all, err := archives(file)
	if err != nil {
		return err
	}
	several := all[0].of.Job != all[len(all)-1].of.Job
	if several && ctx.String("job") != "" {
		return fault.New(fault.Usage, "leave --job away, or give the directory of one job", "%s has checkpoints of more than one job", file)
	}
	if len(all) > 1 && ctx.String("name") != "" {
		return fault.New(fault.Usage, "give one file", "%d checkpoints can't have one name", len(all))
	}
	out := api.List[coordinator.ImportResult]{Items: []coordinator.ImportResult{}}
	of := branches(all, file)
	for _, f := range all {
		q := url.Values{}
		if b := of[f.path]; b != "" {
			q.Set("branch", string(b))
		}
		res, err := a.upload(ctx, c, f.path, ctx.String("job"), q)
		if err != nil {
			return a.stopped(out.Items, len(all), f, err)
		}
		out.Items = append(out.Items, res)
	}
	return a.show(out, func(w io.Writer) {
		for _, r := range out.Items {
			showImport(w, r)
			notNamed(w, r, ctx.String("name"))
		}
	})
}

// notNamed says that a name was asked for and not given.
func notNamed(w io.Writer, r coordinator.ImportResult, name string) {
	if r.Already && name != "" && name != r.Name {
		fmt.Fprintf(w, "it is not named %s: what is there keeps its name, or has none\n", quoted(name))
	}
}

// stopped tells what was done before an import of several failed.
func (a *app) stopped(done []coordinator.ImportResult, of int, at found, err error) error {
	if of > 1 {
		f := fault.As(err)
		return &fault.Error{Code: f.Code, Message: fmt.Sprintf("%s: %s (%d of %d are imported)", at.path, f.Message, len(done), of), Hint: f.Hint, Err: err}
	}
	return err
}

func showImport(w io.Writer, r coordinator.ImportResult) {
	if r.Already {
		as := ""
		if r.Name != "" {
			as = ", named " + quoted(r.Name)
		}
		fmt.Fprintf(w, "checkpoint %d of job %s is there already, as checkpoint %d of job %s%s\n", r.From.ID, quoted(r.From.Job), r.Checkpoint, quoted(r.Job), as)
		return
	}
	fmt.Fprintf(w, "checkpoint %d of job %s (%s) imported as checkpoint %d of job %s: %s keys, %s elements\n",
		r.From.ID, quoted(r.From.Job), quoted(r.From.Server), r.Checkpoint, quoted(r.Job), count(r.Keys), count(r.Elements))
}

// upload imports one file and waits for the end.
func (a *app) upload(ctx *cli.Context, c *api.Client, path, job string, q url.Values) (res coordinator.ImportResult, err error) {
	for name, value := range map[string]string{"job": job, "name": ctx.String("name"), "note": ctx.String("note")} {
		if value != "" {
			q.Set(name, value)
		}
	}
	var op api.Operation
	if err := sendArchive(ctx, c, "/import?"+q.Encode(), path, &op); err != nil {
		return res, err
	}
	if op, err = a.follow(ctx.Context, c, op); err != nil {
		return res, err
	}
	if op.Import == nil {
		return res, fault.New(fault.Internal, "please report it with the log", "the import ended without a result")
	}
	return *op.Import, nil
}

// restoreFrom imports what a restore is to come from, and gives its id. What
// the restore would refuse is refused first, with nothing imported.
func (a *app) restoreFrom(ctx *cli.Context, c *api.Client, job string, from source) (checkpoint string, err error) {
	q := restoreQuery(ctx)
	q.Set("for", "restore")
	q.Set("branch", string(coordinator.BranchLive)) // somebody chose it
	res, err := a.upload(ctx, c, from.path, job, q)
	if err != nil {
		return "", err
	}
	if !a.json {
		showImport(a.err, res)
	}
	return res.Checkpoint.String(), nil
}

// verified is what a verification of a file found.
type verified struct {
	File       string             `json:"file"`
	Job        string             `json:"job"`
	Checkpoint snapshot.ID        `json:"checkpoint"`
	OK         bool               `json:"ok"`
	Keys       uint64             `json:"keys"`
	Elements   uint64             `json:"elements"`
	Bytes      int64              `json:"bytes"` // of the file
	Problems   []snapshot.Problem `json:"problems"`
	// Chosen: a restore from the directory would take this one of its job.
	Chosen bool   `json:"chosen"`
	Why    string `json:"why,omitempty"` // it is chosen, or passed over though it is newer
}

// verifyFrom verifies files without a coordinator.
func (a *app) verifyFrom(ctx *cli.Context) error {
	if _, err := positional(ctx); err != nil {
		return err
	}
	out, bad := api.List[verified]{Items: []verified{}}, 0
	all, err := archivesBut(ctx.String("from"), func(path string, err error) error {
		if !errors.Is(err, snapshot.ErrCorrupt) {
			return err
		}
		// Wherever the damage is: what can't even be opened is a finding too.
		bad++
		out.Items = append(out.Items, verified{File: path, Problems: []snapshot.Problem{{What: "file", Detail: err.Error()}}})
		return nil
	})
	if err != nil {
		return err
	}
	why := choices(all, ctx.String("from"))
	for _, f := range all {
		v, err := verifyFile(ctx.Context, f)
		if err != nil {
			return err
		}
		v.Chosen, v.Why = why[f.path].chosen, why[f.path].why
		if !v.OK {
			bad++
		}
		out.Items = append(out.Items, v)
	}
	err = a.show(out, func(w io.Writer) {
		for _, v := range out.Items {
			showVerified(w, v)
		}
	})
	if err == nil && bad > 0 {
		return told(fault.Problems, "problems were found")
	}
	return err
}

func verifyFile(ctx context.Context, f found) (verified, error) {
	v := verified{File: f.path, Job: f.of.Job, Checkpoint: f.of.ID, Keys: f.of.Keys, Elements: f.of.Elements, Problems: []snapshot.Problem{}}
	in, err := openArchive(f.path)
	if err != nil {
		return v, err
	}
	defer func() { _ = in.Close() }() // it was only read
	problems, err := in.Verify(ctx)
	if err != nil {
		return v, fault.Wrap(err, fault.Failed, "", "verify %s", f.path)
	}
	v.Bytes, v.Problems, v.OK = in.Bytes(), append(v.Problems, problems...), len(problems) == 0
	return v, nil
}

func showVerified(w io.Writer, v verified) {
	if v.OK {
		fmt.Fprintf(w, "%s is whole: checkpoint %d of job %s, %s keys, %s elements, %s\n", quoted(v.File), v.Checkpoint, quoted(v.Job), count(v.Keys), count(v.Elements), size(uint64(v.Bytes)))
		if v.Why != "" {
			fmt.Fprintf(w, "  %s\n", sentence(v.Why))
		}
		return
	}
	fmt.Fprintf(w, "%s has %s:\n", quoted(v.File), number(len(v.Problems), "problem"))
	for _, p := range v.Problems {
		fmt.Fprintf(w, "  %s: %s\n", quoted(p.What), quoted(p.Detail))
	}
}

// showCopies is one line for each directory of copies.
func showCopies(w io.Writer, all []coordinator.CopyStatus) {
	for _, s := range all {
		fmt.Fprintf(w, "copies in %s: %s, %s", quoted(s.Path), number(s.Copies, "file"), size(uint64(s.Bytes)))
		if s.Waiting > 0 {
			fmt.Fprintf(w, "; %s without one, for up to %s", number(s.Waiting, "checkpoint"), millis(s.LagMs/1000*1000))
		}
		if s.Bad > 0 {
			fmt.Fprintf(w, "; %d damaged", s.Bad)
		}
		if s.OnlyHere > 0 {
			fmt.Fprintf(w, "; %d that the store doesn't have", s.OnlyHere)
		}
		fmt.Fprintln(w)
		if s.Error != "" {
			fmt.Fprintf(w, "  failing since %s: %s\n", when(*s.Since), sentence(s.Error))
		}
	}
}

// copyLine says where a checkpoint's copy is, or why there is none.
func copyLine(c coordinator.Copy) string {
	switch {
	case c.State == coordinator.CopyMade:
		return fmt.Sprintf("%s, %s, made %s", quoted(c.File), size(uint64(c.Bytes)), when(*c.MadeAt))
	case c.State == coordinator.CopyDamaged:
		return fmt.Sprintf("%s is damaged: %s", quoted(c.File), sentence(c.Error))
	case c.Error != "":
		return fmt.Sprintf("none in %s yet: %s", quoted(c.Path), sentence(c.Error))
	}
	return fmt.Sprintf("none in %s yet", quoted(c.Path))
}
