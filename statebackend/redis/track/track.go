// Package track tells which keys, and where it can which fields, of a job were
// written since a moment: what a cut must read again, and what an incremental
// checkpoint must read at all.
//
// There are two ways. [LevelFields] attaches to the server as a replica does,
// asks for an empty RDB, and reads the stream of writes. [LevelKeys] asks for
// the invalidations of client-side caching. Both mark too much rather than too
// little: a key that changed without being marked is a bug, held by the suite
// that both pass.
package track

import (
	"context"
	"errors"
	"net"
	"time"
)

// Level is how finely a tracker tells what was written.
type Level string

// The levels.
const (
	LevelFields Level = "fields" // hash fields, set and zset members; whole keys for the rest
	LevelKeys   Level = "keys"   // whole keys
)

// Errors that code decides on; they come wrapped with the server's words.
var (
	// ErrDenied: the server refuses what the level needs (a right, a command,
	// a version). Trying again later is no use until somebody changes it.
	ErrDenied = errors.New("tracking denied")
	// ErrLost: the tracker is not attached now. It tries again by itself.
	ErrLost = errors.New("tracking is not attached")
	// ErrClosed: a call after Close.
	ErrClosed = errors.New("tracker is closed")
)

// Scope is what one job writes.
type Scope struct {
	DB   int    // the database's number
	Root string // every key that begins with Root + ":" is the job's
	// Extra are further names that matter: what the job's index lists outside
	// its root. Exact names.
	Extra [][]byte
}

// Position is where the server's write stream stood, from INFO replication.
type Position struct {
	ReplID string // master_replid
	Offset int64  // master_repl_offset
}

// Tracker follows one server for all jobs. Safe for concurrent use.
type Tracker interface {
	Level() Level
	// Attached waits until the tracker follows the server, or until ctx ends:
	// then the error wraps ErrLost and says what it waits for. ErrDenied
	// (wrapped) as soon as the server has refused.
	Attached(ctx context.Context) error
	// Watch marks the writes of a scope from now on: what the server executes
	// after Watch has returned, and some of what it executed before. A
	// tracker that isn't attached gives a watch whose marks are All.
	Watch(ctx context.Context, s Scope) (Watch, error)
	// Close detaches cleanly and ends every watch. All goroutines have ended
	// when it returns.
	Close() error
}

// Watch holds the marks of one scope. Safe for concurrent use.
type Watch interface {
	// Barrier waits until every write that the server had executed when it
	// said at is marked: for LevelFields until the stream has reached at, for
	// LevelKeys until a PING that was sent after the call has come back (at is
	// not used). ErrLost (wrapped) when the tracker isn't attached, was
	// attached anew since the watch's last Take, or follows another history
	// than at.ReplID; ctx bounds the wait.
	Barrier(ctx context.Context, at Position) error
	// Take gives the marks since the last Take (or Watch) and begins anew.
	// The marks are the caller's.
	Take() Marks
	// Size is how many marks there are now: keys, and fields among them. All
	// counts as -1.
	Size() (keys, fields int)
	// Extra replaces the scope's extra names. Names that are new to the scope
	// are Whole at once: they may have been written between the caller's look
	// at its index and this call.
	Extra(names [][]byte)
	// Close ends the watch.
	Close()
}

// Marks are what was written. Those of LevelKeys have only Whole keys.
type Marks struct {
	// All says that anything may have been written: nothing else of the marks
	// counts then, and Reason says why (a full resync, a lost connection, a
	// FLUSHALL, too many keys to remember).
	All    bool
	Reason string
	Keys   map[string]*Key
}

// Key is what was written of one key.
type Key struct {
	// Whole: anything of the key may have changed, its type and its being
	// there too. Fields says nothing then.
	Whole bool
	// Fields are the hash fields, set members or zset members that were
	// written or removed. The key may have come into being or gone with them,
	// and its expiry may have changed whatever the marks are. None, and not
	// Whole: only its expiry may have changed.
	Fields map[string]struct{}
	// Writes is how often the key was written, as finely as the level tells:
	// commands for LevelFields (an argument that only looks like the key's name
	// counts too), announcements for LevelKeys, which are one at most for each
	// turn of the server's event loop. 0 when it isn't known.
	Writes uint64

	family family // of the commands that wrote Fields
	bytes  int    // of the names in Fields
}

// family is the type of key that a field command works on.
type family byte

const (
	noFamily family = iota
	hashFamily
	setFamily
	zsetFamily
)

// Merge adds other's marks to m.
func (m *Marks) Merge(other Marks) {
	switch {
	case m.All:
		return
	case other.All:
		*m = Marks{All: true, Reason: other.Reason}
		return
	}
	if m.Keys == nil {
		m.Keys = make(map[string]*Key, len(other.Keys))
	}
	for name, from := range other.Keys {
		to := m.Keys[name]
		switch {
		case to == nil:
			m.Keys[name] = from.clone()
			continue
		case to.Whole:
		case from.Whole, from.mixes(to.family):
			to.Whole, to.Fields = true, nil
		default:
			to.family = max(to.family, from.family)
			to.add(from.Fields)
		}
		to.Writes += from.Writes
	}
}

func (k *Key) clone() *Key {
	c := &Key{Whole: k.Whole, Writes: k.Writes, family: k.family}
	c.add(k.Fields)
	return c
}

// mixes reports whether fields were written by commands of another family too:
// then the key was another type in between.
func (k *Key) mixes(f family) bool {
	return k.family != noFamily && f != noFamily && k.family != f
}

func (k *Key) add(fields map[string]struct{}) {
	if k.Fields == nil && len(fields) > 0 {
		k.Fields = make(map[string]struct{}, len(fields))
	}
	for f := range fields {
		k.Fields[f] = struct{}{}
	}
}

// Limits bound the memory of a watch. The zero value takes the defaults.
type Limits struct {
	// KeyBytes is how many bytes of field names one key's marks may have:
	// more, and the key is Whole. Default 4 MiB.
	KeyBytes int
	// Bytes is how many bytes of names all marks of a watch may have, with
	// 64 for each name and 208 more for each key that has fields, which is
	// about what they take in memory. More, and fields are given up for whole
	// keys where that helps; else they are All. Default 32 MiB.
	Bytes int
}

// Defaults of Limits.
const (
	DefaultKeyBytes = 4 << 20
	DefaultBytes    = 32 << 20
)

// DialFunc opens a connection to the server, with TLS where it speaks TLS,
// authenticated, on database 0, with no reply outstanding. It has no deadline
// set and may stay quiet for ever: the tracker minds it.
type DialFunc func(ctx context.Context) (net.Conn, error)

// Options are what a tracker needs of its owner.
type Options struct {
	Dial DialFunc
	// Server is the address as errors show it, without a password.
	Server string
	Limits Limits
	// Retry bounds the pause between attempts to attach: from Retry up to 30
	// times as much. Default 200 ms.
	Retry time.Duration
}
