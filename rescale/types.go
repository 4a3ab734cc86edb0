// Package rescale computes what a change of parallelism does to a job's key
// groups and operator state. Pure: no I/O, clock or randomness.
package rescale

import (
	"keyframe/keygroups"
	"keyframe/snapshot"
)

// Split is the rule that cuts list state (design §6).
type Split string

// The two rules. SplitEach is the default, the document's picture: each old
// list is cut into P parts. SplitEven is Flink's: the concatenation is cut.
const (
	SplitEach Split = "each"
	SplitEven Split = "even"
)

// Part is one subtask's part of an operator state, as it was read.
type Part struct {
	Subtask int
	Length  int // items, or fields of a broadcast's hash
	// Digest is over the whole part (ItemsDigest; for broadcast order-free).
	Digest string
	// Prefix is ItemsDigest of the first Handed.Length items, "" when the
	// part is shorter or the state was never handed out.
	Prefix string
	// ExpireAt is the absolute expiry of the part's key in ms since 1970, 0
	// for none (operator state normally has none).
	ExpireAt int64
}

// State is one operator state before the change.
type State struct {
	snapshot.OperatorState
	Parts []Part // in subtask order; a subtask without a part has none here
}

// Request is what a plan is made of.
type Request struct {
	Rule  keygroups.Rule
	From  int // parallelism
	To    int
	Split Split
	// States in the order of operator and name.
	States []State
	// Broadcast chooses the subtask whose copy counts, by Field, for
	// broadcast states whose copies disagree.
	Broadcast map[string]int
}

// Slice is a run of items of one old part: items From ≤ i < To.
type Slice struct {
	Subtask int // the old one
	From    int
	To      int
}

// NewState says what each new subtask gets: New[subtask] is the list of
// slices that make its part, in order.
type NewState struct {
	snapshot.OperatorState // Handed is nil here: it is set once the content is known
	New                    [][]Slice
	ExpireAt               int64 // of every new key: what all old parts agree on
}

// Plan is the outcome: a value, executed by somebody else.
type Plan struct {
	From   int
	To     int
	Ranges []keygroups.Range
	Moved  []keygroups.Move
	States []NewState
}
