package monkey

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/internal/torture/witness"
)

// startAt is how far each partition is before the first checkpoint.
const startAt = 3000

// diskBytes is the size of the disk that a store lies on.
const diskBytes = 64 << 20

// rig is everything that runs: one Redis, worker processes, two coordinators of
// which the second runs only when the monkey wants it, and the links between.
type rig struct {
	t      *testing.T
	ctx    context.Context
	model  *model
	server *redistest.Server
	clock  *clock
	rights []string
	c      *redis.Client // of the default user, straight to the server

	coordinatorLink *wire
	workerLink      *wire
	crew            *crew
	a, b            *daemon
	disk            string // where a's store lies
	ownDisk         bool   // it is a file system of its own
	foreign         map[string]witness.Entry
	book            *ledger
	tally           *tally
}

// newRig starts everything and waits for the first checkpoint.
func newRig(t *testing.T) *rig {
	all, err := loadPartitions()
	require.NoError(t, err)
	r := &rig{t: t, ctx: context.Background(), model: &model{parts: all}, rights: readRights(t), book: newLedger(), tally: newTally(), clock: newClock(t)}
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte(coordinatorPassword+"\n"), 0o600))
	r.server = redistest.Start(t, redistest.Setting("user keyframe on >"+coordinatorPassword+" "+strings.Join(r.rights, " ")))
	r.c = r.server.Client().WithTimeout(30 * time.Second)
	require.NoError(t, r.populate())
	require.NotEmpty(t, r.foreign)
	r.coordinatorLink, r.workerLink = newWire(t, "coordinator", r.server.Addr), newWire(t, "workers", r.server.Addr)
	r.crew = newCrew(t, r.workerLink.addr())
	r.mount()
	r.a = newDaemon(t, "A", r.coordinatorLink.addr(), password, r.disk)
	r.b = newDaemon(t, "B", r.server.Addr, password, t.TempDir())
	require.NoError(t, r.a.start())
	require.NoError(t, r.wellAgain(&facts{}))
	return r
}

const coordinatorPassword = "only-for-this-test"

// readRights are the rules that the product says its user needs, and no others.
func readRights(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../../configs/redis-acl.txt")
	require.NoError(t, err)
	var rules []string
	for line := range strings.Lines(string(data)) {
		if words, ok := strings.CutPrefix(strings.TrimSpace(line), "ACL SETUSER keyframe "); ok && words != "reset" {
			rules = append(rules, strings.Fields(words)...)
		}
	}
	require.Greater(t, len(rules), 20)
	return rules
}

// mount makes a small disk for the store; without the right to, a folder, whose
// files are then bounded by the process's own limit when the disk is to be full.
func (r *rig) mount() {
	r.disk = r.t.TempDir()
	if err := syscall.Mount("tmpfs", r.disk, "tmpfs", 0, "size="+strconv.Itoa(diskBytes)); err != nil {
		r.t.Logf("no disk of its own for the store: %v", err)
		return
	}
	r.ownDisk = true
	r.t.Cleanup(func() {
		if err := syscall.Unmount(r.disk, syscall.MNT_DETACH); err != nil {
			r.t.Errorf("unmount %s: %v", r.disk, err)
		}
	})
}

// populate writes the state that is there before the first checkpoint.
func (r *rig) populate() error {
	for _, p := range r.model.parts {
		if err := fastForward(r.ctx, r.c, p, startAt); err != nil {
			return err
		}
	}
	if err := errors.Join(r.seedOperator(), r.seedForeign()); err != nil {
		return err
	}
	_, foreign, err := witness.Live(r.ctx, r.c, root)
	r.foreign = foreign
	return err
}

// seedOperator writes the operator state as it is before any rescale.
func (r *rig) seedOperator() error {
	commands := [][]any{
		{"HSET", modesKey, "reader\x01progress", `{"mode":"list"}`, "reader\x01known", `{"mode":"union"}`, "reader\x01rules", `{"mode":"broadcast"}`},
		{"RPUSH", operatorKey(0, "progress"), listItems[0], listItems[1], listItems[2], listItems[3]},
		{"RPUSH", operatorKey(1, "progress"), listItems[4], listItems[5], listItems[6]},
		{"RPUSH", operatorKey(0, "known"), unionItems[0], unionItems[1]},
		{"RPUSH", operatorKey(1, "known"), unionItems[2]},
	}
	var keys []string
	for subtask := range startParallelism {
		for _, state := range []string{"progress", "known", "rules"} {
			keys = append(keys, operatorKey(subtask, state))
		}
		for k, v := range rules {
			commands = append(commands, []any{"HSET", operatorKey(subtask, "rules"), k, v})
		}
	}
	return r.send(append(commands, register(keys)...))
}

// seedForeign writes keys of all types that belong to nobody we know, some with
// names that a careless pattern would match.
func (r *rig) seedForeign() error {
	var commands [][]any
	for i, name := range []string{root + "2:stateKeys", root + ":unlisted", "streaming:runtime:flight", "streaming:runtime:f*:stateKeys", scope + "0:state:agg0:not registered", "elsewhere"} {
		commands = append(commands, []any{"DEL", name + ":l", name + ":x"},
			[]any{"SADD", name, "m1", "m2\xff"}, []any{"HSET", name + ":h", "f", "v"}, []any{"RPUSH", name + ":l", "x", "x", ""},
			[]any{"ZADD", name + ":z", "0.1", "z"}, []any{"SET", name + ":s", "\x00text", "PXAT", farAway + i}, []any{"XADD", name + ":x", "5-1", "f", "v"})
	}
	return r.send(commands)
}

func (r *rig) send(commands [][]any) error {
	pipe := r.c.Pipeline()
	for _, words := range commands {
		pipe.Do(r.ctx, words...)
	}
	_, err := pipe.Exec(r.ctx)
	return err
}

// pause waits; what it waits for is the monkey's own time.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// until asks again and again; what says how far it is.
func until(name string, limit time.Duration, reached func() (what string, ok bool)) error {
	deadline := time.Now().Add(limit)
	for {
		what, ok := reached()
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no %s within %s: %s", name, limit, what)
		}
		pause(10 * time.Millisecond)
	}
}

// heal takes back everything that the monkey may have left.
func (r *rig) heal(f *facts) error {
	r.coordinatorLink.heal()
	r.workerLink.heal()
	for _, h := range r.crew.hand {
		h.signal(syscall.SIGCONT)
	}
	r.a.signal(syscall.SIGCONT)
	if err := os.Remove(filepath.Join(r.disk, fillerName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = r.a.limitFiles(^uint64(0)) // one that doesn't run has no limit
	err := errors.Join(r.clock.set(0), r.giveRights(), r.c.ConfigSet(r.ctx, "maxmemory", "0").Err(), r.b.stop())
	if f.isLost() {
		err = errors.Join(err, r.seedForeign())
	}
	return errors.Join(err, r.a.start())
}

// giveRights gives the coordinator's user back all of its rights.
func (r *rig) giveRights() error {
	words := []any{"ACL", "SETUSER", "keyframe", "reset", "on", ">" + coordinatorPassword}
	for _, rule := range r.rights {
		words = append(words, rule)
	}
	return r.c.Do(r.ctx, words...).Err()
}
