package redis

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// runMost is up to how many elements are handed on in one call: they and
// their bytes should stay in the processor's nearest cache.
const runMost = 128

// run reads short elements from the front of the open array, of which parts
// are left, straight out of the connection's buffer. It gives how many parts
// it took and how many elements went to the sink; none of either when the next
// one is to be read by itself.
func (r *cutReader) run(k *keyInfo, parts int64, seen *nameSet) (took, given int64, err error) {
	w := width(k.typ)
	r.parts, err = r.conn.Bulks(r.parts[:0], int(w), int(min(parts, runMost*w)))
	if err != nil || len(r.parts) == 0 {
		return 0, 0, err
	}
	took = int64(len(r.parts))
	for _, p := range r.parts {
		r.stream.read += int64(len(p))
	}
	if r.elems, err = shape(r.elems[:0], r.parts, k.typ); err != nil {
		return took, 0, err
	}
	if seen != nil {
		r.elems = seen.fresh(r.elems, k.typ == snapshot.TypeHash)
	}
	return took, int64(len(r.elems)), snapshot.PushElements(r.sink, r.elems)
}

// shape makes elements of the parts of a reply.
func shape(to []snapshot.Element, parts [][]byte, t snapshot.KeyType) ([]snapshot.Element, error) {
	switch t {
	case snapshot.TypeHash:
		for i := 0; i+1 < len(parts); i += 2 {
			to = append(to, snapshot.Element{Field: parts[i], Value: parts[i+1], Size: uint64(len(parts[i+1]))})
		}
	case snapshot.TypeZSet:
		for i := 0; i+1 < len(parts); i += 2 {
			score, err := scoreOf(parts[i+1])
			if err != nil {
				return to, err
			}
			to = append(to, snapshot.Element{Score: score, Value: parts[i], Size: uint64(len(parts[i]))})
		}
	default:
		for _, p := range parts {
			to = append(to, snapshot.Element{Value: p, Size: uint64(len(p))})
		}
	}
	return to, nil
}

// exactDigits is how many digits a float64 holds whatever they are.
const exactDigits = 15

// scoreOf is parseScore with a short way for whole numbers, as times are.
func scoreOf(b []byte) (float64, error) {
	if len(b) > maxScore {
		return 0, fmt.Errorf("%w: score of %d bytes", resp.ErrProtocol, len(b))
	}
	if len(b) == 0 || len(b) > exactDigits || b[0] == '-' {
		return parseScore(string(b)) // a zero may have a sign
	}
	var n int64
	for _, d := range b {
		if d < '0' || d > '9' {
			return parseScore(string(b))
		}
		n = n*10 + int64(d-'0')
	}
	return float64(n), nil
}
