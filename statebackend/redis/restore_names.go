package redis

import (
	"encoding/binary"
	"strconv"
)

// The names of all keys are staged twice: in the order of the numbers, as the
// mapping, and as the index. Both go fastest as one payload each. To make them
// the names are remembered, each by what it doesn't share with the one before.
const (
	// codedMost bounds what is remembered, in bytes; codedWritten what of it
	// becomes of the larger payload. Names beyond go in plain commands.
	codedMost    = 8 << 20
	codedWritten = 3 * payloadMost
	codedBlock   = 256 << 10 // memory is taken in such steps
)

// codedNames remembers names. The zero value is ready.
type codedNames struct {
	// off says that names go in plain commands: from the beginning, or since
	// what was remembered was sent.
	off     bool
	held    int      // bytes of all blocks
	blocks  [][]byte // each of whole entries
	b       []byte   // the last block
	last    []byte   // the name before, whole
	mapped  nameSum
	indexed nameSum
}

// nameSum is how many names there are, and their bytes in a payload.
type nameSum struct {
	count uint32
	bytes uint64
}

func (n *nameSum) add(name []byte) {
	n.count++
	n.bytes += lengthSize(uint64(len(name))) + uint64(len(name))
}

// The low bits of an entry.
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
	same := 0
	for same < min(len(name), len(c.last)) && name[same] == c.last[same] {
		same++
	}
	if len(c.b)+len(name)+2*binary.MaxVarintLen64 > cap(c.b) {
		if len(c.b) > 0 {
			c.blocks = append(c.blocks, c.b)
		}
		c.b = make([]byte, 0, max(codedBlock, len(name)+2*binary.MaxVarintLen64))
		c.held += cap(c.b)
	}
	c.b = binary.AppendUvarint(c.b, uint64(same)<<2|flags)
	c.b = binary.AppendUvarint(c.b, uint64(len(name)-same))
	c.b = append(c.b, name[same:]...)
	c.last = append(c.last[:same], name[same:]...)
}

// enough says that no more should be remembered.
func (c *codedNames) enough() bool {
	return c.held >= codedMost || max(c.mapped.bytes, c.indexed.bytes) >= codedWritten
}

// each gives the names with one of the flags, in the order in which they came.
// A name is valid during the call.
func (c *codedNames) each(flag uint64, fn func(name []byte) error) error {
	var name []byte
	for _, b := range append(c.blocks[:len(c.blocks):len(c.blocks)], c.b) {
		for len(b) > 0 {
			head, n := binary.Uvarint(b)
			b = b[n:]
			size, n := binary.Uvarint(b)
			b = b[n:]
			name = append(name[:head>>2], b[:size]...)
			b = b[size:]
			if head&flag == 0 {
				continue
			}
			if err := fn(name); err != nil {
				return err
			}
		}
	}
	return nil
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
		sum  nameSum
	}{
		{stageMap, rdbList, codedMapped, s.names.mapped}, {stageIndex, rdbSet, codedIndexed, s.names.indexed},
	} {
		if to.sum.count == 0 {
			continue
		}
		if err := s.restoreNames(s.prefix+to.key, to.kind, to.flag, to.sum); err != nil {
			return err
		}
	}
	s.names = codedNames{off: true}
	return nil
}

// restoreNames writes the names as one payload, which is never held as a whole.
func (s *staging) restoreNames(key string, kind byte, flag uint64, sum nameSum) error {
	cmd := sentCommand{verb: "RESTORE", ok: true, ours: true, size: int64(sum.bytes),
		hint: "the names of " + strconv.FormatUint(uint64(sum.count), 10) + " keys"}
	if err := s.beginRestore(cmd, []byte(key), payloadHead+sum.bytes+payloadFoot); err != nil {
		return err
	}
	w := namesWriter{pipe: s.pipe, b: make([]byte, 0, 2*payloadPiece)}
	w.b = binary.BigEndian.AppendUint32(append(w.b, kind, length32), sum.count)
	if err := s.names.each(flag, w.add); err != nil {
		return err
	}
	w.b = binary.LittleEndian.AppendUint16(w.b, payloadVersion)
	w.crc = crcUpdate(w.crc, w.b)
	w.b = binary.LittleEndian.AppendUint64(w.b, w.crc)
	if err := s.pipe.write(w.b); err != nil {
		return err
	}
	return s.pipe.end(cmd)
}

// payloadPiece is how much of a payload is made at a time.
const payloadPiece = 64 << 10

type namesWriter struct {
	pipe *stagePipe
	b    []byte
	crc  uint64
}

func (w *namesWriter) add(name []byte) error {
	w.b = append(appendLength(w.b, uint64(len(name))), name...)
	if len(w.b) < payloadPiece {
		return nil
	}
	w.crc = crcUpdate(w.crc, w.b)
	err := w.pipe.write(w.b)
	w.b = w.b[:0]
	return err
}
