package redis

import "keyframe/snapshot"

// codedHash remembers a hash of the bookkeeping: the schema registry has a
// field for each key and few different values, so that it is larger than a
// payload is gathered for, and remembered in a third of its size.
type codedHash struct {
	deltas
	on           bool
	field, value []byte // of the last element
	sum          textSum
	count        uint32
}

// codes says that the key is remembered in this way.
func codes(k snapshot.Key) bool {
	return k.Section == snapshot.SectionMeta && k.Type == snapshot.TypeHash
}

func (c *codedHash) begin() {
	*c = codedHash{on: true, field: c.field[:0], value: c.value[:0]}
}

// fits says that the element can be added: it is whole, and the bounds are
// kept.
func (c *codedHash) fits(e snapshot.Element) bool {
	const around = 2 * 5
	size := uint64(len(e.Field)) + e.Size + around
	return uint64(len(e.Value)) == e.Size && uint64(c.held)+size <= codedMost+codedBlock && c.sum.bytes+size <= codedWritten
}

func (c *codedHash) add(e snapshot.Element) {
	c.sum.add(e.Field)
	c.sum.add(e.Value)
	c.count++
	c.field = c.put(c.field, e.Field, 0)
	c.value = c.put(c.value, e.Value, 0)
}

// each gives fields and values in turns.
func (c *codedHash) each(fn func(text []byte) error) error {
	var last [2][]byte
	at := 0
	return c.deltas.each(func(same int, _ uint64, rest []byte) error {
		last[at] = append(last[at][:same], rest...)
		text := last[at]
		at = 1 - at
		return fn(text)
	})
}

// read gives what the payload will hold, as payloadReader.read does.
func (c *codedHash) read(fields *distinct) (summary, error) {
	var d snapshot.Digester
	d.Reset(snapshot.TypeHash)
	fields.reset(c.count)
	var field []byte
	odd := false
	err := c.each(func(text []byte) error {
		if odd = !odd; odd {
			field = text
			if fields.repeats(field) {
				return errTwice(field)
			}
			return nil
		}
		d.Element(snapshot.Element{Field: field, Size: uint64(len(text)), Value: text})
		return nil
	})
	return summary{count: d.Count(), digest: d.Sum()}, err
}

// sendHash stages what is remembered of the open key, if anything is.
func (s *staging) sendHash() error {
	h := &s.hash
	h.on = false
	if h.count == 0 {
		return nil
	}
	s.cur.stored = int64(h.count)
	err := s.restoreTexts(sentCommand{key: s.cur.key.Name}, s.cur.target, rdbHash, h.count, h.sum.bytes, h.each)
	h.deltas = deltas{}
	return err
}
