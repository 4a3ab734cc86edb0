package config

import (
	"strconv"

	"keyframe/snapshot"
)

// Shrink says from which share on that is lost between two checkpoints the
// newer one is flagged: 0.5 is half. 0 is never, nil DefaultShrink.
type Shrink struct {
	Keys     *float64 `yaml:"keys" json:"keys,omitempty" minimum:"0" maximum:"1" doc:"Share of the keys whose loss flags a checkpoint, 0.5 when left out, 0 for never"`
	Elements *float64 `yaml:"elements" json:"elements,omitempty" minimum:"0" maximum:"1" doc:"Share of the elements whose loss flags a checkpoint, 0.5 when left out, 0 for never"`
}

// DefaultShrink is half: state that is cleaned up, or whose windows close,
// shrinks by less from one checkpoint to the next; state that was evicted or
// deleted by mistake mostly by more.
const DefaultShrink = 0.5

// ShrinkLeast is from which figure on (keys, elements, each by itself) a loss is
// looked at: a handful of keys comes and goes.
const ShrinkLeast = 100

func share(s *float64) float64 {
	if s == nil {
		return DefaultShrink
	}
	return *s
}

// Flag compares a checkpoint with the one before: nil when it is no sudden
// shrink.
func (s Shrink) Flag(before, after snapshot.Checkpoint) *snapshot.Shrunk {
	if !lost(share(s.Keys), before.Keys, after.Keys) && !lost(share(s.Elements), before.Elements, after.Elements) {
		return nil
	}
	return &snapshot.Shrunk{Base: before.ID, KeysBefore: before.Keys, KeysAfter: after.Keys,
		ElementsBefore: before.Elements, ElementsAfter: after.Elements}
}

func lost(share float64, before, after uint64) bool {
	if share == 0 || before < ShrinkLeast || after >= before {
		return false
	}
	return float64(before-after) >= share*float64(before)
}

func (s Shrink) check(l *list, at string) {
	for _, f := range []struct {
		name  string
		share *float64
	}{{"keys", s.Keys}, {"elements", s.Elements}} {
		// So that NaN is refused too.
		if v := share(f.share); !(v >= 0 && v <= 1) {
			l.add(at+"."+f.name, strconv.FormatFloat(v, 'g', -1, 64), "give the share whose loss flags a checkpoint, such as %g for half, or 0 for never", DefaultShrink)
		}
	}
}
