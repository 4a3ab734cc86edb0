package statebackend

import (
	"context"
	"time"
)

// Inspector tells what a job's state and its server look like to somebody who
// suspects that something is wrong with them. It writes nothing, holds nobody
// and gives no key a new expiry. What it tells isn't a cut: what is written
// meanwhile may be seen old or new, and then a key or an element may come
// twice. Keys whose time has come may be removed by the server when they are
// looked at, as by any look.
type Inspector interface {
	// Inspect tells the sink of every key under the job's root and of every
	// name of its index, and looks at the server before and after. The sink's
	// errors come back as they are. Others: ErrPermission naming the right,
	// and ErrUnreachable.
	Inspect(ctx context.Context, req InspectRequest, to InspectSink) (Inspection, error)
	// Holds tells for each question whether there is such a key or element.
	Holds(ctx context.Context, asks []HoldsAsk) ([]bool, error)
}

// InspectRequest says what to inspect, and how gently.
type InspectRequest struct {
	Job     Job
	Sources []SourceRef
	// MaxReadRate bounds the reading, in bytes per second of what the server
	// sends; 0 is no bound.
	MaxReadRate int64
	// Watch is how long the job's writers are watched at least; the walk over
	// the keys counts. 0 is just as long as that takes.
	Watch time.Duration
}

// InspectSink takes what Inspect finds. Bytes are valid during the call only.
type InspectSink interface {
	// Key is a key under the job's root, bookkeeping too. When elements is
	// true, and the key is a hash, set or zset, Element is called for each of
	// its fields or members before the next Key.
	Key(k KeyFacts) (elements bool, err error)
	// Element is a field or member of the last Key.
	Element(member []byte) error
	// Name is a name of the job's index, or one that only its registry has.
	Name(n NameFacts) error
}

// KeyFacts is what a store tells of a key.
type KeyFacts struct {
	Name     []byte
	Type     string // as the store says it: "hash", "list", "set", "zset", "string", "stream"…
	ExpireAt int64  // ms since 1970, 0 for none; within a few ms before Redis 7.0
	Bytes    int64  // in the store's memory, by a sample of the elements; -1 when it isn't told
	Indexed  bool   // the job's index lists it
	// Idle is how long the key was neither read nor written, to the second;
	// -1 when the store doesn't tell (an LFU policy, the memory store).
	Idle time.Duration
	// Freq is the server's logarithmic count of accesses, 0 to 255; -1 when
	// the policy is not an LFU one.
	Freq int
}

// NameFacts is what a store tells of a name of the index.
type NameFacts struct {
	Name   []byte
	Exists bool
	Schema []byte // its entry in the registry, nil for none
	// Unlisted: the registry has it, and the index doesn't.
	Unlisted bool
}

// HoldsAsk asks whether a key is there or, when Member isn't nil, whether the
// hash or zset of that name has it. A key of another type doesn't.
type HoldsAsk struct {
	Key    string
	Type   string // "hash" or "zset"; for Member only
	Member []byte
}

// Inspection is what Inspect tells when it has seen everything.
type Inspection struct {
	Server   ServerFacts
	Activity Activity
	// Untold are things that could not be found out, each with the reason.
	Untold []string
	// Broken are keys beside the state that are of another type than they must
	// be, with what of the inspection is missing for it.
	Broken []BrokenKey
}

// BrokenKey is a key of a type that it must not be of.
type BrokenKey struct {
	Name string
	Need string // the type that it must be of
	For  string // what could not be looked at
}

// Persistence says what outlives the server's process.
type Persistence struct {
	Known bool // the server tells of both
	AOF   bool
	Saves bool   // there are save points
	Fault string // "" or the last save, or write of the log, that failed
}

// Rights are what the user of the state store lacks, as the store names it.
type Rights struct {
	Known   bool
	Cut     []string // without these there is no checkpoint at all
	Precopy []string // without these writers are held while all is read
	Restore []string // without these no checkpoint can be restored
}

// ServerFacts is what a store tells of itself. The zero value is a store that
// has nothing of the kind (the memory store).
type ServerFacts struct {
	Version      string
	Role         string // "master", "slave"; "" without roles
	Cluster      bool
	Policy       string // maxmemory-policy
	MaxMemory    uint64 // bytes, 0 for no limit
	UsedMemory   uint64
	SystemMemory uint64 // of the machine, 0 when it isn't told
	Evicted      uint64 // keys, since the server started
	Expires      uint64 // keys of the database with an expiry
	FieldExpires uint64 // hashes of the database with fields that expire
	Durable      *Persistence
	Rights       Rights
	// Tracking tells why writes can't be tracked by fields, "" when they can,
	// or when it isn't known.
	Tracking string
}

// How writing was judged: Activity.By.
const (
	ByTracking = "tracking" // the job's own writes, each
	ByServer   = "server"   // writes of anybody to the server
)

// Activity is what was written while the state was inspected.
type Activity struct {
	Over time.Duration
	By   string // "" when neither way was possible
	// Writes: somebody wrote, to the job or to the server as By says.
	Writes bool
	// Keys are the keys that were written most, at most MaxWritten, by tracking
	// only, and so are Count, all writes to the job's state, and Written, how
	// many of its keys were written.
	Keys    []WrittenKey
	Count   uint64
	Written uint64
	// Announced: writes are counted as the server announces them, which is once
	// at most for each key and turn of its event loop.
	Announced bool
	// Unheard says why the job's own writes were not seen, "" when they were.
	Unheard string
	Sources []SourceActivity
}

// MaxWritten is how many keys Activity.Keys names.
const MaxWritten = 20

// WrittenKey is how much of a key was written.
type WrittenKey struct {
	Name     string
	Elements int    // different fields or members
	Writes   uint64 // how often, see Activity.Announced; 0 when it isn't known
	Whole    bool   // or anything at all of it
}

// SourceActivity is where a job's consumer group stands in one partition of a
// source.
type SourceActivity struct {
	Stream string
	Group  string
	Unread int64 // entries that no consumer was given yet (at least, before Redis 7.0)
	Moved  bool  // something was given to a consumer meanwhile
}
