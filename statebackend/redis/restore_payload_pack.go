package redis

import (
	"encoding/binary"
	"math"
)

// A small hash is loaded fastest in the form in which the server keeps it, a
// listpack (listpack.c): one copy instead of an allocation for each field. Its
// limits are the server's defaults; a server with lower ones converts it.
const (
	rdbHashListpack = 16
	packVersion     = 10 // of the format: server version 7.0 brought listpacks
	packElements    = 128
	packValue       = 64 // bytes of a field or a value
	packHead        = 6  // size and number of entries
	packEnd         = 0xff
)

// listpack gathers the fields and values of one hash.
type listpack struct {
	on      bool
	entries uint16
	b       []byte // of a payload: its type, five bytes for the length, the listpack
}

func (p *listpack) reset(on bool) {
	p.on, p.entries = on, 0
	if on {
		p.b = append(p.b[:0], make([]byte, payloadHead+packHead)...)
	}
}

func (p *listpack) add(field, value []byte) {
	if !p.on {
		return
	}
	if len(field) > packValue || len(value) > packValue {
		p.on = false
		return
	}
	p.b = appendEntry(appendEntry(p.b, field), value)
	p.entries += 2
}

// payload completes the compact payload; nil when the hash has none. It is
// valid until the next reset.
func (p *listpack) payload() []byte {
	if !p.on {
		return nil
	}
	p.b = append(p.b, packEnd)
	size := uint32(len(p.b) - payloadHead)
	p.b[0], p.b[1] = rdbHashListpack, length32
	binary.BigEndian.PutUint32(p.b[2:], size)
	binary.LittleEndian.PutUint32(p.b[payloadHead:], size)
	binary.LittleEndian.PutUint16(p.b[payloadHead+4:], p.entries)
	p.b = sealed(p.b, packVersion)
	return p.b
}

// appendEntry writes one entry: what it is, its content, and behind it their
// length, by which a list is read backwards. Text that is exactly a number is
// kept as one, as the server does.
func appendEntry(b, text []byte) []byte {
	start := len(b)
	if n, ok := integer(text); ok {
		b = appendInteger(b, n)
	} else if len(text) < 64 {
		b = append(append(b, 0x80|byte(len(text))), text...)
	} else {
		b = append(append(b, 0xe0|byte(len(text)>>8), byte(len(text))), text...)
	}
	return append(b, byte(len(b)-start)) // below 128: one byte
}

func appendInteger(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n <= 127:
		return append(b, byte(n))
	case n >= -1<<12 && n < 1<<12:
		u := uint16(n) & 0x1fff
		return append(b, 0xc0|byte(u>>8), byte(u))
	case n >= math.MinInt16 && n <= math.MaxInt16:
		return binary.LittleEndian.AppendUint16(append(b, 0xf1), uint16(n))
	case n >= -1<<23 && n < 1<<23:
		return append(b, 0xf2, byte(n), byte(n>>8), byte(n>>16))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		return binary.LittleEndian.AppendUint32(append(b, 0xf3), uint32(n))
	}
	return binary.LittleEndian.AppendUint64(append(b, 0xf4), uint64(n))
}

// integer reads text that is the one decimal form of a number of 64 bits: no
// sign but a minus, no leading zero, no -0.
func integer(text []byte) (int64, bool) {
	digits := text
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		digits = text[1:]
	}
	switch {
	case len(digits) == 0 || len(digits) > 19:
		return 0, false
	case digits[0] == '0' && (len(digits) > 1 || negative):
		return 0, false
	}
	var n uint64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint64(d-'0')
	}
	if negative {
		return -int64(n), n <= 1<<63
	}
	return int64(n), n <= math.MaxInt64
}

// packs says that the server reads listpacks.
func packs(version string) bool { return versionAtLeast(version, 7) }
