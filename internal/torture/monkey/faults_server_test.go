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
	"time"
	"unsafe"
)

// serverFaults are what happens to Redis and to the disk without a process
// dying.
func serverFaults() []fault {
	return []fault{
		{"rights withdrawn", "rights", (*act).withdraw},
		{"user switched off", "rights", func(a *act) error { return a.without("off") }},
		{"maxmemory low", "memory", (*act).lowMemory},
		{"disk full", "disk", (*act).fullDisk},
		{"disk full at some size of the file", "disk", (*act).limitFile},
	}
}

// withdrawable are rules that take something away which the coordinator needs.
var withdrawable = []string{
	"-client|pause", "-client|unpause", "-eval", "-hset", "-rename", "-unlink", "-multi", "-hscan", "-hgetall", "-smembers", "-lrange",
	"-psync", "-client|tracking", "-rpush", "-sadd", "-type", "-@all", "resetkeys", "-time", "-info", "-pfcount",
}

// withdraw takes one or two rights away for a while.
func (a *act) withdraw() error {
	words := []string{withdrawable[a.rng.IntN(len(withdrawable))]}
	if a.rng.IntN(2) == 0 {
		words = append(words, withdrawable[a.rng.IntN(len(withdrawable))])
	}
	return a.without(words...)
}

func (a *act) without(rules ...string) error {
	words := []any{"ACL", "SETUSER", "keyframe"}
	for _, rule := range rules {
		words = append(words, rule)
	}
	if err := a.c.Do(a.ctx, words...).Err(); err != nil {
		return a.excused(fmt.Errorf("withdraw %v: %w", rules, err))
	}
	a.tally.add("rights that were withdrawn", strings.Join(rules, " "))
	if a.rng.IntN(2) == 0 { // connections that stand keep their user, but not its rights
		_ = a.c.Do(a.ctx, "CLIENT", "KILL", "USER", "keyframe").Err() // there may be none
	}
	a.wait(300*time.Millisecond, 3*time.Second)
	return a.excused(a.giveRights())
}

// excused takes an error of a Redis that another fault has taken away for one
// that could not be done; heal does it again.
func (a *act) excused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errNot, err)
}

// lowMemory lets the server refuse writes for want of memory.
func (a *act) lowMemory() error {
	used, err := a.info("memory", "used_memory")
	if err != nil {
		return a.excused(err)
	}
	n, err := strconv.ParseInt(used, 10, 64)
	if err != nil {
		return a.excused(err)
	}
	limit := n + a.rng.Int64N(400<<10) - 100<<10
	if err := a.c.ConfigSet(a.ctx, "maxmemory", strconv.FormatInt(limit, 10)).Err(); err != nil {
		return a.excused(err)
	}
	a.wait(500*time.Millisecond, 3*time.Second)
	return a.excused(a.c.ConfigSet(a.ctx, "maxmemory", "0").Err())
}

// info reads one field of INFO.
func (r *rig) info(section, field string) (string, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	text, err := r.c.Info(ctx, section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("INFO %s has no %s", section, field)
}

const fillerName = "filler"

// fullDisk fills the store's file system up to its last byte.
func (a *act) fullDisk() error {
	if !a.ownDisk {
		return errNot
	}
	path := filepath.Join(a.disk, fillerName)
	err := fill(path)
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	a.wait(500*time.Millisecond, 3*time.Second)
	return errors.Join(err, os.Remove(path))
}

// fill writes until nothing goes in any more.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	for size := len(block); size >= 512; {
		if _, err = f.Write(block[:size]); err != nil {
			size /= 2
		}
	}
	return errors.Join(err, f.Close())
}

// limitFile bounds the size of files that the coordinator may write, at what
// its store has now or a little more.
func (a *act) limitFile() error {
	info, err := os.Stat(a.a.store)
	if err != nil {
		return a.excused(err)
	}
	if err := a.a.limitFiles(uint64(info.Size()) + a.rng.Uint64N(64<<10)); err != nil {
		return a.excused(err)
	}
	a.wait(500*time.Millisecond, 3*time.Second)
	return a.excused(a.a.limitFiles(^uint64(0)))
}

// limitFiles sets RLIMIT_FSIZE of the running process.
func (d *daemon) limitFiles(most uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return errNot
	}
	limit := syscall.Rlimit{Cur: most, Max: ^uint64(0)}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(d.cmd.Process.Pid), syscall.RLIMIT_FSIZE,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("prlimit of coordinator %s: %w", d.name, errno)
	}
	return nil
}
