package snapshot

import "fmt"

// KeyType is the Redis type of a key in a checkpoint. The numbers are part of
// the format (FORMAT.md) and never change.
type KeyType uint8

// The types. TypeMissing is a name that the job's index lists but that does
// not exist: it belongs to the index and to nothing else. TypeOpaque is a key
// that has no elements Keyframe knows (a stream, a module type): its content
// is one element, the server's DUMP payload.
const (
	TypeMissing KeyType = 0
	TypeString  KeyType = 1
	TypeHash    KeyType = 2
	TypeList    KeyType = 3
	TypeSet     KeyType = 4
	TypeZSet    KeyType = 5
	TypeOpaque  KeyType = 6
)

var keyTypeNames = [...]string{"missing", "string", "hash", "list", "set", "zset", "opaque"}

// String is the type's name, as Redis's TYPE gives it where it has one.
func (t KeyType) String() string {
	if int(t) < len(keyTypeNames) {
		return keyTypeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Valid reports whether t is a type of format 1.
func (t KeyType) Valid() bool { return int(t) < len(keyTypeNames) }

// Ordered reports whether the order of a key's elements is part of its
// content (lists; strings and opaque payloads have one element).
func (t KeyType) Ordered() bool { return t == TypeList || t == TypeString || t == TypeOpaque }

// Section says what part of a job a key belongs to. The numbers are part of
// the format.
type Section uint8

// The sections. Keyed and operator keys are the job's stateKeys index, whole:
// each indexed name is exactly one key in one of these two sections. Meta keys
// are the job's own bookkeeping (schema registry, operator state modes,
// assignment), carried as the bytes they are. Source keys are the commit
// frontiers and the pending entries of the sources' consumer groups.
const (
	SectionKeyed    Section = 1
	SectionOperator Section = 2
	SectionMeta     Section = 3
	SectionSource   Section = 4
)

// String is the section's name.
func (s Section) String() string {
	switch s {
	case SectionKeyed:
		return "keyed"
	case SectionOperator:
		return "operator"
	case SectionMeta:
		return "meta"
	case SectionSource:
		return "source"
	}
	return fmt.Sprintf("section(%d)", uint8(s))
}

// Valid reports whether s is a section of format 1.
func (s Section) Valid() bool { return s >= SectionKeyed && s <= SectionSource }

// Limits of format 1, in bytes. A reader refuses what is larger, a writer
// never makes it. Values have no limit but the server's: they go in parts.
const (
	MaxName  = 16 << 20 // a key's name or a hash field's name
	MaxPart  = 1 << 20  // one part of a value
	MaxChunk = 40 << 20 // the raw content of a chunk: its target plus one name and one field
)

// Key opens a key in the stream of records.
type Key struct {
	Section Section
	Name    []byte
	Type    KeyType
	// ExpireAt is the absolute expiry in ms since 1970, 0 for none.
	ExpireAt int64
	// Count is how many elements the server said the key has (HLEN, LLEN,
	// SCARD, ZCARD; 1 for strings and opaque keys; 0 for missing ones).
	Count uint64
	// TypeName and Server are set for opaque keys only: what TYPE said, and
	// the version of the server whose DUMP payload this is.
	TypeName string
	Server   string
}

// Element is one element of a key: a hash field with its value, a list item,
// a set member, a zset member with its score, the bytes of a string, or an
// opaque payload. A value longer than the slice given here goes on in parts:
// Size is the whole length of the value, Value its first bytes, and Part calls
// bring the rest, in order, until Size bytes have been given.
//
// The slices are the caller's: a Sink copies what it keeps.
type Element struct {
	Field []byte  // the name of a hash field
	Score float64 // of a zset member; never NaN
	Size  uint64  // whole length of the value in bytes
	Value []byte  // the first len(Value) ≤ MaxPart bytes of it
}

// KeyEnd closes a key. A cut sets Expired only; Count and Digest are what the
// encoder counted and what a reader delivers, after checking both.
type KeyEnd struct {
	Count  uint64 // elements that the key has in the checkpoint
	Digest uint64 // of its elements, see [Digester]
	// Expired marks a key that passed its expiry while it was being read:
	// what was read of it may be partial, and a restore always drops it.
	Expired bool
}

// Sink takes the keys of a job one after the other. The order of calls is
// BeginKey, then for each element Element and as many Part as it needs, then
// EndKey. After an error a Sink is dead and returns the same error again.
type Sink interface {
	BeginKey(k Key) error
	Element(e Element) error
	Part(b []byte) error
	EndKey(e KeyEnd) error
}
