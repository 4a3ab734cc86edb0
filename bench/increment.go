package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"keyframe/coordinator/cut"
	"keyframe/snapshot"
)

// changedLimits are the goals of a checkpoint after 1 % was changed.
var changedLimits = map[string]limits{"D1": {must: 0.08, goal: 0.03}, "D2": {must: 0.05, goal: 0.02}}

// increments compares an incremental checkpoint, after one element in a hundred
// was changed, with the full one that it stands on. The changes aren't timed.
// Each incremental one is compared with a full copy taken after it.
func (l *lab) increments(ctx context.Context, r *Report) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	f := Figure{Name: "checkpoint after 1 % changed", Data: l.data.name, Unit: "s", Against: "full checkpoint"}
	stored := Figure{Name: "stored bytes after 1 % changed", Data: l.data.name, Unit: "MiB", Against: "full checkpoint"}
	var times, sizes pairs
	for n := range l.Pairs {
		i, err := l.increment(ctx, n)
		if err != nil {
			return err
		}
		if i.full.Code != cut.FullNone {
			why := "not possible here: " + i.full.Text
			r.add("checkpoint", f.absent(NotRun, changedLimits[l.data.name], why))
			r.add("checkpoint", stored.absent(NotRun, limits{}, why))
			return nil
		}
		times.base, times.ours = append(times.base, i.whole.Seconds()), append(times.ours, i.took.Seconds())
		sizes.base = append(sizes.base, mebibytes(int64(i.base.StoredBytes)))
		sizes.ours = append(sizes.ours, mebibytes(int64(i.over.StoredBytes)))
		f.Note = fmt.Sprintf("%d of %d elements; %s; equal to a full copy; bases: %s", i.changed, i.over.Elements, how(i.over), how(i.base))
	}
	r.add("checkpoint", f.compared(times, changedLimits[l.data.name]))
	r.add("checkpoint", stored.compared(sizes, limits{}))
	return nil
}

// how says how a checkpoint was made.
func how(c snapshot.Checkpoint) string {
	parts := []string{"grade " + string(c.Grade)}
	if c.Tracking != "" {
		parts = append(parts, "tracking "+c.Tracking)
	}
	if c.Rounds > 0 {
		parts = append(parts, strconv.Itoa(c.Rounds)+" rounds")
	}
	if c.Layers > 1 {
		parts = append(parts, strconv.Itoa(c.Layers)+" layers")
	}
	if len(c.Hot) > 0 {
		parts = append(parts, strconv.Itoa(len(c.Hot))+" hot keys")
	}
	if c.GradeReason != "" {
		parts = append(parts, "because: "+c.GradeReason)
	}
	return strings.Join(parts, ", ")
}

// increment is one pair.
type increment struct {
	base, over  snapshot.Checkpoint
	whole, took time.Duration
	changed     int
	full        cut.Full // why the second is no incremental one
}

// increment takes a full checkpoint in a new store, changes the state, takes
// one over it, and proves that it is right.
func (l *lab) increment(ctx context.Context, n int) (i increment, err error) {
	db, remove, err := l.open(ctx)
	if err != nil {
		return i, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	out, took, err := l.take(ctx, db, snapshot.GradeAuto, nil)
	if err != nil {
		return i, err
	}
	i.base, i.whole = *out.Checkpoint, took
	if i.changed, err = l.change(ctx, n); err != nil {
		return i, err
	}
	if out, i.took, err = l.take(ctx, db, snapshot.GradeAuto, out.Base); err != nil {
		return i, err
	}
	i.over, i.full = *out.Checkpoint, out.Full
	if i.full.Code != cut.FullNone {
		return i, nil
	}
	return i, l.proveIncrement(ctx, db, out.Manifest)
}

// proveIncrement compares a checkpoint with a stop-and-copy of the same state.
func (l *lab) proveIncrement(ctx context.Context, db snapshot.Store, m *snapshot.Manifest) error {
	out, _, err := l.take(ctx, db, snapshot.GradePaused, nil)
	if err != nil {
		return fmt.Errorf("a full copy to compare with: %w", err)
	}
	var over, whole content
	if err := snapshot.Walk(ctx, db, m, &over); err != nil {
		return fmt.Errorf("read the incremental checkpoint: %w", err)
	}
	if err := snapshot.Walk(ctx, db, out.Manifest, &whole); err != nil {
		return fmt.Errorf("read the full copy: %w", err)
	}
	if over.sum != whole.sum || over.keys != whole.keys {
		return fmt.Errorf("the incremental checkpoint of %s differs from a full copy: %d keys with digest %x, want %d with %x",
			l.data.name, over.keys, over.sum, whole.keys, whole.sum)
	}
	return nil
}

// content tells what a checkpoint holds, whatever the order of its keys.
type content struct {
	keys uint64
	sum  uint64

	key  snapshot.Key
	name []byte
	d    snapshot.Digester
}

var _ snapshot.Sink = (*content)(nil)

// BeginKey implements snapshot.Sink.
func (c *content) BeginKey(k snapshot.Key) error {
	c.name = append(c.name[:0], k.Name...)
	c.key = k
	c.d.Reset(k.Type)
	return nil
}

// Element implements snapshot.Sink.
func (c *content) Element(e snapshot.Element) error { c.d.Element(e); return nil }

// Part implements snapshot.Sink.
func (c *content) Part(b []byte) error { c.d.Part(b); return nil }

// EndKey implements snapshot.Sink.
func (c *content) EndKey(snapshot.KeyEnd) error {
	c.keys++
	c.sum += snapshot.NameHash(fmt.Appendf(nil, "%s %s %d %d %x %q", c.key.Section, c.key.Type, c.key.ExpireAt, c.d.Count(), c.d.Sum(), c.name))
	return nil
}

// change gives one element in a hundred a new value, others at each n, and
// says how many: in D2, whose keys are small, all elements of one key in a
// hundred. It leaves sets as they are: their members have no value.
func (l *lab) change(ctx context.Context, n int) (changed int, err error) {
	path := filepath.Join(l.Dir, "change.resp")
	f, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("commands of a change: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	w := bufio.NewWriterSize(f, 1<<20)
	for _, r := range l.data.runs {
		changed += r.change(w, n)
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return 0, fmt.Errorf("commands of a change: %w", err)
	}
	if err := l.server.cli(ctx, path, "--pipe"); err != nil {
		return 0, fmt.Errorf("change the dataset: %w", err)
	}
	return changed, nil
}

// change writes the commands of lab.change; errors stick to w.
func (r keys) change(w *bufio.Writer, n int) (changed int) {
	rnd := rand.New(rand.NewPCG(9, uint64(n)))
	var b, v []byte
	for i := range r.keys {
		key := []byte(r.key(i))
		for e := range r.width {
			at := i*r.width + e
			if r.width < 100 {
				at = i
			}
			if at%100 != n%100 {
				continue
			}
			b, v = field(b[:0], e), value(v[:0], rnd)
			switch r.kind {
			case "hash":
				command(w, "HSET", key, b, v)
			case "list":
				command(w, "LSET", key, strconv.AppendInt(nil, int64(e), 10), v)
			case "zset":
				command(w, "ZADD", key, strconv.AppendInt(nil, 1_800_000_000_000+int64(rnd.IntN(1e9)), 10), b)
			default:
				continue
			}
			changed++
		}
	}
	return changed
}
