package memory

import (
	"bytes"
	"fmt"
	"iter"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// object is one key's content. Once frozen it isn't written any more: the next
// writer puts a fork in its place.
type object struct {
	typ      snapshot.KeyType
	expireAt int64 // ms since 1970, 0 for none
	frozen   bool

	text []byte          // of a string
	hash *table[[]byte]  // also the members of a set, with nil values
	zset *table[float64] // member → score
	list [][]byte        // grows at the end only, so snapshots may share it
}

func newObject(t snapshot.KeyType, token uint64) *object {
	o := &object{typ: t}
	switch t {
	case snapshot.TypeHash, snapshot.TypeSet:
		o.hash = newTable[[]byte](token)
	case snapshot.TypeZSet:
		o.zset = newTable[float64](token)
	}
	return o
}

// fork gives an object with the same content that may be written.
func (o *object) fork(token uint64) *object {
	c := *o
	c.frozen = false
	if o.hash != nil {
		c.hash = o.hash.fork(token)
	}
	if o.zset != nil {
		c.zset = o.zset.fork(token)
	}
	return &c
}

// count is how many elements the object has.
func (o *object) count() int {
	switch o.typ {
	case snapshot.TypeString:
		return 1
	case snapshot.TypeList:
		return len(o.list)
	case snapshot.TypeZSet:
		return o.zset.n
	default:
		return o.hash.n
	}
}

// elements gives the object's elements; the slices are the object's own.
func (o *object) elements() iter.Seq[snapshot.Element] {
	return func(yield func(snapshot.Element) bool) {
		one := func(field string, score float64, value []byte) bool {
			e := snapshot.Element{Score: score, Size: uint64(len(value)), Value: value}
			if o.typ == snapshot.TypeHash {
				e.Field = []byte(field)
			}
			return yield(e)
		}
		switch o.typ {
		case snapshot.TypeString:
			one("", 0, o.text)
		case snapshot.TypeList:
			for _, v := range o.list {
				if !one("", 0, v) {
					return
				}
			}
		case snapshot.TypeHash:
			for f, v := range o.hash.all() {
				if !one(f, 0, v) {
					return
				}
			}
		case snapshot.TypeSet:
			for m := range o.hash.all() {
				if !one("", 0, []byte(m)) {
					return
				}
			}
		case snapshot.TypeZSet:
			for m, s := range o.zset.all() {
				if !one("", s, []byte(m)) {
					return
				}
			}
		}
	}
}

// add takes one whole element; it reports whether the element is new (a list
// item always is). The bytes are copied.
func (o *object) add(e snapshot.Element) bool {
	switch o.typ {
	case snapshot.TypeString:
		o.text = bytes.Clone(e.Value)
	case snapshot.TypeList:
		o.list = append(o.list, bytes.Clone(e.Value))
	case snapshot.TypeHash:
		return o.hash.set(string(e.Field), bytes.Clone(e.Value))
	case snapshot.TypeSet:
		return o.hash.set(string(e.Value), nil)
	case snapshot.TypeZSet:
		return o.zset.set(string(e.Value), e.Score)
	}
	return true
}

// summary is what the object holds, without its elements.
func (o *object) summary(name string) statebackend.KeySummary {
	if o == nil {
		return statebackend.KeySummary{Name: []byte(name), Type: snapshot.TypeMissing}
	}
	var d snapshot.Digester
	d.Reset(o.typ)
	for e := range o.elements() {
		d.Element(e)
	}
	return statebackend.KeySummary{Name: []byte(name), Type: o.typ, Count: d.Count(), Digest: d.Sum()}
}

// bytes is the logical size of the object's elements.
func (o *object) bytes() uint64 {
	var n uint64
	for e := range o.elements() {
		n += uint64(len(e.Field)) + e.Size
	}
	return n
}

func wrongType(key string, have, want snapshot.KeyType) error {
	return &statebackend.KeyError{Key: []byte(key), Op: "use", Err: fmt.Errorf("%w: it is a %s, the command needs a %s",
		statebackend.ErrWrongType, have, want)}
}
