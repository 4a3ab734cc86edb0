package snapshot

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

var _ LayerSink = (*Encoder)(nil)

// layering is what an encoder knows of its layers.
type layering struct {
	over  bool
	salt  salt
	done  []Layer // without the open one
	names uint64  // the most that a patch of the open layer has
	// unsorted is the first key of a base that is out of order.
	unsorted error
	// source: a layer that is done has source chunks.
	source bool
	// owed are the loose keys whose count is wrong, with what is wrong, until
	// a newer record of them comes.
	owed map[sectionName]error
	seen identities // of the open patch
}

func (l *layering) begin(opts EncoderOptions) {
	l.over, l.salt = opts.Over, salt{id: opts.Salt}
	if l.salt.id == 0 {
		l.salt.id = rand.Uint64()
	}
}

// salted reports whether the open layer stands over another one.
func (l *layering) salted() bool { return l.over || l.salt.layer > 0 }

// key takes the next key of a section, whose order is o.
func (l *layering) key(k Key, o *order) error {
	over := l.salted()
	if k.Op != OpWhole && !over {
		return errors.New("changes an older layer, but there is none: only a checkpoint over a parent may begin so")
	}
	if l.source {
		return errors.New("comes in a layer above the one that has the source keys: these must be in the last")
	}
	if over || l.unsorted == nil {
		if err := o.next(k.Name); over && err != nil {
			return err
		} else if err != nil {
			l.unsorted = &inKey{name: keep(k.Name), err: err}
		}
	}
	if k.Op == OpPatch {
		l.seen.reset()
	}
	if over && len(l.owed) > 0 {
		delete(l.owed, sectionName{k.Section, string(k.Name)})
	}
	return nil
}

// ended takes the end of a key.
func (l *layering) ended(t *tracker) {
	l.names = max(l.names, t.names)
	if t.owes == nil {
		return
	}
	if l.owed == nil {
		l.owed = map[sectionName]error{}
	}
	l.owed[sectionName{t.key.Section, string(t.key.Name)}] = t.owes
}

// close checks what only the end of all layers tells.
func (l *layering) close() error {
	for k, err := range l.owed {
		return &inKey{name: []byte(k.name), err: fmt.Errorf("no later layer brings it: %w", err)}
	}
	return nil
}

// NextLayer ends a layer and writes its chunks. The layers below must be
// sorted: the first key that isn't is named.
func (e *Encoder) NextLayer() error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.tr.open {
		return e.fail(fmt.Errorf("key %s is still open at the end of its layer", quote(e.tr.key.Name)))
	}
	if err := e.layers.unsorted; err != nil {
		return e.fail(fmt.Errorf("no layer can stand over this one: %w", err))
	}
	e.target = min(e.target, LayerChunkTarget)
	return e.endLayer()
}

// endLayer writes the open chunks and notes the layer, unless it is empty.
func (e *Encoder) endLayer() error {
	for s := range e.builders {
		if err := e.seal(&e.builders[s]); err != nil {
			return err
		}
	}
	if err := e.land(0); err != nil {
		return err
	}
	l, done := &e.layers, Layer{Names: e.layers.names}
	for s := range e.builders {
		b := &e.builders[s]
		l.source = l.source || (Section(s) == SectionSource && len(b.refs) > 0)
		done.Chunks = append(done.Chunks, b.refs...)
		b.refs = nil
		b.order.reset()
	}
	if len(done.Chunks) > 0 || len(l.done) == 0 {
		l.done = append(l.done, done)
	}
	l.names = 0
	l.salt.layer++
	return nil
}

// patched begins an element of a patch. Members of sets and zsets are never
// cut, since a reader compares them whole.
func (e *Encoder) patched(b *builder, el Element) error {
	t := e.tr.key.Type
	if el.Removed {
		e.element = -1
		b.buf = appendRemoved(b.buf, t, el)
		if err := e.tr.element(el); err != nil {
			return e.fail(err)
		}
		if t == TypeHash {
			return e.fail(e.identity(el.Field))
		}
		return e.fail(e.identity(el.Value))
	}
	if t != TypeHash {
		if err := e.short(b, el); err != nil {
			return err
		}
		return e.named(b)
	}
	if err := e.identity(el.Field); err != nil {
		return e.fail(err)
	}
	if el.Size > uint64(e.whole) {
		return e.long(b, el)
	}
	return e.short(b, el)
}

// named takes the identity of a member once it is complete: it ends the
// builder then.
func (e *Encoder) named(b *builder) error {
	if e.tr.key.Type == TypeHash || e.tr.left > 0 {
		return nil
	}
	return e.fail(e.identity(b.buf[len(b.buf)-int(e.tr.size):]))
}

// identity refuses a field or member that the open patch has already.
func (e *Encoder) identity(id []byte) error {
	e.tr.name(id)
	if _, ok := e.layers.seen.put(id, 0); ok {
		return e.tr.wrap(fmt.Errorf("the patch has %s twice", quote(id)))
	}
	return nil
}
