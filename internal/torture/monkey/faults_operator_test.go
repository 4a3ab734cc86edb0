package monkey

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commandTime bounds a command of the monkey's: the coordinator may stand still.
const commandTime = 25 * time.Second

// operatorFaults are what people ask for, at any moment.
func operatorFaults() []fault {
	ask := func(words ...string) func(a *act) error {
		return func(a *act) error { return a.ask(words...) }
	}
	return []fault{
		{"restore of the newest", "operator", func(a *act) error { return a.restore(true) }},
		{"restore of any", "operator", func(a *act) error { return a.restore(false) }},
		{"restore without undo", "operator", func(a *act) error { return a.restore(false, "--no-undo") }},
		{"undo", "operator", (*act).undo},
		{"rescale", "operator", (*act).rescale},
		{"rescale, and back", "operator", func(a *act) error {
			if err := a.rescale(); err != nil {
				return err
			}
			return a.undo()
		}},
		{"drill", "drill", ask("drill", jobName)},
		{"savepoint", "savepoint", (*act).savepoint},
		{"pin and unpin", "pin", (*act).pin},
		{"checkpoints on demand", "operator", func(a *act) error {
			for range 3 {
				if err := a.ask("checkpoint", "create", jobName); err != nil {
					return err
				}
			}
			return nil
		}},
		{"checkpoint that compares everything", "operator", ask("checkpoint", "create", jobName, "--verify-live")},
		{"checkpoint of grade paused", "operator", ask("checkpoint", "create", jobName, "--grade", "paused")},
		{"store compact", "store", ask("store", "compact")},
		{"store verify", "store", ask("store", "verify")},
		{"store backup", "store", func(a *act) error {
			return a.ask("store", "backup", filepath.Join(a.t.TempDir(), "backup.db"))
		}},
		{"export and import", "archive", (*act).export},
		{"doctor", "doctor", ask("doctor", jobName)},
	}
}

// ask runs a command and counts how it ended. What it must not end with is a
// wrong use, or no exit code at all while all is well.
func (a *act) ask(words ...string) error {
	out := a.a.run(commandTime, words...)
	a.tally.add("commands", fmt.Sprintf("%s: exit %d%s", strings.Join(append(words[:1:1], verb(words)...), " "), out.code, out.why()))
	if out.code == 2 {
		return fmt.Errorf("coordinator %v: a wrong use: %s", words, out.err)
	}
	return nil
}

// verb is a command's second word where it has one.
func verb(words []string) []string {
	if words[0] == "checkpoint" || words[0] == "store" {
		return words[1:2]
	}
	return nil
}

// restore asks for a checkpoint to be put in place, by id.
func (a *act) restore(newest bool, more ...string) error {
	history, err := a.a.history()
	if err != nil {
		return a.excused(err)
	}
	history = slices.DeleteFunc(history, func(c checkpointView) bool { return !c.restorable() })
	if len(history) == 0 {
		return errNot
	}
	id := history[len(history)-1].ID
	if !newest {
		id = history[a.rng.IntN(len(history))].ID
	}
	a.f.note(func(f *facts) { f.targets = append(f.targets, id) })
	return a.ask(slices.Concat([]string{"restore", jobName, "--checkpoint", strconv.FormatUint(id, 10), "--yes"}, more)...)
}

func (a *act) undo() error {
	a.f.note(func(f *facts) { f.undone = true })
	return a.ask("undo", jobName, "--yes")
}

func (a *act) rescale() error {
	return a.ask("rescale", jobName, "--parallelism", strconv.Itoa(1+a.rng.IntN(8)), "--yes", "--allow-idle")
}

// savepointsMost is how many savepoints are kept: the oldest is deleted for a
// new one.
const savepointsMost = 3

func (a *act) savepoint() error {
	history, err := a.a.history()
	if err != nil {
		return a.excused(err)
	}
	var old []checkpointView
	for _, c := range history {
		if c.Kind == "savepoint" && c.completed() {
			old = append(old, c)
		}
	}
	if len(old) >= savepointsMost {
		a.book.deleted(old[0].ID)
		if err := a.ask("checkpoint", "delete", jobName, strconv.FormatUint(old[0].ID, 10), "--yes", "--force"); err != nil {
			return err
		}
	}
	return a.ask("checkpoint", "create", jobName, "--name", fmt.Sprintf("sp %d", a.rng.Uint32()))
}

func (a *act) pin() error {
	history, err := a.a.history()
	if err != nil {
		return a.excused(err)
	}
	id, pinned := uint64(0), uint64(0)
	for _, c := range history {
		if c.restorable() {
			id = c.ID
		}
		if c.Pinned {
			pinned = c.ID
		}
	}
	if pinned != 0 {
		a.book.deleted(pinned) // by retention, from then on
		if err := a.ask("checkpoint", "unpin", jobName, strconv.FormatUint(pinned, 10)); err != nil {
			return err
		}
	}
	if id == 0 {
		return errNot
	}
	return a.ask("checkpoint", "pin", jobName, strconv.FormatUint(id, 10))
}

// export writes the newest checkpoint to a file and brings it back as another.
func (a *act) export() error {
	file := filepath.Join(a.t.TempDir(), "checkpoint.kfa")
	if err := a.ask("checkpoint", "export", jobName, "latest", "-f", file); err != nil {
		return err
	}
	if _, err := os.Stat(file); err != nil {
		return errNot // what else is done now has kept it from being written; its exit code is counted
	}
	if err := a.ask("checkpoint", "import", "-f", file); err != nil {
		return err
	}
	history, err := a.a.history()
	if err != nil {
		return a.excused(err)
	}
	for _, c := range history {
		if c.Trigger == "import" {
			a.book.deleted(c.ID)
			if err := a.ask("checkpoint", "delete", jobName, strconv.FormatUint(c.ID, 10), "--yes", "--force"); err != nil {
				return err
			}
		}
	}
	return nil
}
