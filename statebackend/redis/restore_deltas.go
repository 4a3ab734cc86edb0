package redis

import "encoding/binary"

// What is known to repeat itself, names and what goes with them, is remembered
// by what each text doesn't share with the beginning of the one before. A
// payload of it is made as it is sent and never held as a whole.
const (
	// codedMost bounds what is remembered, in bytes; codedWritten what of it
	// becomes of the payload, which the server loads in some 100 ms.
	codedMost    = 8 << 20
	codedWritten = 3 * payloadMost
	codedBlock   = 256 << 10 // memory is taken in such steps
	// payloadPiece is how much of a payload is made at a time.
	payloadPiece = 64 << 10
)

// deltas remembers texts. The zero value is ready.
type deltas struct {
	held   int      // bytes of all blocks
	blocks [][]byte // each of whole entries
	b      []byte   // the last block
}

// put remembers text, which comes after last, with two flags. It gives text in
// the memory of last.
func (d *deltas) put(last, text []byte, flags uint64) []byte {
	same := 0
	for same < min(len(text), len(last)) && text[same] == last[same] {
		same++
	}
	if need := len(text) - same + 2*binary.MaxVarintLen64; len(d.b)+need > cap(d.b) {
		if len(d.b) > 0 {
			d.blocks = append(d.blocks, d.b)
		}
		d.b = make([]byte, 0, max(codedBlock, need))
		d.held += cap(d.b)
	}
	d.b = binary.AppendUvarint(d.b, uint64(same)<<2|flags)
	d.b = binary.AppendUvarint(d.b, uint64(len(text)-same))
	d.b = append(d.b, text[same:]...)
	return append(last[:same], text[same:]...)
}

// each gives what was put, in its order: how much it shares, and the rest.
func (d *deltas) each(fn func(same int, flags uint64, rest []byte) error) error {
	for _, b := range append(d.blocks[:len(d.blocks):len(d.blocks)], d.b) {
		for len(b) > 0 {
			head, n := binary.Uvarint(b)
			b = b[n:]
			size, n := binary.Uvarint(b)
			b = b[n:]
			if err := fn(int(head>>2), head&3, b[:size]); err != nil {
				return err
			}
			b = b[size:]
		}
	}
	return nil
}

// textSum is how many texts there are, and their bytes in a payload.
type textSum struct {
	count uint32
	bytes uint64
}

func (n *textSum) add(text []byte) {
	n.count++
	n.bytes += lengthSize(uint64(len(text))) + uint64(len(text))
}

// restoreTexts stages a key of count elements, whose texts are of so many
// bytes in a payload.
func (s *staging) restoreTexts(cmd sentCommand, key []byte, kind byte, count uint32, bytes uint64, each func(fn func([]byte) error) error) error {
	cmd.verb, cmd.ok, cmd.ours, cmd.size = "RESTORE", true, true, int64(bytes)
	if err := s.beginRestore(cmd, key, payloadHead+bytes+payloadFoot); err != nil {
		return err
	}
	w := textsWriter{pipe: s.pipe, b: make([]byte, 0, 2*payloadPiece)}
	w.b = binary.BigEndian.AppendUint32(append(w.b, kind, length32), count)
	if err := each(w.add); err != nil {
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

type textsWriter struct {
	pipe *stagePipe
	b    []byte
	crc  uint64
}

func (w *textsWriter) add(text []byte) error {
	w.b = append(appendLength(w.b, uint64(len(text))), text...)
	if len(w.b) < payloadPiece {
		return nil
	}
	w.crc = crcUpdate(w.crc, w.b)
	err := w.pipe.write(w.b)
	w.b = w.b[:0]
	return err
}
