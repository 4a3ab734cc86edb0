package cut

import (
	"cmp"
	"context"

	"keyframe/snapshot"
)

// brief is what a comparison knows of a key: its content as a digest over the
// elements that are not marked as written.
type brief struct {
	section  snapshot.Section
	name     []byte
	kind     snapshot.KeyType
	label    string // type name and server of an opaque key
	expireAt int64
	expired  bool
	count    uint64
	digest   uint64
}

// order is the order in which a sorted checkpoint has its keys.
func (b brief) order(o brief) int {
	return cmp.Or(cmp.Compare(b.section, o.section), snapshot.CompareNames(b.name, o.name))
}

// briefs is how many keys are handed over at once.
const briefs = 128

// side is one of two checkpoints that are walked side by side.
type side struct {
	in   <-chan []brief
	done <-chan error // nil once it has been read
	err  error
	now  []brief
}

// open walks the keys of a checkpoint in the background.
func (j *judge) open(ctx context.Context, src snapshot.ChunkSource, m *snapshot.Manifest) *side {
	out, done := make(chan []brief, 1), make(chan error, 1)
	go func() {
		d := &digester{ctx: ctx, marks: j, out: out}
		err := snapshot.Walk(ctx, src, m, d, snapshot.SectionKeyed, snapshot.SectionOperator)
		if err == nil {
			err = d.send()
		}
		close(out)
		done <- err
	}()
	return &side{in: out, done: done}
}

// next gives the next key, nil at the end. The error is the walk's: keys that
// could not be read are not keys that aren't there.
func (s *side) next() (*brief, error) {
	if len(s.now) == 0 {
		s.now = <-s.in
	}
	if len(s.now) == 0 {
		return nil, s.end()
	}
	b := &s.now[0]
	s.now = s.now[1:]
	return b, nil
}

// end waits for the walk's end and gives its error. It may be called again.
func (s *side) end() error {
	if s.done == nil {
		return s.err
	}
	for range s.in { // it ends by its context, or has ended
	}
	s.err, s.done = <-s.done, nil
	return s.err
}

// digester makes briefs of keys.
type digester struct {
	ctx   context.Context
	marks *judge
	out   chan<- []brief
	batch []brief

	key    brief
	fields map[string]struct{}
	whole  bool // the key isn't compared at all
	d      snapshot.Digester
	skip   bool   // the open element is marked
	member []byte // of an open element that is longer than its first part
	el     snapshot.Element
}

var _ snapshot.Sink = (*digester)(nil)

// BeginKey implements snapshot.Sink.
func (d *digester) BeginKey(k snapshot.Key) error {
	mark := d.marks.marks[string(k.Name)]
	d.fields, d.whole, d.member = mark.Fields, mark.Whole, nil
	d.key = brief{section: k.Section, name: append([]byte(nil), k.Name...), kind: k.Type, expireAt: k.ExpireAt}
	if k.Type == snapshot.TypeOpaque {
		d.key.label = k.TypeName + " " + k.Server
	}
	d.d.Reset(k.Type)
	return nil
}

// Element implements snapshot.Sink.
func (d *digester) Element(e snapshot.Element) error {
	d.skip = d.whole
	switch {
	case d.whole:
	case len(d.fields) == 0:
		d.d.Element(e)
	case d.key.kind == snapshot.TypeHash:
		if _, d.skip = d.fields[string(e.Field)]; !d.skip {
			d.d.Element(e)
		}
	case e.Size > uint64(len(e.Value)) && e.Size <= snapshot.MaxName:
		// It can only be told whether a member is marked once it is there.
		d.el, d.skip = e, true
		d.member = append(make([]byte, 0, e.Size), e.Value...)
	case e.Size > uint64(len(e.Value)):
		d.d.Element(e) // no mark is that long
	default:
		d.add(e)
	}
	return nil
}

// add digests a whole member unless it is marked.
func (d *digester) add(e snapshot.Element) {
	if _, d.skip = d.fields[string(e.Value)]; !d.skip {
		d.d.Element(e)
	}
}

// Part implements snapshot.Sink.
func (d *digester) Part(b []byte) error {
	switch {
	case d.member != nil:
		if d.member = append(d.member, b...); uint64(len(d.member)) == d.el.Size {
			d.el.Value, d.member = d.member, nil
			d.add(d.el)
			d.skip = true // its parts are all there
		}
	case !d.skip:
		d.d.Part(b)
	}
	return nil
}

// EndKey implements snapshot.Sink.
func (d *digester) EndKey(e snapshot.KeyEnd) error {
	d.key.expired = e.Expired
	d.key.count, d.key.digest = d.d.Count(), d.d.Sum()
	if d.batch = append(d.batch, d.key); len(d.batch) < briefs {
		return nil
	}
	return d.send()
}

// send hands the batch over.
func (d *digester) send() error {
	if len(d.batch) == 0 {
		return nil
	}
	select {
	case d.out <- d.batch:
		d.batch = make([]brief, 0, briefs)
		return nil
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	}
}
