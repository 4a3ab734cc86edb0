package cut

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sort"

	"keyframe/snapshot"
)

// MaxLedgerKeys is how many names a job's ledger may have: 40 bytes each. A
// job with more is checkpointed whole each time. A variable for tests.
var MaxLedgerKeys = 1_000_000

// nameID tells the names of one section apart. Two names with the same 128
// bits would be one to the ledger; the totals of such a checkpoint would be
// found wrong by the walk of a verification, never its content.
type nameID struct{ hash, more uint64 }

var nameSeed = maphash.MakeSeed()

func identify(name []byte) nameID {
	return nameID{snapshot.NameHash(name), maphash.Bytes(nameSeed, name)}
}

// The marks of a row.
const (
	rowMissing   = 1 << iota // the name has no key
	rowEstimated             // its bytes are near the truth only
	rowGone                  // of a draft: the name isn't in the index any more
)

// row is what the ledger knows of one name.
type row struct {
	id       nameID
	elements uint64
	bytes    uint64 // logical: the name, and fields and values
	state    uint16
	group    uint16
	flags    uint8
}

func (r row) is(flag uint8) bool { return r.flags&flag != 0 }

// sections that a ledger has rows of: the names of the index.
const sections = 2

func sectionIndex(s snapshot.Section) int { return int(s - snapshot.SectionKeyed) }

func indexed(s snapshot.Section) bool {
	return s == snapshot.SectionKeyed || s == snapshot.SectionOperator
}

// ledger is what a completed checkpoint holds, name by name, so that the next
// one can be counted from what has changed. A draft that stands on a ledger
// leaves it as it is; settling the draft takes it over.
type ledger struct {
	tally
	rows [sections][]row // in the order of the names' hashes
}

// find gives the row of a name.
func (l *ledger) find(section int, id nameID) (row, bool) {
	i, ok := search(l.rows[section], id)
	if !ok {
		return row{}, false
	}
	return l.rows[section][i], true
}

func search(rows []row, id nameID) (int, bool) {
	i := sort.Search(len(rows), func(i int) bool { return rows[i].id.hash >= id.hash })
	for ; i < len(rows) && rows[i].id.hash == id.hash; i++ {
		if rows[i].id == id {
			return i, true
		}
	}
	return i, false
}

// draft counts an attempt at a checkpoint, layer by layer: over the ledger of
// the checkpoint that it stands on, or from nothing.
type draft struct {
	tally
	on   *ledger         // nil for a full cut
	rows [sections][]row // of a full cut's base
	over [sections]map[nameID]row

	layered bool // a layer stands over the base
	// blind: there are no rows any more, since the names came in no order or
	// were too many. Totals are right as long as no layer follows.
	blind bool
	lost  bool // blind, and a layer has followed
}

// newDraft begins to count a full cut.
func newDraft(t tally) *draft {
	d := &draft{tally: t}
	for i := range d.over {
		d.over[i] = map[nameID]row{}
	}
	return d
}

// expect makes room for about as many names in one section: nearly all are
// keyed.
func (d *draft) expect(names uint64) {
	const slack = 64
	d.rows[0] = make([]row, 0, min(names+names/slack, uint64(MaxLedgerKeys)))
}

// draftOver begins to count an incremental one over l.
func draftOver(l *ledger) *draft {
	d := newDraft(l.clone())
	d.on, d.layered = l, true
	return d
}

// nextLayer says that what follows supersedes what came before.
func (d *draft) nextLayer() {
	d.layered = true
	d.lost = d.lost || d.blind
}

// below gives the row that a name has so far.
func (d *draft) below(section int, id nameID) (row, bool) {
	if r, ok := d.over[section][id]; ok {
		return r, !r.is(rowGone)
	}
	if d.on != nil {
		return d.on.find(section, id)
	}
	if i, ok := search(d.rows[section], id); ok {
		return d.rows[section][i], true
	}
	return row{}, false
}

// put takes the row of a name of section, in place of the one that it has.
func (d *draft) put(section int, r row) {
	switch {
	case d.lost:
	case !d.layered:
		d.add(r)
		d.append(section, r)
	default:
		if old, ok := d.below(section, r.id); ok {
			d.remove(old)
		}
		if !r.is(rowGone) {
			d.add(r)
		}
		d.over[section][r.id] = r
		d.bound()
	}
}

// append adds a row to a full cut's base, as long as they come in order.
func (d *draft) append(section int, r row) {
	if d.blind {
		return
	}
	rows := d.rows[section]
	if n := len(rows); n > 0 && rows[n-1].id.hash > r.id.hash {
		d.forget()
		return
	}
	d.rows[section] = append(rows, r)
	d.bound()
}

// bound gives the rows up when they are too many.
func (d *draft) bound() {
	held := 0
	for i := range sections {
		held += len(d.rows[i]) + len(d.over[i])
	}
	if d.keys+d.missing <= uint64(MaxLedgerKeys) && held <= 2*MaxLedgerKeys {
		return
	}
	d.forget()
	d.lost = d.layered
}

// forget goes blind.
func (d *draft) forget() {
	d.blind, d.on, d.rows = true, nil, [sections][]row{}
	for i := range d.over {
		d.over[i] = nil
	}
}

// patched gives the row of a key that a patch is for. There must be one.
func (d *draft) patched(section int, id nameID, k snapshot.Key) (row, error) {
	if d.lost {
		return row{id: id}, nil // nothing of it will be used
	}
	r, ok := d.below(section, id)
	if !ok || r.is(rowMissing) {
		return row{}, fmt.Errorf("a patch of the %s key %.200q comes, and the layers below don't have it", k.Section, k.Name)
	}
	return r, nil
}

// settle makes the ledger of what was counted, nil when there is none. The
// ledger that the draft stands on is used up.
func (d *draft) settle() *ledger {
	if d.blind {
		return nil
	}
	l := &ledger{tally: d.tally, rows: d.rows}
	if d.on != nil {
		l.rows = d.on.rows
	}
	for i := range l.rows {
		l.rows[i] = merged(l.rows[i], d.over[i])
	}
	return l
}

// merged puts rows in their places, in place where that does.
func merged(rows []row, over map[nameID]row) []row {
	var fresh []row
	gone := 0
	for id, r := range over {
		i, ok := search(rows, id)
		switch {
		case ok:
			rows[i] = r
			if r.is(rowGone) {
				gone++
			}
		case !r.is(rowGone):
			fresh = append(fresh, r)
		}
	}
	if gone > 0 {
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.is(rowGone) })
	}
	if len(fresh) == 0 {
		return rows
	}
	slices.SortFunc(fresh, func(a, b row) int {
		if a.id.hash < b.id.hash {
			return -1
		}
		return 1
	})
	return interleave(rows, fresh)
}

// interleave inserts sorted rows into sorted rows, from the end.
func interleave(rows, fresh []row) []row {
	n := len(rows)
	rows = slices.Grow(rows, len(fresh))[:n+len(fresh)]
	for to := len(rows) - 1; len(fresh) > 0; to-- {
		last := fresh[len(fresh)-1]
		if n > 0 && rows[n-1].id.hash > last.id.hash {
			n--
			rows[to] = rows[n]
			continue
		}
		rows[to] = last
		fresh = fresh[:len(fresh)-1]
	}
	return rows
}
