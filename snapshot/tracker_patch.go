package snapshot

import (
	"errors"
	"fmt"
	"math"
)

// What the grammar says of keys that change older layers' (format 2).

// checkOp checks a key that isn't whole.
func checkOp(k Key) error {
	switch {
	case k.Op > OpGone:
		return fmt.Errorf("unknown operation %d", k.Op)
	case k.Section == SectionSource:
		return errors.New("is a source's, and these are always whole")
	case k.Op == OpGone && k.Type != TypeMissing:
		return fmt.Errorf("is gone, but a %s", k.Type)
	case k.Op == OpPatch && !k.Type.patched():
		return fmt.Errorf("is a patch of a %s: only hashes, sets and zsets have them", k.Type)
	}
	return nil
}

// patched reports whether keys of the type may be patched: those whose
// elements have an identity.
func (t KeyType) patched() bool { return t == TypeHash || t == TypeSet || t == TypeZSet }

// patchError checks an element of a patch, or one that is removed.
func (t *tracker) patchError(e Element) error {
	k := t.key
	hash := k.Type == TypeHash
	switch {
	case e.Removed && k.Op != OpPatch && !(t.blind && k.Type.patched()):
		return errors.New("an element is removed, but the key is no patch")
	case e.Removed && hash && (e.Size != 0 || len(e.Value) != 0):
		return fmt.Errorf("field %s is removed, but has a value", quote(e.Field))
	case e.Removed && math.Float64bits(e.Score) != 0:
		return fmt.Errorf("member %s is removed, but has the score %v", quote(e.Value), e.Score)
	case e.Removed && uint64(len(e.Value)) != e.Size:
		return fmt.Errorf("a member of %d bytes is removed, and %d are given: want them whole", e.Size, len(e.Value))
	case !hash && e.Size > maxMember:
		return fmt.Errorf("a patch has a member of %d bytes: at most %d, the key must be read whole", e.Size, maxMember)
	}
	return nil
}

// patchCount checks the end of a patch: how many elements the key has
// afterwards is proved where layers are merged.
func (t *tracker) patchCount(end KeyEnd) error {
	k := t.key
	brought := end.Count - t.removed
	switch {
	case end.Expired && brought > k.Count:
		return fmt.Errorf("%d elements were read, the server said %d", brought, k.Count)
	case !end.Expired && k.Count == 0:
		return fmt.Errorf("a patch leaves the %s without elements: the server has no such keys", k.Type)
	}
	return nil
}

// name counts the identity of a patch's element: a hash field's name, or the
// member itself.
func (t *tracker) name(id []byte) { t.names += uint64(len(id)) }

// identities are the fields or members of a patch, by their bytes, each with
// the number of the record that brought it. Small ones are kept for the next
// key.
type identities struct{ by map[string]int }

// put remembers an identity, unless it is there: then it gives who brought it.
func (s *identities) put(id []byte, record int) (before int, ok bool) {
	if before, ok = s.by[string(id)]; ok {
		return before, true
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.by[string(id)] = record
	return 0, false
}

func (s *identities) has(id []byte) bool {
	if len(s.by) == 0 {
		return false
	}
	_, ok := s.by[string(id)]
	return ok
}

// reset forgets them. A map keeps its size, and clearing a large one for each
// key would cost more than a new one.
func (s *identities) reset() {
	const small = 512
	if len(s.by) > small {
		s.by = nil
	}
	clear(s.by)
}
