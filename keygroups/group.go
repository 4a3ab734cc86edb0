package keygroups

import (
	"fmt"
	"strconv"
)

// Group is the key group of a hash code: floorMod, or murmur first (design
// §5). The rule's MaxParallelism is at least 1 (Validate).
func (r Rule) Group(hashCode int32) int {
	g := r.MaxParallelism
	if r.Hash == HashFlink {
		return int(Murmur(hashCode)) % g
	}
	// Go's % takes the sign of the dividend, Java's floorMod that of the
	// divisor.
	return ((int(hashCode) % g) + g) % g
}

// GroupOfKey gives the hash code and the key group of a typed key (design §4):
// "s:" text, "n:" number, "j:" JSON, "t:" text of anything else. What follows
// the prefix is hashed as text, but for numbers when the rule's KeyType is int
// or long: these are hashed as a Java Integer or Long.
//
// ErrKey (wrapped, naming the key) for a key without one of the prefixes and
// for a number that is no integer of the rule's width; ErrRule for a rule
// that Validate refuses.
func (r Rule) GroupOfKey(typedKey string) (hash int32, group int, err error) {
	if err := r.check(); err != nil {
		return 0, 0, err
	}
	if len(typedKey) < 2 || typedKey[1] != ':' {
		return 0, 0, noTypedKey(typedKey)
	}
	text := typedKey[2:]
	switch typedKey[0] {
	case 's', 'j', 't':
		hash = HashString(text)
	case 'n':
		if hash, err = r.hashNumber(text); err != nil {
			return 0, 0, err
		}
	default:
		return 0, 0, noTypedKey(typedKey)
	}
	return hash, r.Group(hash), nil
}

// GroupOfText gives the hash code and the key group of a string key as a
// person writes it: what GroupOfKey gives for "s:" + key. ErrRule for a rule
// that Validate refuses.
func (r Rule) GroupOfText(key string) (hash int32, group int, err error) {
	if err := r.check(); err != nil {
		return 0, 0, err
	}
	hash = HashString(key)
	return hash, r.Group(hash), nil
}

func (r Rule) hashNumber(text string) (int32, error) {
	switch r.KeyType {
	case KeyInt:
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return 0, notInteger(text, KeyInt, 32)
		}
		return int32(v), nil
	case KeyLong:
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, notInteger(text, KeyLong, 64)
		}
		return HashLong(v), nil
	default: // KeyString
		return HashString(text), nil
	}
}

func noTypedKey(key string) error {
	return fmt.Errorf("%w %s: it begins with none of s:, n:, j:, t:; put the prefix of its type before it (s: for a string)", ErrKey, shorten(key))
}

// notInteger leaves out strconv's own error, which repeats the whole text.
func notInteger(text string, t KeyType, bits int) error {
	return fmt.Errorf("%w %s: it is no %d-bit integer, which key type %q asks for; set keyGroups.keyType to what the job's number keys are (string, int or long)",
		ErrKey, shorten("n:"+text), bits, t)
}

// shorten quotes a key for a message: keys may be megabytes long.
func shorten(key string) string {
	const most = 120
	if len(key) > most {
		return fmt.Sprintf("%q… (%d bytes)", key[:most], len(key))
	}
	return strconv.Quote(key)
}
