package redis

import (
	"slices"

	"keyframe/snapshot"
)

// collector is a Sink that puts the keys that are pushed into it into a
// buffer. One that is too large is dropped, and told: it must be read once
// more, into a layer of its own.
type collector struct {
	keep  func(at place, e *buffered) error // takes a key
	large func(at place)                    // nil where no key may be too large
	at    place
	open  *buffered
	size  int
	value []byte // of the open element
	el    snapshot.Element
}

var _ snapshot.Sink = (*collector)(nil)

// BeginKey opens a key.
func (c *collector) BeginKey(k snapshot.Key) error {
	c.at, c.size = place{k.Section, string(k.Name)}, 0
	k.Name, k.Loose = nil, false
	c.open = &buffered{key: k}
	return nil
}

// Element keeps an element, unless the key is too large by now.
func (c *collector) Element(e snapshot.Element) error {
	c.size += len(e.Field) + int(min(e.Size, 1<<40)) + bufferCost
	if c.dropped() {
		c.open.list, c.open.parts = nil, cells{}
		return nil
	}
	c.el = e
	c.el.Field = slices.Clone(e.Field)
	c.value = append(make([]byte, 0, e.Size), e.Value...)
	c.finish()
	return nil
}

// Part keeps the next bytes of the open element.
func (c *collector) Part(b []byte) error {
	if !c.dropped() && len(b) > 0 {
		c.value = append(c.value, b...)
		c.finish()
	}
	return nil
}

func (c *collector) dropped() bool { return c.large != nil && c.size > bufferKey }

// finish keeps the open element once its value is whole.
func (c *collector) finish() {
	if uint64(len(c.value)) < c.el.Size {
		return
	}
	switch c.open.key.Type {
	case snapshot.TypeHash:
		c.open.parts.set(string(c.el.Field), cell{value: c.value})
	case snapshot.TypeSet, snapshot.TypeZSet:
		c.open.parts.set(string(c.value), cell{score: c.el.Score})
	default:
		c.open.list = append(c.open.list, c.value)
	}
}

// EndKey gives the key on.
func (c *collector) EndKey(e snapshot.KeyEnd) error {
	if c.dropped() {
		c.large(c.at)
		return nil
	}
	if e.Expired {
		// A restore would drop it, and whoever reads it now finds nothing.
		c.open = &buffered{key: snapshot.Key{Section: c.open.key.Section}}
	}
	return c.keep(c.at, c.open)
}

// keepIn gives what keeps keys in a buffer that has always room.
func keepIn(buf *patchBuffer) func(at place, e *buffered) error {
	return func(at place, e *buffered) error {
		if e.key.Type != snapshot.TypeMissing {
			buf.put(at, e)
		}
		return nil
	}
}

// keep takes what was read again of a key: into the buffer or, once that was
// full, straight on into a layer of its own. Then what follows must come in the
// order of a layer.
func (c *precopyCut) keep(at place, e *buffered) error {
	if e.key.Type == snapshot.TypeMissing && at.section == snapshot.SectionMeta {
		if _, ok := c.roster.meta[at.name]; !ok {
			return nil
		}
		e.key.Op = snapshot.OpGone // the job's own keys are there, or not named
	}
	c.roster.note(e.key, []byte(at.name))
	if c.streaming {
		return e.push(c.out, at.name, !c.strict)
	}
	if e.whole() {
		c.buf.put(at, e)
	} else {
		c.buf.merge(at, e)
	}
	if c.buf.size <= bufferBytes {
		return nil
	}
	c.streaming = true
	if err := c.flush(); err != nil {
		return err
	}
	return c.out.NextLayer()
}

// flush pushes the buffer as a layer. Keys of it may have been written since:
// it is loose, and they come again.
func (c *precopyCut) flush() error {
	c.out.loose = true
	err := c.buf.flush(c.out, true)
	c.out.loose = !c.strict
	return err
}

// layerOut passes on to the caller's sink, and notes in the roster what is
// pushed.
type layerOut struct {
	snapshot.LayerSink
	roster   *roster
	base     bool // what comes is the base, in its order
	loose    bool
	pushed   bool // something was
	layers   int
	elements int64
}

// BeginKey notes the key and passes it on.
func (o *layerOut) BeginKey(k snapshot.Key) error {
	k.Loose = o.loose
	o.pushed = true
	if k.Type == snapshot.TypeMissing && k.Section == snapshot.SectionMeta {
		k.Op = snapshot.OpGone // the job's own keys are there, or not named
	}
	if o.base && (k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator) {
		o.roster.append(k.Name, k.Type)
		o.roster.noteStream(k, k.Name)
	} else {
		o.roster.note(k, k.Name)
	}
	return o.LayerSink.BeginKey(k)
}

// Element counts and passes on.
func (o *layerOut) Element(e snapshot.Element) error {
	o.elements++
	return o.LayerSink.Element(e)
}

var _ snapshot.RunSink = (*layerOut)(nil)

// Elements counts and passes on.
func (o *layerOut) Elements(run []snapshot.Element) error {
	o.elements += int64(len(run))
	return snapshot.PushElements(o.LayerSink, run)
}

// NextLayer passes on.
func (o *layerOut) NextLayer() error {
	o.pushed = true
	o.layers++
	return o.LayerSink.NextLayer()
}
