// Package witness is the independent checker of the invariants (I1 to I10).
// It reads a Redis server and a store's file with code of its own, written
// from the documents (snapshot/FORMAT.md and the key layout), so that a mistake
// of the product is not made twice: it imports nothing of the product, which a
// test of its own holds (TestTheWitnessImportsNothingOfTheProduct).
//
// It is for tests: everything is held in memory, and nothing is fast.
//
// Three layers:
//
//   - [Live] and [Store] give what is there, as a [State].
//   - [Diff] compares two states.
//   - [Journal] takes what a run shows, round by round, and gives a [Finding]
//     for each broken invariant; the Check functions judge single steps.
package witness

// Entry is what one key holds, as text that is equal exactly when the content
// is.
type Entry struct {
	// Type is what TYPE says: string, hash, list, set, zset, or the name of a
	// type without elements here (stream).
	Type string
	// Elements are the key's elements, made by [StringText], [HashText],
	// [ScoreText]; those of a list in its order, all others sorted.
	Elements []string
	// ExpireAt is the absolute expiry in ms since 1970, 0 for none.
	ExpireAt int64
}

// State is a job's state at one moment.
type State struct {
	// Keys are the keys that the index lists and that exist, by name.
	Keys map[string]Entry
	// Names are all names of the index, sorted, also those without a key.
	Names []string
	// Registry is the hash {root}:stateSchema, bytes as they are.
	Registry map[string]string
	// Others are the job's other own keys, by what follows {root}: in their
	// names ("assignment", "operatorState"; of a live state also "coordinator",
	// "coordinator:lease" and what a restore staged): type, expiry and
	// elements as one text, see [Entry.Text].
	Others map[string]string
}

// Finding is a broken invariant.
type Finding struct {
	Invariant string // "I1" to "I10"
	Text      string // what was seen, with ids, names and values
}

// String is the invariant and the text.
func (f Finding) String() string { return f.Invariant + ": " + f.Text }
