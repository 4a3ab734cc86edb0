package statebackend

import (
	"context"
	"fmt"

	"keyframe/snapshot"
)

// Op is a command on one key. The letters are Redis's; each store does what
// Redis does with them.
type Op uint8

// The commands. Args are as in Redis, without the key.
const (
	OpHGet      Op = iota + 1 // field → Bytes or Nil
	OpHSet                    // field value → Int (1 new, 0 replaced)
	OpHSetNX                  // field value → Int (1 set, 0 was there)
	OpHDel                    // field → Int (1 removed)
	OpHExists                 // field → Int (1 there)
	OpHLen                    // → Int
	OpRPush                   // item… → Int (new length)
	OpLLen                    // → Int
	OpSAdd                    // member… → Int (how many were new)
	OpSRem                    // member… → Int (how many were there)
	OpSIsMember               // member → Int (1 there)
	OpSCard                   // → Int
	OpZAdd                    // score member, as decimal text and bytes → Int (1 new)
	OpZRem                    // member… → Int
	OpGet                     // → Bytes or Nil
	OpSet                     // value → (nothing); drops an expiry, as in Redis
	OpDel                     // → Int (1 removed)
	OpPExpireAt               // ms since 1970, as decimal text → Int (1 set)
	OpType                    // → Bytes: the type's name, "none" when there is no key
)

// Cmd is one command.
type Cmd struct {
	Op   Op
	Key  string
	Args [][]byte
}

// Command builds a Cmd from strings.
func Command(op Op, key string, args ...string) Cmd {
	c := Cmd{Op: op, Key: key}
	for _, a := range args {
		c.Args = append(c.Args, []byte(a))
	}
	return c
}

// Reply is what a command gave. The bytes are the caller's own.
type Reply struct {
	Int   int64
	Bytes []byte
	Nil   bool // there was nothing: told apart from an empty value
}

// Store is what the typed handles stand on. Safe for concurrent use. It is
// binary-safe: keys, fields and values are bytes.
type Store interface {
	// Do runs the commands in order as one atomic unit (all seen by others
	// at once, or none done) and gives one reply for each. A command on a
	// key of another type fails the whole call with ErrWrongType and, in a
	// call of several commands, leaves the earlier ones done, as Redis does.
	Do(ctx context.Context, cmds ...Cmd) ([]Reply, error)
	// Each calls fn for every element of a key, in order for lists, until fn
	// gives an error, which comes back as it is. No call for a key that is
	// not there; ErrWrongType (wrapped) when it has another type. Each element comes once and whole (len(Value) ==
	// Size); the bytes are fn's own. It isn't a cut: elements that change
	// meanwhile may be seen old or new.
	Each(ctx context.Context, key string, t snapshot.KeyType, fn func(snapshot.Element) error) error
	// Close frees what the store holds. Calls after it fail.
	Close() error
}

// KeyError is an error about one key.
type KeyError struct {
	Key []byte
	Op  string // what was being done: "read", "stage", …
	Err error
}

// Error names the key, quoted.
func (e *KeyError) Error() string { return fmt.Sprintf("%s key %q: %v", e.Op, e.Key, e.Err) }

// Unwrap gives the cause.
func (e *KeyError) Unwrap() error { return e.Err }
