package cut

import "keyframe/snapshot"

// The phases of an attempt as an operation's progress shows them.
const (
	PhaseCopy    = "copy"    // the state is read
	PhaseRounds  = "rounds"  // what was written meanwhile is read again
	PhasePause   = "pause"   // the job's bookkeeping is read: the cut's last reads
	PhaseCompare = "compare" // a self-check compares
	PhaseStore   = "store"   // the last chunks and the manifest are stored
)

// progress is told how far an attempt is.
type progress func(phase string, keys, elements, bytes uint64)

// progressEvery is after how many keys the progress is told.
const progressEvery = 256

// counter is a LayerSink in the middle: it counts what comes into a draft and
// passes everything on.
type counter struct {
	next     snapshot.LayerSink
	draft    *draft
	progress progress
	phase    string

	counts  bool // the open key belongs to the index
	section int
	key     snapshot.Key // without its name
	name    uint64       // its length
	row     row          // of a patched key: the one below
	set     load         // elements that the key has, or that a patch brings
	removed load         // elements that a patch takes away
	to      *load        // of the open element
	size    uint64       // of the open element
	left    uint64       // bytes that its value lacks

	keys, elements, bytes uint64 // that came, for the progress
}

// load is a number of elements with the bytes of their fields and values.
type load struct{ n, bytes uint64 }

var (
	_ snapshot.LayerSink = (*counter)(nil)
	_ snapshot.RunSink   = (*counter)(nil)
)

func newCounter(next snapshot.LayerSink, d *draft, p progress) *counter {
	c := &counter{next: next, draft: d, progress: p, phase: PhaseCopy}
	c.tell()
	return c
}

func (c *counter) tell() { c.progress(c.phase, c.keys, c.elements, c.bytes) }

// enter tells that another phase has begun.
func (c *counter) enter(phase string) {
	if c.phase != phase {
		c.phase = phase
		c.tell()
	}
}

// NextLayer implements snapshot.LayerSink.
func (c *counter) NextLayer() error {
	c.draft.nextLayer()
	c.enter(PhaseRounds)
	return c.next.NextLayer()
}

// BeginKey implements snapshot.Sink.
func (c *counter) BeginKey(k snapshot.Key) error {
	c.counts, c.left = indexed(k.Section), 0
	if !c.counts {
		// Bookkeeping and sources are read where writers are held.
		c.enter(PhasePause)
		return c.next.BeginKey(k)
	}
	c.set, c.removed = load{}, load{}
	c.section, c.key = sectionIndex(k.Section), k
	c.key.Name, c.name = nil, uint64(len(k.Name))
	if err := c.begin(k); err != nil {
		return err
	}
	return c.next.BeginKey(k)
}

// begin makes the row of a key, as far as it is known when it opens.
func (c *counter) begin(k snapshot.Key) error {
	id := identify(k.Name)
	switch {
	case k.Op == snapshot.OpPatch:
		var err error
		c.row, err = c.draft.patched(c.section, id, k)
		return err
	case k.Op == snapshot.OpGone:
		c.row = row{id: id, flags: rowGone}
	case k.Type == snapshot.TypeMissing:
		c.row = row{id: id, flags: rowMissing}
	default:
		c.row = row{id: id, bytes: uint64(len(k.Name))}
		c.row.state, c.row.group = c.draft.place(k)
	}
	return nil
}

// Element implements snapshot.Sink.
func (c *counter) Element(e snapshot.Element) error {
	if c.counts {
		c.count(&e)
	}
	return c.next.Element(e)
}

// Elements implements snapshot.RunSink.
func (c *counter) Elements(run []snapshot.Element) error {
	if c.counts {
		for i := range run {
			c.count(&run[i])
		}
	}
	return snapshot.PushElements(c.next, run)
}

// count takes an element of a key of the index.
func (c *counter) count(e *snapshot.Element) {
	if e.Removed { // what goes has its member's bytes, and no value
		c.to, c.size, c.left = &c.removed, uint64(len(e.Value)), 0
	} else {
		c.to, c.size, c.left = &c.set, uint64(len(e.Field))+e.Size, e.Size-uint64(len(e.Value))
	}
	c.to.n++
	c.to.bytes += c.size
}

// Part implements snapshot.Sink.
func (c *counter) Part(b []byte) error {
	c.left -= min(c.left, uint64(len(b)))
	return c.next.Part(b)
}

// EndKey implements snapshot.Sink.
func (c *counter) EndKey(e snapshot.KeyEnd) error {
	if err := c.next.EndKey(e); err != nil || !c.counts {
		return err
	}
	if c.left > 0 { // the key expired in the middle of a value, which isn't counted
		c.to.n--
		c.to.bytes -= c.size
	}
	c.draft.put(c.section, c.ended(e.Expired))
	c.keys++
	c.elements += c.set.n + c.removed.n
	c.bytes += c.set.bytes + c.removed.bytes
	if c.keys%progressEvery == 0 {
		c.tell()
	}
	return nil
}

// ended gives the row of the key that has ended. What was read of one that
// expired meanwhile is all that is left of it, a patch too.
func (c *counter) ended(expired bool) row {
	r := c.row
	switch {
	case c.key.Op == snapshot.OpPatch && !expired:
		return patch(r, c.key, c.set, c.removed)
	case c.key.Op == snapshot.OpPatch:
		r.flags &^= rowEstimated
		r.bytes = c.name
	}
	r.elements, r.bytes = c.set.n, r.bytes+c.set.bytes
	return r
}

// patch gives the row of a key after a patch that brought and removed
// elements. Its elements are what the server said; its bytes are exact where
// they follow from that: not where values of a hash were replaced or removed,
// whose length isn't known, nor where writers went on meanwhile.
func patch(r row, k snapshot.Key, set, removed load) row {
	grown := int64(k.Count) - int64(r.elements)
	joined, gone, sure := split(grown, set.n, removed.n)
	sure = sure && !k.Loose
	before := r.bytes
	switch k.Type {
	case snapshot.TypeHash:
		// Values that were replaced are taken to be as long as they were, those
		// that were removed to have been of middling length.
		sure = sure && joined == set.n && gone == 0
		r.bytes += share(set, joined)
		r.bytes -= min(r.bytes, share(load{r.elements, before}, gone))
	default: // a member has its bytes in both
		sure = sure && (joined == 0 || joined == set.n) && (gone == 0 || gone == removed.n)
		r.bytes += share(set, joined)
		r.bytes -= min(r.bytes, share(removed, gone))
	}
	r.elements = k.Count
	if !sure {
		r.flags |= rowEstimated
	}
	return r
}

// split tells how many of the elements that a patch brings are new, and how
// many of those that it removes were there, by how much the key has grown;
// sure when there is no other way.
func split(grown int64, set, removed uint64) (joined, gone uint64, sure bool) {
	// At first as if all that were removed had been there.
	j := min(max(grown+int64(removed), 0), int64(set))
	g := min(max(j-grown, 0), int64(removed))
	sure = j-g == grown && (set == 0 || removed == 0 || grown == int64(set) || grown == -int64(removed))
	return uint64(j), uint64(g), sure
}

// share is the bytes of n elements of l, on average.
func share(l load, n uint64) uint64 {
	switch {
	case l.n == 0:
		return 0
	case n >= l.n:
		return l.bytes
	}
	return uint64(float64(l.bytes) / float64(l.n) * float64(n))
}
