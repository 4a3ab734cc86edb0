package snapshot

import "fmt"

// filter passes on the elements of one key's records, newest record first,
// that no newer record has. It takes the hashes of elements from the lane's
// digest: for the types that can be patched a digest is the sum of them.
type filter struct {
	out      Sink
	removals bool // are passed on too: the key stays a patch
	seen     identities
	l        *lane
	number   int    // of the record
	before   uint64 // the lane's digest before the open element
	sum      uint64 // digest of what was passed on
	count    uint64 // elements that were passed on and are finished
	bytes    uint64 // of their fields and values
	open     Element
	drop     bool   // the open element is not passed on
	held     []byte // a member that is being put together
	holds    bool
	// wrong takes what is wrong with the key; when it gives nil, reading goes on.
	wrong func(error) error
}

var _ Sink = (*filter)(nil)

// begin begins a key.
func (f *filter) begin(out Sink, removals bool, wrong func(error) error) {
	f.seen.reset()
	*f = filter{out: out, removals: removals, seen: f.seen, held: f.held[:0], wrong: wrong}
}

// record begins the next record of the key.
func (f *filter) record(l *lane, number int) {
	f.l, f.number, f.before, f.holds = l, number, 0, false
}

// BeginKey isn't called: the lane has read the key's head.
func (f *filter) BeginKey(Key) error { return nil }

// Element takes an element, whose identity may come in parts.
func (f *filter) Element(e Element) error {
	whole := uint64(len(e.Value)) == e.Size
	if f.l.tr.key.Type != TypeHash && !whole && e.Size <= maxMember {
		f.open, f.holds = Element{Score: e.Score, Size: e.Size}, true
		f.held = append(f.held[:0], e.Value...)
		return nil
	}
	return f.element(e)
}

// element takes an element whose identity is there, unless it is a member that
// is too long for any patch.
func (f *filter) element(e Element) error {
	id := e.Field
	if f.l.tr.key.Type != TypeHash {
		id = e.Value
	}
	fresh := true
	if f.l.tr.key.Op == OpPatch {
		before, ok := f.seen.put(id, f.number)
		if ok && before == f.number {
			if err := f.wrong(fmt.Errorf("a patch has %s twice", quote(id))); err != nil {
				return err
			}
		}
		fresh = !ok
	} else if len(id) == int(e.Size) || f.l.tr.key.Type == TypeHash {
		fresh = !f.seen.has(id)
	}
	f.open = Element{Removed: e.Removed, Size: uint64(len(e.Field)) + e.Size}
	f.drop = !fresh || (e.Removed && !f.removals)
	f.finished()
	if f.drop {
		return nil
	}
	return f.out.Element(e)
}

// Part takes the next bytes of the open element.
func (f *filter) Part(b []byte) error {
	if f.holds {
		f.held = append(f.held, b...)
		if f.l.tr.left > 0 {
			return nil
		}
		e := f.open
		e.Value, f.holds = f.held, false
		return f.element(e)
	}
	f.finished()
	if f.drop {
		return nil
	}
	return f.out.Part(b)
}

// finished counts the open element when all of it has come.
func (f *filter) finished() {
	if f.l.tr.left > 0 {
		return
	}
	sum := f.l.tr.digest.Sum()
	if !f.drop {
		f.sum += sum - f.before
		f.count++
		if !f.open.Removed {
			f.bytes += f.open.Size
		}
	}
	f.before = sum
}

// EndKey does nothing: the merger ends the key.
func (f *filter) EndKey(KeyEnd) error { return nil }
