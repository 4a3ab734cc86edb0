package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Report is what a walk over a log found.
type Report struct {
	Path     string   `json:"path"`
	Files    int      `json:"files"`
	Lines    uint64   `json:"lines"`
	First    uint64   `json:"first" doc:"Number of the first line that is there; above 1 when older lines are missing, which is no problem only where a file that was set aside ended right before it"`
	Last     uint64   `json:"last"`
	Hash     string   `json:"hash" doc:"SHA-256 of the last line: keep it elsewhere, and compare later"`
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`
}

// maxProblems bounds a report.
const maxProblems = 100

// Verify walks the whole log at a path, which may be written meanwhile by
// nobody. Every break of the chain is a problem of the report, and so is a log
// that doesn't begin with line 1: whether older files were only taken away is
// known to [Log.Verify] alone. The error is for what can't be read at all.
func Verify(ctx context.Context, path string) (Report, error) {
	files, err := listFiles(path, -1)
	if err != nil {
		return Report{}, fmt.Errorf("verify the audit log %s: %w", path, err)
	}
	defer closeAll(files)
	if len(files) == 0 {
		return Report{}, fmt.Errorf("there is no audit log at %s", path)
	}
	return walk(ctx, path, files, nil)
}

// Verify walks what was acknowledged until now, and compares its end with what
// this log has written.
func (l *Log) Verify(ctx context.Context) (Report, error) {
	l.mu.Lock()
	head, known, ends := l.head, l.known, slices.Clone(l.ends)
	l.mu.Unlock()
	files, done, err := l.files()
	if err != nil {
		return Report{}, fmt.Errorf("verify the audit log %s: %w", l.path, err)
	}
	defer done()
	var anchor Known
	if l.opts.Anchor != nil {
		if anchor, err = l.opts.Anchor.Load(); err != nil {
			return Report{}, fmt.Errorf("what is remembered of the audit log %s: %w", l.path, err)
		}
	}
	if !known {
		head = Head{}
	}
	for _, end := range anchor.Ends {
		if !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	return walk(ctx, l.path, files, ends, head, anchor.Head)
}

func (r *Report) problem(format string, args ...any) {
	r.OK = false
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// walk follows the chain through all files; want are lines that are known from
// elsewhere (Seq 0: none), ends those after which a file began.
func walk(ctx context.Context, path string, files []reader, ends []Head, want ...Head) (Report, error) {
	w := walker{want: append(want, ends...), ends: ends, r: Report{Path: path, Files: len(files), OK: true, Problems: []string{}, Hash: genesis}}
	for _, f := range files {
		w.fresh = true
		err := f.each(ctx, func(line []byte, n int) error {
			w.line(f, line, n)
			return nil
		})
		var part *PartError
		switch {
		case errors.As(err, &part):
			w.r.problem("%v", part)
		case err != nil:
			return w.r, err
		}
	}
	for _, h := range want {
		if h.Seq > w.r.Last {
			w.r.problem("it ends with line %d, and line %d was written: lines are missing at its end", w.r.Last, h.Seq)
		}
	}
	return w.r, nil
}

// walker follows the chain.
type walker struct {
	r     Report
	want  []Head
	ends  []Head
	fresh bool // the next line is the first of its file
}

func (w *walker) line(f reader, line []byte, n int) {
	r := &w.r
	r.Lines++
	hash := hashOf(line)
	e, err := decode(line)
	at := fmt.Sprintf("%s line %d", f.name, n)
	switch {
	case err != nil:
		r.problem("%s: %v", at, err)
	case r.Lines == 1:
		r.First = e.Seq
		if why := beginning(e, w.ends); why != "" {
			r.problem("%s (seq %d): %s", at, e.Seq, why)
		}
	case e.Seq != r.Last+1:
		r.problem("%s: seq %d follows %d: lines are missing, or were put in", at, e.Seq, r.Last)
	case e.Prev != r.Hash:
		r.problem("%s (seq %d): the line before is not the one that was written there", at, e.Seq)
	}
	if err == nil && w.fresh && f.first != 0 && f.first != e.Seq {
		r.problem("%s: the file's name says seq %d, its first line %d", at, f.first, e.Seq)
	}
	for _, h := range w.want {
		if err == nil && h.Seq == e.Seq && h.Seq > 0 && h.Hash != hash {
			r.problem("%s (seq %d): it is not the line that was written", at, e.Seq)
		}
	}
	w.fresh = false
	r.Hash = hash
	if err == nil {
		r.Last = e.Seq
	} else {
		r.Last++ // so that one damaged line is one problem
	}
}

// beginning says what is wrong with the first line of a log, "" when nothing
// is: line 1, or the first line of a file whose predecessors were taken away.
func beginning(e Entry, ends []Head) string {
	switch {
	case e.Seq == 1 && e.Prev == genesis, slices.Contains(ends, Head{Seq: e.Seq - 1, Hash: e.Prev}):
		return ""
	case e.Seq == 1:
		return "it says that a line came before it"
	}
	return fmt.Sprintf("the log begins with it, and no file that was set aside is known to have ended right before it: lines 1 to %d are missing; "+
		"if older files were taken away, put them back, or ask the running coordinator, which remembers where they ended", e.Seq-1)
}

// Beginning gives an error when the log doesn't begin where one may. Only its
// first line is looked at.
func (l *Log) Beginning(ctx context.Context) error {
	l.mu.Lock()
	ends := slices.Clone(l.ends)
	l.mu.Unlock()
	files, done, err := l.files()
	if err != nil {
		return fmt.Errorf("the beginning of the audit log %s: %w", l.path, err)
	}
	defer done()
	var why string
	for _, f := range files {
		err := f.each(ctx, func(line []byte, n int) error {
			e, err := f.entry(line, n)
			if err == nil {
				why = beginning(e, ends)
				err = errEnough
			}
			return err
		})
		switch {
		case errors.Is(err, errEnough) && why != "":
			return fmt.Errorf("the audit log %s: %s", l.path, why)
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return fmt.Errorf("the beginning of the audit log %s: %w", l.path, err)
		}
	}
	return nil
}
