package snapshot

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

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

// KeyOp says what a key does to the older layers of its checkpoint (format 2).
// The numbers are part of the format.
type KeyOp uint8

// The operations. What a Walk delivers is always OpWhole: layers are merged.
const (
	// OpWhole: the key is this, whatever older layers say of it.
	OpWhole KeyOp = 0
	// OpPatch: the elements that follow replace those of older layers or join
	// them, and those that are Removed go. Hashes, sets and zsets only; expiry
	// and count are those of the key as it is afterwards, its type is as in
	// the layer below. It may bring no element at all (a new expiry).
	OpPatch KeyOp = 1
	// OpGone: the name has left the job's index. It has the type TypeMissing
	// and no element.
	OpGone KeyOp = 2
)

// Key opens a key in the stream of records.
type Key struct {
	Section Section
	Op      KeyOp
	Name    []byte
	Type    KeyType
	// ExpireAt is the absolute expiry in ms since 1970, 0 for none.
	ExpireAt int64
	// Count is how many elements the server said the key has (HLEN, LLEN,
	// SCARD, ZCARD; 1 for strings and opaque keys; 0 for missing ones).
	Count uint64
	// Loose marks a key of a layer that was read while its writers ran: what
	// came may differ from Count, and only its end says how many elements
	// there are. Whoever pushes it pushes a newer record of the key in a
	// later layer where the two differ: an Encoder insists on it, and a reader
	// takes a loose key with nothing above it as any other. Its values are
	// finished all the same.
	Loose bool
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
	// Removed (OpPatch only): this hash field (Field), or this set or zset
	// member (Value, whole), is no longer in the key.
	Removed bool
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

// LayerSink is a Sink that takes a cut in layers: the state as it was read
// while writers ran, then what was read again, up to what was read inside the
// cut. In each layer the keys of a section come in the order of [CompareNames].
type LayerSink interface {
	Sink
	// NextLayer ends a layer: what comes after it supersedes what came before
	// it, key by key and, with OpPatch, element by element. A layer may be
	// empty: then it is none. Not inside a key.
	NextLayer() error
}

// NameHash places a key's name in the order of a layer: its xxHash64.
func NameHash(name []byte) uint64 { return xxhash.Sum64(name) }

// CompareNames orders keys inside a section of a layer: by NameHash, then by
// their bytes. It spreads keys evenly, so that a range of the order is a
// sample of the keys, and needs no more than a number for nearly all of them.
func CompareNames(a, b []byte) int {
	if c := cmp.Compare(NameHash(a), NameHash(b)); c != 0 {
		return c
	}
	return bytes.Compare(a, b)
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
