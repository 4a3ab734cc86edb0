package monkey

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"
)

// secondFaults are two coordinators at once, each with a store of its own.
func secondFaults() []fault {
	return []fault{
		{"second coordinator beside", "coordinator", func(a *act) error {
			a.f.note(func(f *facts) { f.second = true })
			if err := a.b.start(); err != nil {
				return err
			}
			a.wait(time.Second, 3*time.Second)
			return a.b.stop()
		}},
		{"second coordinator takes over from one that stands still", "coordinator", func(a *act) error { return a.takeOver(false) }},
		{"second coordinator takes over and restores", "coordinator", func(a *act) error { return a.takeOver(true) }},
	}
}

// takeOver stops the first coordinator for longer than its lease, lets the
// second do something, and wakes the first.
func (a *act) takeOver(restore bool) error {
	a.f.note(func(f *facts) { f.second = true })
	if err := a.b.start(); err != nil {
		return err
	}
	a.a.signal(syscall.SIGSTOP)
	err := until("takeover", 20*time.Second, func() (string, bool) {
		j, err := a.b.job()
		return fmt.Sprint(j.Health.State, err), err == nil && j.Leader != nil && j.Leader.Me && j.Health.State == "ok"
	})
	if err == nil {
		err = a.second(restore)
	} else {
		err = a.excused(err) // Redis may be away, or its state gone: then there is nothing to lead
	}
	a.a.signal(syscall.SIGCONT)
	a.wait(0, time.Second)
	return errors.Join(err, a.b.stop())
}

// second is what the second coordinator does while it leads.
func (a *act) second(restore bool) error {
	out := a.b.run(commandTime, "checkpoint", "create", jobName)
	a.tally.add("commands", fmt.Sprintf("checkpoint create by the second: exit %d%s", out.code, out.why()))
	if !restore {
		return nil
	}
	history, err := a.b.history()
	id := newest(history)
	if err != nil || id == 0 {
		return a.excused(errors.Join(err, errNot))
	}
	a.f.note(func(f *facts) { f.restored = true })
	out = a.b.run(commandTime, "restore", jobName, "--checkpoint", strconv.FormatUint(id, 10), "--yes")
	a.tally.add("commands", fmt.Sprintf("restore by the second: exit %d%s", out.code, out.why()))
	return nil
}
