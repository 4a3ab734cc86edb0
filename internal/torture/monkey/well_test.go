package monkey

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// wellAgain waits until workers write, the coordinator says that all is well,
// and it has taken a checkpoint since. Where it needs a person for that, it must
// say so, and what was done must explain it; then it gets one.
func (r *rig) wellAgain(f *facts) error {
	began := time.Now()
	if err := until("listening coordinator", patience, func() (string, bool) { return r.up(f) }); err != nil {
		return err
	}
	history, err := r.a.history()
	if err != nil {
		return err
	}
	last := uint64(0)
	if len(history) > 0 {
		last = history[len(history)-1].ID
	}
	_, _, acks := r.crew.acked()
	err = until("health", patience, func() (string, bool) { return r.well(f, last, acks) })
	if took := time.Since(began); err == nil && took > r.tally.slow {
		r.tally.slow = took
	}
	return err
}

// up tells whether the API answers. A process that ends by itself is right only
// where its store's file holds nothing any more.
func (r *rig) up(f *facts) (string, bool) {
	if how, gone := r.a.gone(); gone {
		if !f.damaged || !strings.Contains(r.a.tail(4000), "store") {
			return "the coordinator ended by itself: " + how, false
		}
		if err := r.operatorRemovesStore(f); err != nil {
			return err.Error(), false
		}
	}
	conn, err := net.DialTimeout("tcp", r.a.addr, time.Second)
	if err != nil {
		return err.Error(), false
	}
	_ = conn.Close() // it was only to see who listens
	return "", true
}

// operatorRemovesStore puts a file that holds nothing aside.
func (r *rig) operatorRemovesStore(f *facts) error {
	r.operator(f, "put the store's file aside, which holds nothing")
	f.note(func(f *facts) { f.removed = true })
	if err := r.emptyDisk(); err != nil {
		return err
	}
	return r.a.start()
}

func (r *rig) operator(f *facts, what string) {
	f.note(func(f *facts) { f.acts = append(f.acts, what) })
	r.tally.add("operator", what)
}

// emptyDisk removes everything that the store has made.
func (r *rig) emptyDisk() error {
	found, err := filepath.Glob(filepath.Join(r.disk, "*"))
	if err != nil {
		return err
	}
	for _, file := range found {
		if err := os.RemoveAll(file); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) well(f *facts, last uint64, acks [parts]uint64) (string, bool) {
	if how, gone := r.a.gone(); gone {
		return "the coordinator ended by itself: " + how, false
	}
	j, err := r.a.job()
	if err != nil {
		return err.Error(), false
	}
	what := fmt.Sprintf("%s: %s, recovery %+v, in doubt %v", j.Health.State, j.Health.Message, j.Recovery, j.InDoubt)
	if j.Health.State != "ok" {
		return what, r.help(f, j)
	}
	if f.emptied() && !f.anew {
		if gone, err := r.halved(); err != nil || gone {
			return fmt.Sprintf("begin anew: %v", errors.Join(err, r.beginAnew(f))), false
		}
	}
	if len(j.InDoubt) > 0 && (f.rewound() || f.lost) {
		id := fmt.Sprint(j.InDoubt[0])
		r.operator(f, "checkpoint accept")
		return what + r.a.run(patience, "checkpoint", "accept", jobName, id).err, false
	}
	_, _, now := r.crew.acked()
	for q := range now {
		if now[q] <= acks[q] {
			return fmt.Sprintf("worker %d writes nothing: %s", q, r.crew.hand[q].lastError()), false
		}
	}
	history, err := r.a.history()
	if err != nil {
		return err.Error(), false
	}
	tail := ""
	for _, c := range history {
		if (c.ID > last || f.anew) && c.restorable() {
			return "", true
		}
		if c.Failure != nil {
			tail = c.Failure.Reason + ": " + c.Failure.Message
		}
	}
	return "no new checkpoint, " + tail, false
}

// halved tells that what is live is only what workers have written since a loss.
func (r *rig) halved() (bool, error) {
	n, err := r.c.Exists(r.ctx, operatorKey(0, "rules")).Result()
	return n == 0, err
}

// beginAnew is what is left when the state and all checkpoints are gone in one
// round.
func (r *rig) beginAnew(f *facts) error {
	r.operator(f, "begin anew, state and checkpoints were gone")
	f.note(func(f *facts) { f.anew = true })
	r.a.kill()
	if err := r.crew.hold(); err != nil {
		return err
	}
	err := errors.Join(r.c.FlushAll(r.ctx).Err(), r.emptyDisk(), os.RemoveAll(r.b.store), r.populate())
	r.crew.forget(positions{})
	return errors.Join(err, r.crew.release(), r.a.start())
}

// help does what an operator is told to do, once the coordinator says that it
// needs one, and what was done explains it.
func (r *rig) help(f *facts, j jobView) bool {
	if f.isLost() && f.second && j.Operation == nil && (j.Health.State == "foreign" || strings.Contains(j.Health.Message, "nothing is restored by itself")) {
		return r.operatorRestores(f, j.Health.State)
	}
	if j.Recovery == nil || j.Operation != nil {
		return false
	}
	if strings.Contains(j.Recovery.LastError, "no restorable checkpoint left") && f.emptied() {
		r.operator(f, "job adopt, "+j.Health.State)
		f.note(func(f *facts) { f.removed = true })
		_ = r.a.run(patience, "job", "adopt", jobName, "--yes") // its effect is looked at
	}
	return false
}

// operatorRestores chooses between two histories: the state was lost while a
// second coordinator led, so that the newest checkpoint is in its store, or what
// lies there is what that one took for a new job. It has gone; the first one's
// newest is put in place.
func (r *rig) operatorRestores(f *facts, state string) bool {
	history, err := r.a.history()
	id := newest(history)
	if err != nil || id == 0 {
		return false
	}
	r.operator(f, "restore by hand, "+state)
	f.note(func(f *facts) {
		f.targets = append(f.targets, id)
		f.misled = f.misled || state == "foreign"
	})
	_ = r.a.run(patience, "restore", jobName, "--checkpoint", strconv.FormatUint(id, 10), "--yes") // its effect is looked at
	return false
}

// afterDamage has every checkpoint verified, as one does after damage of the
// store's file: what isn't whole is marked, and no longer offered. The files
// that were put aside go.
func (r *rig) afterDamage(f *facts) error {
	if !f.damaged {
		return nil
	}
	history, err := r.a.history()
	if err != nil {
		return err
	}
	for _, c := range history {
		if !c.restorable() {
			continue
		}
		out := r.a.run(patience, "checkpoint", "verify", jobName, strconv.FormatUint(c.ID, 10))
		switch out.code {
		case 0:
			r.tally.add("checks", "checkpoints whole after damage of the file")
		case 3:
			r.tally.add("checks", "checkpoints found damaged after damage of the file")
		default:
			return fmt.Errorf("verify of checkpoint %d after damage: exit %d: %s", c.ID, out.code, out.err)
		}
	}
	found, err := filepath.Glob(r.a.store + ".*")
	if err != nil {
		return err
	}
	for _, file := range found {
		r.tally.add("checks", "files put aside: "+strings.TrimLeft(filepath.Ext(strings.TrimPrefix(file, r.a.store)), ".0123456789-TZ"))
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}
