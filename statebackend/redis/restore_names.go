package redis

import "strconv"

// The names of all keys are staged twice: in the order of the numbers, as the
// mapping, and as the index. Both go fastest as one payload each. To make them
// the names are remembered. Names beyond the bounds go in plain commands.

// codedNames remembers names. The zero value is ready.
type codedNames struct {
	deltas
	// off says that names go in plain commands: from the beginning, or since
	// what was remembered was sent.
	off     bool
	last    []byte
	mapped  textSum
	indexed textSum
}

// The flags of a name.
const (
	codedMapped  = 1
	codedIndexed = 2
)

// add takes a name for the mapping, the index, or both.
func (c *codedNames) add(name []byte, mapped, indexed bool) {
	flags := uint64(0)
	if mapped {
		flags |= codedMapped
		c.mapped.add(name)
	}
	if indexed {
		flags |= codedIndexed
		c.indexed.add(name)
	}
	c.last = c.put(c.last, name, flags)
}

// enough says that no more should be remembered.
func (c *codedNames) enough() bool {
	return c.held >= codedMost || max(c.mapped.bytes, c.indexed.bytes) >= codedWritten
}

// each gives the names with one of the flags, in the order in which they came.
// A name is valid during the call.
func (c *codedNames) each(flag uint64, fn func(name []byte) error) error {
	var name []byte
	return c.deltas.each(func(same int, flags uint64, rest []byte) error {
		name = append(name[:same], rest...)
		if flags&flag == 0 {
			return nil
		}
		return fn(name)
	})
}

// enterName puts the name of the key that has ended into the mapping and the
// index.
func (s *staging) enterName(name []byte, mapped, indexed bool) error {
	if !mapped && !indexed {
		return nil
	}
	if !s.names.off {
		s.names.add(name, mapped, indexed)
		if indexed {
			s.index.count++
		}
		if s.names.enough() {
			return s.sendCoded()
		}
		return nil
	}
	if mapped {
		s.mapped.add(name)
	}
	if indexed {
		return s.addName(&s.index, name)
	}
	return nil
}

// sendCoded stages the names that are remembered; later ones follow in plain
// commands.
func (s *staging) sendCoded() error {
	if s.names.off {
		return nil
	}
	s.names.off = true
	for _, to := range []struct {
		key  string
		kind byte
		flag uint64
		sum  textSum
	}{
		{stageMap, rdbList, codedMapped, s.names.mapped}, {stageIndex, rdbSet, codedIndexed, s.names.indexed},
	} {
		if to.sum.count == 0 {
			continue
		}
		cmd := sentCommand{hint: "the names of " + strconv.FormatUint(uint64(to.sum.count), 10) + " keys"}
		each := func(fn func([]byte) error) error { return s.names.each(to.flag, fn) }
		if err := s.restoreTexts(cmd, []byte(s.prefix+to.key), to.kind, to.sum.count, to.sum.bytes, each); err != nil {
			return err
		}
	}
	s.names = codedNames{off: true}
	return nil
}
