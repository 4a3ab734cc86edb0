package track

import (
	"fmt"
	"sync"
)

// nameCost is what a name takes beside its bytes: about what a map's entry
// and a string's header take in memory.
const nameCost = 64

// setCost is what the first field of a key takes beside that: its map.
const setCost = 208

// fieldsWatch holds the marks of one scope. Its lock is taken after the
// tracker's, never before.
type fieldsWatch struct {
	t      *fields
	limits Limits
	scope  scope // under the tracker's lock

	mu     sync.Mutex
	epoch  int // of the tracker at the last Take
	closed bool
	all    bool
	reason string
	keys   map[string]*Key
	fields int // among keys
	bytes  int // of all names, with nameCost for each
}

var _ Watch = (*fieldsWatch)(nil)

func (w *fieldsWatch) state() (epoch int, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.epoch, w.closed
}

// Take gives the marks. While the tracker has no history to go on with they
// are All again and again: what is written now is only covered by that.
func (w *fieldsWatch) Take() Marks {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	m := Marks{All: w.all, Reason: w.reason, Keys: w.keys}
	w.clear()
	w.epoch = w.t.epoch
	w.all = m.All && (w.closed || w.t.closed || w.t.replID == "")
	if !w.all {
		w.reason = ""
	}
	return m
}

func (w *fieldsWatch) clear() { w.keys, w.fields, w.bytes = nil, 0, 0 }

// Size tells the marks' number.
func (w *fieldsWatch) Size() (keys, fields int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all {
		return -1, -1
	}
	return len(w.keys), w.fields
}

// Extra replaces the extra names; new ones are Whole at once.
func (w *fieldsWatch) Extra(names [][]byte) {
	extra := nameSet(names)
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	before := w.scope.extra
	w.scope.extra = extra
	w.t.reindex()
	for name := range extra {
		if _, ok := before[name]; !ok {
			w.whole([]byte(name))
		}
	}
}

// Close ends the watch. It may be called twice.
func (w *fieldsWatch) Close() {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	delete(w.t.watches, w)
	w.t.reindex()
	w.everything("the watch is closed")
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.t.tell() // its Barriers
}

// everything marks all.
func (w *fieldsWatch) everything(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.makeAll(reason)
}

func (w *fieldsWatch) makeAll(reason string) {
	if !w.all {
		w.all, w.reason = true, reason
	}
	w.clear()
}

// whole marks a whole key.
func (w *fieldsWatch) whole(name []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := w.key(name); k != nil {
		w.makeWhole(k)
	}
	w.bound()
}

// expiry marks a key without any field.
func (w *fieldsWatch) expiry(name []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.key(name)
	w.bound()
}

// written marks fields of a key.
func (w *fieldsWatch) written(name []byte, f family, fields *arena) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.key(name)
	if k == nil || k.Whole {
		return
	}
	if k.mixes(f) {
		w.makeWhole(k)
		return
	}
	k.family = f
	fields.each(func(field []byte) {
		w.field(k, field)
	})
	if k.bytes > w.limits.KeyBytes {
		w.makeWhole(k)
	}
	w.bound()
}

// key gives the marks of a key, new ones if need be, nil when all is marked.
func (w *fieldsWatch) key(name []byte) *Key {
	if w.all {
		return nil
	}
	k := w.keys[string(name)]
	if k == nil {
		if w.keys == nil {
			w.keys = map[string]*Key{}
		}
		k = &Key{}
		w.keys[string(name)] = k
		w.bytes += len(name) + nameCost
	}
	k.Writes++
	return k
}

func (w *fieldsWatch) field(k *Key, name []byte) {
	if _, ok := k.Fields[string(name)]; ok {
		return
	}
	if k.Fields == nil {
		k.Fields = map[string]struct{}{}
		w.bytes += setCost
	}
	k.Fields[string(name)] = struct{}{}
	k.bytes += len(name)
	w.bytes += len(name) + nameCost
	w.fields++
}

// cost is what the fields take.
func (k *Key) cost() int {
	if k.Fields == nil {
		return 0
	}
	return k.bytes + nameCost*len(k.Fields) + setCost
}

func (w *fieldsWatch) makeWhole(k *Key) {
	w.bytes -= k.cost()
	w.fields -= len(k.Fields)
	k.Whole, k.Fields, k.bytes = true, nil, 0
}

// bound keeps to the limit of all names. The key with the most fields becomes
// whole; where no key has many, all keys do; then all is marked. Each step must
// free a good part of the limit, so that the search for it is rare.
func (w *fieldsWatch) bound() {
	if w.bytes <= w.limits.Bytes {
		return
	}
	var most *Key
	sum := 0
	for _, k := range w.keys {
		sum += k.cost()
		if most == nil || k.cost() > most.cost() {
			most = k
		}
	}
	switch {
	case most != nil && most.cost() >= w.limits.Bytes/16:
		w.makeWhole(most)
	case sum >= w.limits.Bytes/4:
		for _, k := range w.keys {
			if k.Fields != nil {
				w.makeWhole(k)
			}
		}
	}
	if w.bytes > w.limits.Bytes {
		w.makeAll(fmt.Sprintf("more than %d bytes of names were written since the marks were last taken", w.limits.Bytes))
	}
}

// arena holds names one behind the other, without an allocation for each.
type arena struct {
	bytes []byte
	ends  []int
}

func (a *arena) reset() { a.bytes, a.ends = a.bytes[:0], a.ends[:0] }

func (a *arena) add(name []byte) {
	a.bytes = append(a.bytes, name...)
	a.ends = append(a.ends, len(a.bytes))
}

func (a *arena) each(f func(name []byte)) {
	from := 0
	for _, end := range a.ends {
		f(a.bytes[from:end])
		from = end
	}
}
