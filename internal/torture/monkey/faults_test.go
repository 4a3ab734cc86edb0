package monkey

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// fault is one thing that can be done. Of one target only one is done at a time.
type fault struct {
	name   string
	target string
	// do does it, lets it last, and takes it back; what is left of it is for
	// rig.heal. It says errNot when it could not be done.
	do func(a *act) error
}

// errNot says that a fault could not be done now, which is no failure.
var errNot = errors.New("it could not be done now")

// act is one fault being done.
type act struct {
	*rig
	f   *facts
	rng *rand.Rand
}

// wait waits a random time.
func (a *act) wait(from, to time.Duration) {
	pause(from + time.Duration(a.rng.Int64N(int64(to-from)+1)))
}

// faults is the whole list.
func faults() []fault {
	return slices.Concat([]fault{
		{"coordinator killed (SIGKILL)", "coordinator", (*act).killCoordinator},
		{"coordinator killed twice in a row", "coordinator", (*act).killTwice},
		{"coordinator stood still (SIGSTOP) for less than its lease", "coordinator", func(a *act) error {
			return a.freeze(a.a.signal, 200*time.Millisecond, leaseTTL/2)
		}},
		{"coordinator stood still for longer than its lease", "coordinator", func(a *act) error {
			return a.freeze(a.a.signal, leaseTTL+200*time.Millisecond, 2*leaseTTL)
		}},
		{"worker killed (SIGKILL)", "worker", (*act).killWorker},
		{"worker stood still (SIGSTOP)", "worker", func(a *act) error {
			return a.freeze(a.crew.hand[a.rng.IntN(parts)].signal, 300*time.Millisecond, 2*time.Second)
		}},
		{"Redis stood still (SIGSTOP)", "redis", func(a *act) error {
			return a.freeze(func(s syscall.Signal) { a.server.Signal(s) }, 300*time.Millisecond, 3*time.Second)
		}},
		{"Redis killed, came back empty", "redis", (*act).emptyRedis},
		{"Redis killed, came back from an old file", "redis", (*act).oldRedis},
		{"Redis killed, came back from a file of just before", "redis", (*act).recentRedis},
	}, linkFaults(), serverFaults(), storeFaults(), operatorFaults(), secondFaults(), clockFaults())
}

// drawn picks the faults of a round.
func drawn(rng *rand.Rand) []fault {
	all := slices.DeleteFunc(faults(), func(f fault) bool { return !strings.Contains(f.name, os.Getenv("MONKEY_FAULT")) })
	var out []fault
	used := map[string]bool{}
	for want := 1 + rng.IntN(3); want > 0; want-- {
		f := all[rng.IntN(len(all))]
		if used[f.target] {
			continue
		}
		used[f.target] = true
		out = append(out, f)
	}
	return out
}

func (a *act) killCoordinator() error {
	a.a.kill()
	a.wait(0, 600*time.Millisecond)
	return a.a.start()
}

func (a *act) killTwice() error {
	for range 2 {
		if err := a.killCoordinator(); err != nil {
			return err
		}
		a.wait(0, 300*time.Millisecond)
	}
	return nil
}

func (a *act) killWorker() error {
	h := a.crew.hand[a.rng.IntN(parts)]
	h.kill()
	a.wait(0, 500*time.Millisecond)
	h.start()
	return nil
}

// freeze stops a process for a while.
func (a *act) freeze(signal func(syscall.Signal), from, to time.Duration) error {
	signal(syscall.SIGSTOP)
	a.wait(from, to)
	signal(syscall.SIGCONT)
	return nil
}

func (a *act) emptyRedis() error {
	a.f.note(func(f *facts) { f.lost = true })
	a.server.RestartEmpty()
	a.tally.add("state", "losses of Redis")
	return nil
}

// oldRedis comes back with what was saved some time before.
func (a *act) oldRedis() error {
	if err := a.save(); err != nil {
		return err
	}
	a.wait(300*time.Millisecond, 2500*time.Millisecond)
	a.f.note(func(f *facts) { f.lost = true })
	a.server.Restart()
	a.tally.add("state", "losses of Redis")
	return nil
}

func (a *act) recentRedis() error {
	if err := a.save(); err != nil {
		return err
	}
	a.f.note(func(f *facts) { f.lost = true }) // what came in between is gone
	a.server.Restart()
	a.tally.add("state", "losses of Redis")
	return nil
}

func (a *act) save() error {
	if err := a.c.Do(a.ctx, "SAVE").Err(); err != nil {
		return fmt.Errorf("SAVE: %w", err)
	}
	return nil
}
