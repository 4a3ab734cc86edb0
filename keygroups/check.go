package keygroups

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels that code decides on; they come wrapped with values and remedy.
var (
	ErrRule   = errors.New("key groups")               // a rule or parallelism that cannot be
	ErrKey    = errors.New("key")                      // a key that the rule can't hash
	ErrLayout = errors.New("key group layout differs") // state laid out by another rule
)

// The bounds of DefaultMaxParallelism.
const (
	minDefault = 128
	maxDefault = MaxMaxParallelism
)

// DefaultMaxParallelism is Flink's rule for a job that gives no max
// parallelism: the power of two at or above parallelism + parallelism/2,
// within 128 and 32768.
func DefaultMaxParallelism(parallelism int) int {
	p := min(max(parallelism, 1), maxDefault)
	g := minDefault
	for g < maxDefault && g < p+p/2 {
		g *= 2
	}
	return g
}

// WithDefaults fills in Hash, KeyType and Ranges where they are empty.
// MaxParallelism stays: its default depends on the parallelism
// (DefaultMaxParallelism).
func (r Rule) WithDefaults() Rule {
	if r.Hash == "" {
		r.Hash = HashJava
	}
	if r.KeyType == "" {
		r.KeyType = KeyString
	}
	if r.Ranges == "" {
		r.Ranges = RangesLeading
	}
	return r
}

// Validate accepts known rules with 1 ≤ parallelism ≤ MaxParallelism ≤ 32768.
// Otherwise it returns ErrRule with both values and the remedy. Empty Hash,
// KeyType and Ranges are not known: call WithDefaults first.
func (r Rule) Validate(parallelism int) error {
	if err := r.check(); err != nil {
		return err
	}
	switch {
	case parallelism < 1:
		return fmt.Errorf("%w: parallelism %d with max parallelism %d: set a parallelism of at least 1",
			ErrRule, parallelism, r.MaxParallelism)
	case parallelism > r.MaxParallelism:
		return fmt.Errorf("%w: parallelism %d is above max parallelism %d: set a parallelism of at most %d (each subtask owns at least one key group; max parallelism is fixed while state exists, only rekeying changes it)",
			ErrRule, parallelism, r.MaxParallelism, r.MaxParallelism)
	}
	return nil
}

// check is what holds of a rule whatever the parallelism.
func (r Rule) check() error {
	if r.MaxParallelism < 1 || r.MaxParallelism > MaxMaxParallelism {
		return fmt.Errorf("%w: max parallelism %d: set one from 1 to %d", ErrRule, r.MaxParallelism, MaxMaxParallelism)
	}
	if !r.Hash.known() {
		return unknown("hash", string(r.Hash), hashes)
	}
	if !r.KeyType.known() {
		return unknown("keyType", string(r.KeyType), keyTypes)
	}
	if !r.Ranges.known() {
		return unknown("ranges", string(r.Ranges), rangeRules)
	}
	return nil
}

// SameLayout accepts another rule under which every key has the same key
// group: max parallelism, hash and key type agree. ErrLayout with both values
// otherwise; r is the rule under which the state is laid out, other is the
// one that is asked for. Ranges may differ: they move ownership, not keys.
func (r Rule) SameLayout(other Rule) error {
	a, b := r.WithDefaults(), other.WithDefaults()
	var diffs []string
	differs := func(what string, have, want any) {
		diffs = append(diffs, fmt.Sprintf("%s is %v in the state and %v in the job", what, have, want))
	}
	if a.MaxParallelism != b.MaxParallelism {
		differs("max parallelism", a.MaxParallelism, b.MaxParallelism)
	}
	if a.Hash != b.Hash {
		differs("hash", a.Hash, b.Hash)
	}
	if a.KeyType != b.KeyType {
		differs("key type", a.KeyType, b.KeyType)
	}
	if diffs == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: give the job what the state has, or rekey the state", ErrLayout, strings.Join(diffs, ", "))
}
