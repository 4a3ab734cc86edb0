package redis

import (
	"slices"

	"keyframe/snapshot"
)

// collector is a Sink that puts the keys that are pushed into it into a
// buffer. One that is too large is dropped, and told: it must be read once
// more, into a layer of its own.
type collector struct {
	buf    *patchBuffer
	roster *roster
	large  func(at place) // nil where no key may be too large
	room   func() error   // called after each key; nil where there is always room
	at     place
	open   *buffered
	size   int
	value  []byte // of the open element
	el     snapshot.Element
}

var _ snapshot.Sink = (*collector)(nil)

// BeginKey opens a key.
func (c *collector) BeginKey(k snapshot.Key) error {
	c.at, c.size = place{k.Section, string(k.Name)}, 0
	k.Name, k.Loose = nil, false
	c.open = &buffered{key: k}
	if k.Type == snapshot.TypeHash || k.Type == snapshot.TypeSet || k.Type == snapshot.TypeZSet {
		c.open.parts = make(map[string]cell)
	}
	return nil
}

// Element keeps an element, unless the key is too large by now.
func (c *collector) Element(e snapshot.Element) error {
	c.size += len(e.Field) + int(min(e.Size, 1<<40)) + bufferCost
	if c.dropped() {
		c.open.list, c.open.parts = nil, nil
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
		c.open.parts[string(c.el.Field)] = cell{value: c.value}
	case snapshot.TypeSet, snapshot.TypeZSet:
		c.open.parts[string(c.value)] = cell{score: c.el.Score}
	default:
		c.open.list = append(c.open.list, c.value)
	}
}

// EndKey puts the key into the buffer.
func (c *collector) EndKey(e snapshot.KeyEnd) error {
	if c.dropped() {
		c.large(c.at)
		return nil
	}
	k := &c.open.key
	if e.Expired {
		// A restore would drop it, and whoever reads it now finds nothing.
		c.open = &buffered{key: snapshot.Key{Section: k.Section}}
	}
	c.keep()
	if c.room == nil {
		return nil
	}
	return c.room()
}

// keep puts the open key into the buffer, if there is something to say of it.
func (c *collector) keep() {
	k := &c.open.key
	if k.Type == snapshot.TypeMissing && k.Section == snapshot.SectionSource {
		return
	}
	if k.Type == snapshot.TypeMissing && k.Section == snapshot.SectionMeta {
		if _, ok := c.roster.meta[c.at.name]; !ok {
			c.buf.drop(c.at)
			return
		}
		k.Op = snapshot.OpGone
	}
	c.buf.put(c.at, c.open)
	c.roster.note(*k, []byte(c.at.name))
}

// layerOut passes on to the caller's sink, and notes in the roster what is
// pushed.
type layerOut struct {
	snapshot.LayerSink
	roster   *roster
	base     bool // what comes is the base, in its order
	loose    bool
	pushed   bool // something was
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
	return o.LayerSink.NextLayer()
}
