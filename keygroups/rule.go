// Package keygroups assigns keys to key groups and key groups to subtasks.
//
// A key group is the unit in which keyed state is assigned: 0 ≤ group < max
// parallelism. Pure: no I/O, clock or randomness.
package keygroups

// Hash is the rule that turns a key into a key group.
type Hash string

// Ranges is the rule that turns max parallelism and parallelism into one
// contiguous range of key groups per subtask.
type Ranges string

// KeyType is what a number key (`n:`) is hashed as.
type KeyType string

// The rules of design §5. The first of each is the default.
const (
	HashJava  Hash = "java"  // floorMod(hashCode, max parallelism)
	HashFlink Hash = "flink" // murmur(hashCode) mod max parallelism

	RangesLeading Ranges = "leading" // the remainder goes to the first subtasks
	RangesFlink   Ranges = "flink"   // start = (i·G+P−1) div P, end = ((i+1)·G−1) div P

	KeyString KeyType = "string" // its text
	KeyInt    KeyType = "int"    // a Java Integer
	KeyLong   KeyType = "long"   // a Java Long
)

// MaxMaxParallelism is the largest number of key groups.
const MaxMaxParallelism = 32768

// Rule is how a job's keys are laid out over key groups. It is written in
// every checkpoint; G and the hash are fixed while state exists.
type Rule struct {
	Hash           Hash    `json:"hash"`
	KeyType        KeyType `json:"keyType"`
	Ranges         Ranges  `json:"ranges"`
	MaxParallelism int     `json:"maxParallelism"`
}

// Range is the key groups of one subtask: Start ≤ group ≤ End.
type Range struct {
	Subtask int `json:"subtask"`
	Start   int `json:"start"`
	End     int `json:"end"`
}

// Move is a run of key groups that changes its owner.
type Move struct {
	Start int `json:"start"`
	End   int `json:"end"`
	From  int `json:"from"` // subtask
	To    int `json:"to"`   // subtask
}
