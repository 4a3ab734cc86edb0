package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// following is a state store that can tell what was written since a cut: it
// keeps each cut's content and compares. Its cuts come in layers, as those of a
// store whose writers go on: what was read first may be stale, and is patched.
type following struct {
	statebackend.Backend

	mu    sync.Mutex
	cuts  map[string][]snapshot.RecordedKey // token → content
	n     int
	hide  string // a key whose changes it doesn't notice
	lost  string // why it can't tell, "" when it can
	err   error  // of the next cuts
	rough bool   // the first layer of a full cut is stale
	asked []statebackend.CutRequest
	calls []string // Forget
}

var (
	_ statebackend.Backend   = (*following)(nil)
	_ statebackend.Forgetter = (*following)(nil)
)

func (f *following) install(o *Options) {
	f.Backend, f.cuts, o.Backend = o.Backend, map[string][]snapshot.RecordedKey{}, f
}

// Forget implements statebackend.Forgetter.
func (f *following) Forget(job statebackend.Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "forget "+job.Name)
	clear(f.cuts)
}

// last is what the newest cut was asked for.
func (f *following) last() statebackend.CutRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[len(f.asked)-1]
}

func (f *following) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Cut implements statebackend.Cutter.
func (f *following) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, req)
	if f.err != nil {
		return statebackend.Cut{}, f.err
	}
	var now snapshot.Recorder
	asked := req
	asked.Grade = snapshot.GradeAuto
	c, err := f.Backend.Cut(ctx, asked, &now)
	if err != nil {
		return c, err
	}
	if req.Grade == snapshot.GradePaused { // without tracking
		c.Grade = snapshot.GradePaused
		return c, snapshot.Replay(now.Keys, sink)
	}
	slices.SortFunc(now.Keys, bySection)
	since, known := f.cuts[req.Since]
	known = known && f.lost == ""
	c.Grade, c.Tracking = snapshot.GradePrecopy, "fields"
	switch {
	case req.Check:
		c.Marked = statebackend.Marked{Known: known, Reason: f.lost, Keys: marksOf(since, now.Keys, f.hide)}
	case known:
		c.Incremental = true
	case req.Since != "":
		c.FullReason = "tracking was lost: " + f.lost
	}
	f.n++
	c.Token = fmt.Sprintf("cut-%d", f.n)
	f.cuts[c.Token] = now.Keys // a change that is hidden stays so for ever
	to := sink.(snapshot.LayerSink)
	if c.Incremental {
		c.Rounds, err = 1, f.pushChanges(to, since, now.Keys)
	} else {
		err = f.pushAll(to, now.Keys)
	}
	return c, err
}

func bySection(a, b snapshot.RecordedKey) int {
	if a.Key.Section != b.Key.Section {
		return int(a.Key.Section) - int(b.Key.Section)
	}
	return snapshot.CompareNames(a.Key.Name, b.Key.Name)
}

// pushAll pushes a full cut. When it is rough, hashes come stale and loose
// first, without their last field, and are patched in a second layer.
func (f *following) pushAll(to snapshot.LayerSink, keys []snapshot.RecordedKey) error {
	if !f.rough {
		return snapshot.Replay(keys, to)
	}
	var base, above []snapshot.RecordedKey
	for _, k := range keys {
		if k.Key.Section > snapshot.SectionOperator {
			above = append(above, k)
			continue
		}
		n := len(k.Elements) - 1
		if k.Key.Type != snapshot.TypeHash || n < 1 {
			base = append(base, k)
			continue
		}
		stale := k
		stale.Elements, stale.End = k.Elements[:n], snapshot.KeyEnd{}
		stale.Key.Loose = true
		base = append(base, stale)
		above = append(above, patchOf(k, k.Elements[n:]))
	}
	if err := snapshot.Replay(base, to); err != nil {
		return err
	}
	if err := to.NextLayer(); err != nil {
		return err
	}
	return snapshot.Replay(above, to)
}

func patchOf(k snapshot.RecordedKey, elements []snapshot.RecordedElement) snapshot.RecordedKey {
	k.Key.Op, k.Elements, k.End = snapshot.OpPatch, elements, snapshot.KeyEnd{}
	return k
}

// pushChanges pushes what differs, and the bookkeeping whole.
func (f *following) pushChanges(to snapshot.LayerSink, since, now []snapshot.RecordedKey) error {
	if err := to.NextLayer(); err != nil {
		return err
	}
	return snapshot.Replay(changes(since, now, f.hide), to)
}

// changes are the keys of a layer over since that makes now of it, but for the
// key hide.
func changes(since, now []snapshot.RecordedKey, hide string) []snapshot.RecordedKey {
	was := named(since)
	var all []snapshot.RecordedKey
	for _, k := range now {
		name := string(k.Key.Name)
		old, there := was[name]
		delete(was, name)
		switch {
		case k.Key.Section > snapshot.SectionOperator:
			all = append(all, k)
		case name == hide:
		case !there, old.Key.Type != k.Key.Type, k.Key.Type.Ordered(), k.Key.Type == snapshot.TypeMissing:
			if !there || len(snapshot.DiffKeys([]snapshot.RecordedKey{old}, []snapshot.RecordedKey{k})) > 0 {
				all = append(all, k)
			}
		default:
			if d := delta(old, k); len(d) > 0 || old.Key.ExpireAt != k.Key.ExpireAt {
				all = append(all, patchOf(k, d))
			}
		}
	}
	for name, k := range was {
		if k.Key.Section <= snapshot.SectionOperator && name != hide {
			all = append(all, snapshot.RecordedKey{Key: snapshot.Key{Section: k.Key.Section, Name: k.Key.Name, Op: snapshot.OpGone}})
		}
	}
	slices.SortFunc(all, bySection)
	return all
}

func named(keys []snapshot.RecordedKey) map[string]snapshot.RecordedKey {
	m := map[string]snapshot.RecordedKey{}
	for _, k := range keys {
		m[string(k.Key.Name)] = k
	}
	return m
}

func elementID(k snapshot.RecordedKey, e snapshot.RecordedElement) string {
	if k.Key.Type == snapshot.TypeHash {
		return string(e.Field)
	}
	return string(e.Value)
}

// delta are the elements of a patch that makes now of old.
func delta(old, now snapshot.RecordedKey) []snapshot.RecordedElement {
	before := map[string]snapshot.RecordedElement{}
	for _, e := range old.Elements {
		before[elementID(old, e)] = e
	}
	var all []snapshot.RecordedElement
	for _, e := range now.Elements {
		id := elementID(now, e)
		was, there := before[id]
		delete(before, id)
		if !there || !bytes.Equal(was.Value, e.Value) || math.Float64bits(was.Score) != math.Float64bits(e.Score) {
			all = append(all, e)
		}
	}
	for _, e := range before {
		gone := snapshot.RecordedElement{Field: e.Field, Removed: true}
		if now.Key.Type != snapshot.TypeHash {
			gone = snapshot.RecordedElement{Value: e.Value, Size: e.Size, Removed: true}
		}
		all = append(all, gone)
	}
	return all
}

// marksOf are the marks that a tracker would have, but for the key hide.
func marksOf(since, now []snapshot.RecordedKey, hide string) map[string]statebackend.MarkedKey {
	marks := map[string]statebackend.MarkedKey{}
	for _, k := range changes(since, now, hide) {
		m := statebackend.MarkedKey{Whole: k.Key.Op != snapshot.OpPatch, Fields: map[string]struct{}{}}
		for _, e := range k.Elements {
			m.Fields[elementID(k, e)] = struct{}{}
		}
		if k.Key.Section <= snapshot.SectionOperator && !strings.HasSuffix(string(k.Key.Name), ":stateKeys") {
			marks[string(k.Key.Name)] = m
		}
	}
	return marks
}
