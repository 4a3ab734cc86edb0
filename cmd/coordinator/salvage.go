package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/bolt"
)

// openWhole opens the store for the daemon. A damaged one is replaced by a new
// store with all that is whole in it (an empty one when nothing is), and kept
// aside, or refused, as the configuration says. The state in Redis has nothing to
// do with it.
func openWhole(ctx context.Context, log hclog.Logger, s config.Store) (*bolt.DB, []coordinator.Salvage, error) {
	if err := neverSilentlyNew(s.Path); err != nil {
		return nil, nil, err
	}
	db, err := openStore(ctx, s.Path)
	now := coordinator.Salvage{}
	if err != nil && errors.Is(err, snapshot.ErrCorrupt) {
		db, now, err = replaceDamaged(ctx, log, s, err)
	}
	if err != nil {
		return nil, nil, err
	}
	known, err := salvages(ctx, db, now)
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, known, nil
}

// replaceDamaged salvages the store and opens the new one.
func replaceDamaged(ctx context.Context, log hclog.Logger, s config.Store, err error) (*bolt.DB, coordinator.Salvage, error) {
	var now coordinator.Salvage
	if s.OnDamage == config.DamageRefuse {
		return nil, now, fault.Wrap(err, fault.Corrupt, refusedHint(s, err), "store.onDamage is refuse")
	}
	log.Error("the checkpoint store is damaged; what is whole in it is salvaged now, and the file is kept", "store", s.Path, "damage", err.Error())
	began := time.Now()
	report, aside, salvageErr := bolt.Replace(ctx, s.Path, began, tellProgress(log))
	if salvageErr != nil {
		return nil, now, fault.Wrap(errors.Join(err, salvageErr), fault.Corrupt, unsalvagedHint(s), "the store is damaged and could not be salvaged; it is left as it is")
	}
	tellSalvaged(log, report)
	if report.Nothing {
		log.Error("nothing could be saved: an empty store was begun in the place of the damaged one, whose file is kept; "+fromCopies(s), "store", s.Path, "aside", aside)
		db, err := openStore(ctx, s.Path)
		return db, salvageOf(report, aside, began), err
	}
	log.Error("the damaged store is replaced: look at what was lost before anything else; the damaged file is never deleted by the coordinator",
		"store", s.Path, "aside", aside, "checkpoints", len(report.Checkpoints)-report.Lost(), "lost", report.Lost(), "took", time.Since(began).Round(time.Millisecond).String())
	db, err := openStore(ctx, s.Path)
	return db, salvageOf(report, aside, began), err
}

// neverSilentlyNew refuses to make a store where a damaged one was put aside and
// nothing has taken its place.
func neverSilentlyNew(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // Open says what is wrong with it
	}
	asides, err := bolt.Asides(path)
	if err != nil {
		return fault.Wrap(err, fault.Store, "", "open the checkpoint store")
	}
	if len(asides) == 0 {
		return nil
	}
	newest := asides[len(asides)-1]
	return fault.New(fault.Store, fmt.Sprintf("coordinator store salvage %s -f %s; or, to begin with no checkpoints at all, move that file to another folder", newest, path),
		"there is no store at %s, but a damaged one was kept aside as %s: to begin anew would leave its checkpoints behind", path, newest)
}

// refusedHint is what a person does about a damaged store that is not to be
// replaced.
func refusedHint(s config.Store, err error) string {
	if errors.Is(err, bolt.ErrNothing) {
		return fmt.Sprintf("put a backup in its place; or begin with an empty store: mv %[1]s %[1]s.lost, or set store.onDamage to salvage, which does so; then %[2]s", s.Path, fromCopies(s))
	}
	return fmt.Sprintf("with the coordinator stopped: coordinator store salvage %[1]s -f %[1]s.new && mv %[1]s %[1]s.damaged-by-hand && mv %[1]s.new %[1]s; "+
		"or put a backup in its place; or set store.onDamage to salvage", s.Path)
}

// unsalvagedHint is what a person does where the salvage itself has failed,
// which is mostly a matter of the disk.
func unsalvagedHint(s config.Store) string {
	return fmt.Sprintf("see that the disk has room and can be read, and start again; or put a backup in its place; "+
		"or begin with an empty store: mv %[1]s %[1]s.lost; then %[2]s", s.Path, fromCopies(s))
}

// fromCopies says where checkpoints come from that the store has lost.
func fromCopies(s config.Store) string {
	from := "FILE-OR-DIRECTORY (store.copies is not configured: only exports and backups have them)"
	if all := s.CopyPaths(); len(all) > 0 {
		from = all[0] + " (from store.copies)"
	}
	return "bring checkpoints back by `coordinator checkpoint import -f FROM`, or a job's state by `coordinator restore JOB --from FROM`, where FROM is " + from
}

// tellProgress logs how far a salvage is, every ten seconds.
func tellProgress(log hclog.Logger) func(done, total int64) {
	last := time.Now()
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= 10*time.Second {
			last = now
			log.Info("salvaging the checkpoint store", "read", size(uint64(done)), "of", size(uint64(total)))
		}
	}
}

func tellSalvaged(log hclog.Logger, report bolt.SalvageReport) {
	for _, c := range report.Checkpoints {
		args := []any{"job", c.Job, "checkpoint", uint64(c.ID)}
		switch {
		case !c.OK:
			log.Error("checkpoint lost: "+c.Lost, args...)
		case c.Note != "":
			log.Warn("checkpoint salvaged: "+c.Note, args...)
		default:
			log.Info("checkpoint salvaged", args...)
		}
	}
	for _, p := range report.Problems {
		log.Warn("damage: " + p)
	}
}

func (a *app) salvageCommand() *cli.Command {
	return &cli.Command{Name: "salvage", Usage: "make a new store of what is whole in a damaged one; the coordinator must not run on it", ArgsUsage: "DAMAGED",
		Action: a.storeSalvage, Flags: []cli.Flag{&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "the new store; a file that exists is refused"}}}
}

func (a *app) storeSalvage(ctx *cli.Context) error {
	args, err := positional(ctx, "DAMAGED")
	if err != nil {
		return err
	}
	if ctx.String("file") == "" {
		return fault.New(fault.Usage, "usage: coordinator store salvage DAMAGED -f NEW", "missing flag --file")
	}
	report, err := bolt.Salvage(ctx.Context, args[0], ctx.String("file"), nil)
	switch {
	case errors.Is(err, bolt.ErrHeld):
		return fault.Wrap(err, fault.Busy, "stop the coordinator first", "salvage")
	case errors.Is(err, bolt.ErrNothing):
		return fault.Wrap(err, fault.Corrupt, "is it the right file? A copy of it, or store.copies, may have more", "nothing was written")
	case err != nil:
		return fault.Wrap(err, fault.Store, "nothing was written; the damaged file is as it was", "salvage")
	}
	if err := a.show(report, func(w io.Writer) { showSalvage(w, report) }); err != nil {
		return err
	}
	if report.Lost() > 0 {
		return told(fault.Problems, "checkpoints were lost")
	}
	return nil
}

func showSalvage(w io.Writer, r bolt.SalvageReport) {
	t := newTable(w, "JOB", "ID", "KEYS", "ELEMENTS", "OUTCOME")
	for _, c := range r.Checkpoints {
		outcome := "salvaged"
		if !c.OK {
			outcome = "LOST: " + c.Lost
		} else if c.Note != "" {
			outcome += ": " + c.Note
		}
		t.AppendRow([]any{quoted(c.Job), c.ID, count(c.Keys), count(c.Elements), outcome})
	}
	t.Render()
	for _, c := range r.Checkpoints {
		for _, m := range c.Missing {
			fmt.Fprintf(w, "%s %d lacks chunk %s\n", quoted(c.Job), c.ID, m)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "damage: %s\n", quoted(p))
	}
	fmt.Fprintf(w, "%s: %s of %s salvaged from %s, with %s, %s and %s\n", quoted(r.To),
		number(len(r.Checkpoints)-r.Lost(), "checkpoint"), number(len(r.Checkpoints), "checkpoint"), quoted(r.From),
		number(r.Written, "chunk"), number(r.Failed, "failed attempt"), number(r.Journal, "journal record"))
}
