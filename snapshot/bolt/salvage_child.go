package bolt

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"keyframe/snapshot"
)

// salvageEnv makes a process that calls MaybeProbe salvage a store: a JSON list
// of the damaged file and the new one.
const salvageEnv = "KEYFRAME_SALVAGE_STORE"

// program is what is run as a child, but for tests.
var program = os.Executable

// answer is one value of the gob stream that a salvaging child writes: how far
// it is, or, last, what came of it. Names of jobs need not be text, so it is no
// JSON.
type answer struct {
	Done, Total int64
	Report      *SalvageReport
	Error       string
	Nothing     bool
}

// salvageAsChild is a child's whole life.
func salvageAsChild(names string, out io.Writer) (code int) {
	var paths [2][]byte // a path need not be text
	if err := json.Unmarshal([]byte(names), &paths); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", salvageEnv, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	enc := gob.NewEncoder(out)
	shown := int64(0)
	report, err := func() (SalvageReport, error) {
		f, err := os.Open(string(paths[0]))
		if err != nil {
			return SalvageReport{}, err
		}
		report, err := salvageInto(ctx, f, string(paths[1]), func(done, total int64) {
			if done == total || done-shown >= total/100+1 {
				shown = done
				// The parent that doesn't read any more ends this process.
				_ = enc.Encode(answer{Done: done, Total: total})
			}
		})
		return report, errors.Join(err, f.Close())
	}()
	a := answer{Report: &report}
	if err != nil {
		a.Error, a.Nothing = err.Error(), errors.Is(err, ErrNothing)
	}
	if err := enc.Encode(a); err != nil {
		return 1
	}
	return 0
}

// salvageInChild runs this program as a child that reads path and makes tmp.
func salvageInChild(ctx context.Context, path, tmp string, progress func(done, total int64)) (report SalvageReport, err error) {
	self, err := program()
	if err != nil {
		return report, fmt.Errorf("find this program, which is run as a child: %w", err)
	}
	names, err := json.Marshal([2][]byte{[]byte(path), []byte(tmp)})
	if err != nil {
		return report, err
	}
	var errs head
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), salvageEnv+"="+string(names))
	cmd.Stderr = &errs
	cmd.WaitDelay = time.Second // for what it may have started itself
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return report, fmt.Errorf("run this program as a child: %w", err)
	}
	last, readErr := listen(out, progress)
	if readErr != nil || last.Report == nil {
		// Nobody reads what it writes, so it might never end. That it has ended
		// already is no error.
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	return salvageTold(last, readErr, err, &errs)
}

// salvageTold is what a child has reported, or why it has not.
func salvageTold(last answer, readErr, err error, errs *head) (report SalvageReport, _ error) {
	switch {
	case err != nil && readErr == nil:
		return report, fmt.Errorf("%w: the child that reads it fell (%w): %s", snapshot.ErrCorrupt, err, firstLine(errs.data))
	case readErr != nil:
		return report, fmt.Errorf("%w: the child that reads it gave no report (%w): %s", snapshot.ErrCorrupt, readErr, firstLine(errs.data))
	case last.Report == nil:
		return report, fmt.Errorf("%w: the child that reads it gave no report", snapshot.ErrCorrupt)
	case last.Nothing:
		return *last.Report, ErrNothing
	case last.Error != "":
		return *last.Report, errors.New(last.Error)
	}
	return *last.Report, nil
}

// listen reads what a child writes, up to its end.
func listen(out io.Reader, progress func(done, total int64)) (last answer, err error) {
	dec := gob.NewDecoder(bufio.NewReader(out))
	for {
		var a answer
		if err := dec.Decode(&a); err != nil {
			if errors.Is(err, io.EOF) {
				return last, nil
			}
			return last, err
		}
		if a.Report == nil && progress != nil {
			progress(a.Done, a.Total)
		}
		last = a
	}
}
