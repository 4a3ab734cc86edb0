package track

// kind is what a command of the stream does to keys.
type kind byte

const (
	namedKeys  kind = iota // any argument may be a key, which it may change as a whole
	noKeys                 // no key
	fieldList              // key, then fields at regular places
	zaddFields             // key, options, then pairs of score and member
	oneField               // key, then one field at some place, and no other
	moveMember             // two keys and a member of both
	expiryAt               // key and an absolute time, or nothing
	expiryIn               // key and a time from now
	anyKeys                // any key of any database
	flushDB                // any key of the selected database
	selects
	askAck
)

// command is a row of the table. first and step say at which arguments after
// the key the fields are: first, first+step and so on.
type command struct {
	kind        kind
	first, step int
	family      family
}

// commands is what the stream's commands do, by their names in capitals. A
// command that isn't here has the kind namedKeys: a key is an argument of each
// write command of Redis itself and of the modules that aren't listed. (What
// the master rewrites comes as what it was rewritten to: SPOP as SREM, GETDEL
// as DEL, INCR by a float as SET, GEOADD as ZADD, blocking commands as the
// plain ones, XREADGROUP as XCLAIM, EXPIRE in the past as DEL.)
var commands = map[string]command{
	"HSET":         {fieldList, 0, 2, hashFamily},
	"HMSET":        {fieldList, 0, 2, hashFamily},
	"HSETNX":       {oneField, 0, 0, hashFamily},
	"HDEL":         {fieldList, 0, 1, hashFamily},
	"HINCRBY":      {oneField, 0, 0, hashFamily},
	"HINCRBYFLOAT": {oneField, 0, 0, hashFamily},
	"SADD":         {fieldList, 0, 1, setFamily},
	"SREM":         {fieldList, 0, 1, setFamily},
	"SMOVE":        {moveMember, 0, 0, setFamily},
	"ZADD":         {zaddFields, 0, 2, zsetFamily},
	"ZREM":         {fieldList, 0, 1, zsetFamily},
	"ZINCRBY":      {oneField, 1, 0, zsetFamily},

	// A master sends a time that is past as DEL, so these remove nothing.
	"PEXPIREAT": {kind: expiryAt}, "EXPIREAT": {kind: expiryAt}, "PERSIST": {kind: expiryAt},
	"EXPIRE": {kind: expiryIn}, "PEXPIRE": {kind: expiryIn},

	"PING": {kind: noKeys}, "MULTI": {kind: noKeys}, "EXEC": {kind: noKeys},
	"PUBLISH": {kind: noKeys}, "SPUBLISH": {kind: noKeys},
	"FUNCTION": {kind: noKeys}, "SCRIPT": {kind: noKeys},
	"SELECT": {kind: selects}, "REPLCONF": {kind: askAck},

	"FLUSHDB": {kind: flushDB}, "FLUSHALL": {kind: anyKeys}, "SWAPDB": {kind: anyKeys}, "DEBUG": {kind: anyKeys},
	// Code that is sent as such changes what it likes.
	"EVAL": {kind: anyKeys}, "EVALSHA": {kind: anyKeys}, "FCALL": {kind: anyKeys},
	"EVAL_RO": {kind: anyKeys}, "EVALSHA_RO": {kind: anyKeys}, "FCALL_RO": {kind: anyKeys}, "TFCALL": {kind: anyKeys},
	// Whole slots of a cluster, by number.
	"CLUSTER": {kind: anyKeys}, "TRIMSLOTS": {kind: anyKeys},
	// KeyDB wraps commands in one argument.
	"RREPLAY": {kind: anyKeys},
	// Indexes that delete the documents they list.
	"FT.DROP": {kind: anyKeys}, "FT.DROPINDEX": {kind: anyKeys}, "_FT.DROPIFX": {kind: anyKeys}, "_FT.DROPINDEXIFX": {kind: anyKeys},
	// Time series write to others by rules that were made earlier.
	"TS.ADD": {kind: anyKeys}, "TS.MADD": {kind: anyKeys}, "TS.INCRBY": {kind: anyKeys}, "TS.DECRBY": {kind: anyKeys}, "TS.DEL": {kind: anyKeys},
}

// longestName is longer than any name in the table.
const longestName = 64

// lookup finds a command without an allocation.
func lookup(name argument) command {
	var upper [longestName]byte
	if name.size > longestName {
		return command{}
	}
	for i, c := range name.b {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	return commands[string(upper[:len(name.b)])]
}

// isZaddOption reports whether an argument of ZADD is an option, which stand
// before the first score. No score reads like one.
func isZaddOption(a argument) bool {
	if a.size < 2 || a.size > 4 {
		return false
	}
	var upper [4]byte
	for i, c := range a.b {
		upper[i] = c &^ 0x20
	}
	switch string(upper[:len(a.b)]) {
	case "NX", "XX", "GT", "LT", "CH", "INCR":
		return true
	}
	return false
}
