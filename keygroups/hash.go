package keygroups

import "unicode/utf16"

// HashString is java.lang.String.hashCode: 31·h + unit over the UTF-16 code
// units, wrapping at 32 bits. A byte that is not part of valid UTF-8 counts
// as one U+FFFD, which is what a Java client sees of a key that it can't
// decode; so keys that differ in such bytes only may share a group.
func HashString(s string) int32 {
	var h int32
	for _, r := range s {
		if r > 0xFFFF {
			hi, lo := utf16.EncodeRune(r)
			h = 31*h + hi
			h = 31*h + lo
			continue
		}
		h = 31*h + r
	}
	return h
}

// HashLong is java.lang.Long.hashCode: the upper half folded onto the lower.
// (java.lang.Integer's is the value itself.)
func HashLong(v int64) int32 {
	return int32(uint32(v) ^ uint32(uint64(v)>>32))
}

// Murmur is Flink's MathUtils.murmurHash: MurmurHash3 (x86, 32 bits, seed 0)
// of the code's four bytes, made non-negative: a negative result is negated,
// and the one that has no negation (the smallest) becomes 0.
func Murmur(code int32) int32 {
	k := uint32(code)
	k *= 0xcc9e2d51
	k = k<<15 | k>>17
	k *= 0x1b873593

	h := k
	h = h<<13 | h>>19
	h = h*5 + 0xe6546b64

	h ^= 4 // the length in bytes
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16

	switch v := int32(h); {
	case v >= 0:
		return v
	case v != -v:
		return -v
	default:
		return 0
	}
}
