package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Fingerprint is the same for two jobs exactly if they mean the same: defaults
// count as if they were written, and the order of the sources doesn't count.
// Hex of 32 bytes.
func (j Job) Fingerprint() string {
	j = j.WithDefaults()
	j.Sources = slices.Clone(j.Sources)
	slices.SortFunc(j.Sources, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Group, b.Group))
	})
	b, err := json.Marshal(j)
	if err != nil { // texts, numbers and durations always marshal
		panic("config: job does not marshal: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Equal reports whether two jobs have the same Fingerprint.
func (j Job) Equal(other Job) bool { return j.Fingerprint() == other.Fingerprint() }
