package snapshot

import (
	"errors"
	"fmt"
)

// RecordedKey is one key as a Recorder keeps it.
type RecordedKey struct {
	Key      Key
	Elements []RecordedElement
	End      KeyEnd // Count and Digest are set also when the caller gave none
	Layer    int    // in which it came: how often NextLayer had been called
}

// RecordedElement is one element with its value put together. In a key that
// expired while it was being read the last one may lack bytes: len(Value) <
// Size.
type RecordedElement struct {
	Field []byte
	Score float64
	Size  uint64
	Value []byte
	// Removed: a patch takes it away.
	Removed bool
}

// Recorder is a Sink that keeps every key in memory, for tests and small
// states. It holds its callers to the grammar and the counts as an Encoder
// does, but not to what concerns layers as a whole: their order, what a loose
// key owes, fields that a patch has twice. The zero value is ready. Not safe
// for concurrent use.
type Recorder struct {
	Keys  []RecordedKey // in the order in which they came
	tr    tracker
	layer int
	err   error
}

var _ LayerSink = (*Recorder)(nil)

// NextLayer notes that what follows is in another layer.
func (r *Recorder) NextLayer() error {
	if r.err == nil && r.tr.open {
		r.err = r.tr.wrap(errors.New("is still open at the end of its layer"))
	}
	if r.err == nil {
		r.layer++
	}
	return r.err
}

// keep copies; nothing is always nil, so that recordings compare with Equal.
func keep(b []byte) []byte { return append([]byte(nil), b...) }

// BeginKey opens a key.
func (r *Recorder) BeginKey(k Key) error {
	if r.err == nil {
		r.err = r.tr.begin(k)
	}
	if r.err == nil {
		k.Name = keep(k.Name)
		r.Keys = append(r.Keys, RecordedKey{Key: k, Layer: r.layer})
	}
	return r.err
}

// Element adds an element to the open key.
func (r *Recorder) Element(e Element) error {
	if r.err == nil {
		r.err = r.tr.element(e)
	}
	if r.err == nil {
		k := &r.Keys[len(r.Keys)-1]
		k.Elements = append(k.Elements, RecordedElement{
			Field: keep(e.Field), Score: e.Score, Size: e.Size, Value: keep(e.Value), Removed: e.Removed})
	}
	return r.err
}

// Part adds bytes to the open value.
func (r *Recorder) Part(b []byte) error {
	if r.err == nil {
		r.err = r.tr.part(b)
	}
	if r.err == nil && len(b) > 0 {
		k := &r.Keys[len(r.Keys)-1]
		e := &k.Elements[len(k.Elements)-1]
		e.Value = append(e.Value, b...)
	}
	return r.err
}

// EndKey closes the key.
func (r *Recorder) EndKey(said KeyEnd) error {
	if r.err != nil {
		return r.err
	}
	end, err := r.tr.end(said.Expired)
	if err == nil && (said.Count != 0 || said.Digest != 0) {
		err = r.tr.sameEnd(said, end)
	}
	if err != nil {
		r.err = err
		return err
	}
	r.Keys[len(r.Keys)-1].End = end
	return nil
}

// Find gives the key of a section and name, nil when there is none.
func (r *Recorder) Find(s Section, name string) *RecordedKey {
	for i := range r.Keys {
		if r.Keys[i].Key.Section == s && string(r.Keys[i].Key.Name) == name {
			return &r.Keys[i]
		}
	}
	return nil
}

// Replay pushes recorded keys into a sink, values in parts of at most MaxPart.
func Replay(keys []RecordedKey, sink Sink) error {
	for i := range keys {
		if err := replayKey(&keys[i], sink); err != nil {
			return fmt.Errorf("replay key %s: %w", quote(keys[i].Key.Name), err)
		}
	}
	return nil
}

func replayKey(k *RecordedKey, sink Sink) error {
	if err := sink.BeginKey(k.Key); err != nil {
		return err
	}
	for _, e := range k.Elements {
		n := min(len(e.Value), MaxPart)
		if err := sink.Element(Element{Field: e.Field, Score: e.Score, Size: e.Size, Value: e.Value[:n], Removed: e.Removed}); err != nil {
			return err
		}
		for rest := e.Value[n:]; len(rest) > 0; rest = rest[n:] {
			n = min(len(rest), MaxPart)
			if err := sink.Part(rest[:n]); err != nil {
				return err
			}
		}
	}
	return sink.EndKey(k.End)
}

// tee pushes into several sinks.
type tee struct {
	sinks []Sink
	err   error
}

var _ Sink = (*tee)(nil)

// Tee gives a Sink that passes each call on to all of sinks in order. The
// first error ends the call, and is what every later call gives.
func Tee(sinks ...Sink) Sink { return &tee{sinks: sinks} }

func (t *tee) each(fn func(Sink) error) error {
	for _, s := range t.sinks {
		if t.err != nil {
			break
		}
		t.err = fn(s)
	}
	return t.err
}

// BeginKey passes on.
func (t *tee) BeginKey(k Key) error { return t.each(func(s Sink) error { return s.BeginKey(k) }) }

// Element passes on.
func (t *tee) Element(e Element) error { return t.each(func(s Sink) error { return s.Element(e) }) }

// Part passes on.
func (t *tee) Part(b []byte) error { return t.each(func(s Sink) error { return s.Part(b) }) }

// EndKey passes on.
func (t *tee) EndKey(e KeyEnd) error { return t.each(func(s Sink) error { return s.EndKey(e) }) }

// layerTee pushes layers into several sinks.
type layerTee struct {
	tee
	layers []LayerSink
}

var _ LayerSink = (*layerTee)(nil)

// TeeLayers is Tee for sinks that take layers.
func TeeLayers(sinks ...LayerSink) LayerSink {
	t := &layerTee{layers: sinks}
	for _, s := range sinks {
		t.sinks = append(t.sinks, s)
	}
	return t
}

// NextLayer passes on.
func (t *layerTee) NextLayer() error {
	for _, s := range t.layers {
		if t.err != nil {
			break
		}
		t.err = s.NextLayer()
	}
	return t.err
}
