package redis

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Bounds of what rounds and the last reads keep in memory before it is pushed
// as a layer. Variables for tests.
var (
	bufferBytes = 8 << 20 // of names, fields and values, with bufferCost for each
	bufferKey   = 2 << 20 // of one key that is read whole; a larger one is a layer's by itself
)

// bufferCost is what a buffered element takes beside its bytes.
const bufferCost = 96

// hugeValue is the length of a value from which a key isn't buffered.
const hugeValue = snapshot.MaxPart

// place is a key of a checkpoint: a name may be in two sections.
type place struct {
	section snapshot.Section
	name    string
}

// buffered is what the newest reads say of a key.
type buffered struct {
	key   snapshot.Key // without the name
	list  [][]byte     // of ordered types
	parts cells        // of hashes, by field; of sets and zsets, by member
}

func (e *buffered) whole() bool { return e.key.Op != snapshot.OpPatch }

// patchBuffer holds what was read again, the newest only, until it is pushed
// as one sorted layer.
type patchBuffer struct {
	keys map[place]*buffered
	size int
}

func (p *patchBuffer) reset() { p.keys, p.size = map[place]*buffered{}, 0 }

func (p *patchBuffer) drop(at place) {
	if e := p.keys[at]; e != nil {
		p.size -= e.cost(at)
		delete(p.keys, at)
	}
}

func (e *buffered) cost(at place) int {
	n := len(at.name) + bufferCost
	for _, v := range e.list {
		n += len(v) + bufferCost
	}
	for i := range e.parts.all {
		n += e.parts.all[i].cost()
	}
	return n
}

// put replaces what is there of a key.
func (p *patchBuffer) put(at place, e *buffered) {
	p.drop(at)
	p.keys[at] = e
	p.size += e.cost(at)
}

// merge puts a patch over what is there of the key. The type is the same: a
// patch is only read of a key that was pushed, or lies here, as that type.
func (p *patchBuffer) merge(at place, patch *buffered) {
	old := p.keys[at]
	if old == nil {
		p.put(at, patch)
		return
	}
	old.key.ExpireAt, old.key.Count = patch.key.ExpireAt, patch.key.Count
	for _, el := range patch.parts.all {
		p.size += el.cost() - old.parts.set(el.id, el)
	}
}

// flush pushes everything as a layer and empties the buffer. What is not loose
// is exact: no key of it was written since it was read.
func (p *patchBuffer) flush(to snapshot.LayerSink, loose bool) error {
	if len(p.keys) == 0 {
		return nil
	}
	if err := to.NextLayer(); err != nil {
		return err
	}
	if err := p.push(to, loose); err != nil {
		return err
	}
	p.reset()
	return nil
}

// push gives all keys, section by section, in the order of a layer.
func (p *patchBuffer) push(to snapshot.Sink, loose bool) error {
	for section := snapshot.SectionKeyed; section <= snapshot.SectionSource; section++ {
		var names []string
		for at := range p.keys {
			if at.section == section {
				names = append(names, at.name)
			}
		}
		sortNames(names, func(n string) []byte { return []byte(n) })
		for _, name := range names {
			if err := p.keys[place{section, name}].push(to, name, loose); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *buffered) push(to snapshot.Sink, name string, loose bool) error {
	k := e.key
	k.Name, k.Loose = []byte(name), loose
	if got := uint64(len(e.list) + e.parts.len()); !loose && e.whole() && got != k.Count {
		return &statebackend.KeyError{Key: k.Name, Op: "read", Err: fmt.Errorf(
			"%w: %d elements were read and the server counts %d, though no write was told of: tracking missed one", statebackend.ErrChanged, got, k.Count)}
	}
	if err := to.BeginKey(k); err != nil {
		return err
	}
	for _, v := range e.list {
		if err := pushElement(to, snapshot.Element{Value: v}); err != nil {
			return err
		}
	}
	// In the order of their identities: the same state gives the same chunks.
	for _, el := range e.parts.sorted() {
		if el.removed && e.whole() {
			continue
		}
		out := snapshot.Element{Value: el.value, Score: el.score, Removed: el.removed}
		if k.Type == snapshot.TypeHash {
			out.Field = []byte(el.id)
		} else {
			out.Value = []byte(el.id)
		}
		if err := pushElement(to, out); err != nil {
			return err
		}
	}
	return to.EndKey(snapshot.KeyEnd{})
}

// pushElement gives an element whose value is whole in memory.
func pushElement(to snapshot.Sink, e snapshot.Element) error {
	rest := e.Value
	e.Size, e.Value = uint64(len(rest)), rest[:min(len(rest), snapshot.MaxPart)]
	rest = rest[len(e.Value):]
	err := to.Element(e)
	for err == nil && len(rest) > 0 {
		n := min(len(rest), snapshot.MaxPart)
		err = to.Part(rest[:n])
		rest = rest[n:]
	}
	return err
}
