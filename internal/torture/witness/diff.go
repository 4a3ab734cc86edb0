package witness

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// shownElements is how many elements of each side a difference shows.
const shownElements = 3

// Diff are the differences between two states, in the order of names; empty
// when they are equal. A key that only one of them has is none when its expiry
// is not after now (by the server's clock, when the later one was read). The
// coordinator's record and lease are not compared, nor an assignment's epoch.
func Diff(a, b *State, now time.Time) []string {
	out := diffEntries("key", a.Keys, b.Keys, now)
	out = append(out, diffNames(a.Names, b.Names)...)
	out = append(out, diffTexts("schema of", a.Registry, b.Registry)...)
	return append(out, diffTexts("bookkeeping", carried(a.Others), carried(b.Others))...)
}

// DiffForeign are the differences between keys outside of a job, as Diff gives
// them.
func DiffForeign(a, b map[string]Entry, now time.Time) []string {
	return diffEntries("foreign key", a, b, now)
}

func both[T any](a, b map[string]T) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}

func diffEntries(what string, a, b map[string]Entry, now time.Time) (out []string) {
	for _, name := range both(a, b) {
		x, inA := a[name]
		y, inB := b[name]
		switch {
		case inA && inB && x.equal(y):
		case inA && inB:
			out = append(out, fmt.Sprintf("%s %q: %s", what, name, diffEntry(x, y)))
		case inA && !due(x, now):
			out = append(out, fmt.Sprintf("%s %q: only the first has it, %s", what, name, x.brief()))
		case inB && !due(y, now):
			out = append(out, fmt.Sprintf("%s %q: only the second has it, %s", what, name, y.brief()))
		}
	}
	return out
}

func due(e Entry, now time.Time) bool { return e.ExpireAt > 0 && e.ExpireAt <= now.UnixMilli() }

// brief shows an entry in one line.
func (e Entry) brief() string {
	return fmt.Sprintf("a %s of %d that expires at %d: %.300s", e.Type, len(e.Elements), e.ExpireAt,
		strings.Join(e.Elements[:min(shownElements, len(e.Elements))], ", "))
}

func diffEntry(a, b Entry) string {
	if a.Type != b.Type || a.ExpireAt != b.ExpireAt || a.Type == "list" && len(a.Elements) != len(b.Elements) {
		return a.brief() + " | " + b.brief()
	}
	if a.Type == "list" {
		for i := range a.Elements {
			if a.Elements[i] != b.Elements[i] {
				return fmt.Sprintf("item %d: %.200s | %.200s", i, a.Elements[i], b.Elements[i])
			}
		}
	}
	onlyA, onlyB := without(a.Elements, b.Elements), without(b.Elements, a.Elements)
	return fmt.Sprintf("%d | %d elements, only in the first %d: %.300s; only in the second %d: %.300s",
		len(a.Elements), len(b.Elements), len(onlyA), strings.Join(onlyA[:min(shownElements, len(onlyA))], ", "),
		len(onlyB), strings.Join(onlyB[:min(shownElements, len(onlyB))], ", "))
}

// without is the multiset a less b.
func without(a, b []string) (out []string) {
	count := map[string]int{}
	for _, s := range b {
		count[s]++
	}
	for _, s := range a {
		if count[s]--; count[s] < 0 {
			out = append(out, s)
		}
	}
	return out
}

func diffNames(a, b []string) (out []string) {
	for _, name := range without(a, b) {
		out = append(out, fmt.Sprintf("name %q: only the first's index lists it", name))
	}
	for _, name := range without(b, a) {
		out = append(out, fmt.Sprintf("name %q: only the second's index lists it", name))
	}
	return out
}

func diffTexts(what string, a, b map[string]string) (out []string) {
	for _, name := range both(a, b) {
		x, inA := a[name]
		y, inB := b[name]
		if inA != inB || x != y {
			out = append(out, fmt.Sprintf("%s %q: %.300q (%t) | %.300q (%t)", what, name, x, inA, y, inB))
		}
	}
	return out
}

// carried is the bookkeeping that a checkpoint carries: without the
// coordinator's own keys, and with an assignment that has no epoch.
func carried(others map[string]string) map[string]string {
	out := make(map[string]string, len(others))
	for tail, text := range others {
		if tail == tailRecord || strings.HasPrefix(tail, tailRecord+":") {
			continue
		}
		if tail == tailAssigned {
			text = withoutEpoch(text)
		}
		out[tail] = text
	}
	return out
}

// withoutEpoch is an assignment's text without its epoch; of one that is no
// JSON the text itself.
func withoutEpoch(text string) string {
	e, err := ParseEntry(text)
	if err != nil || len(e.Elements) != 1 {
		return text
	}
	raw, err := ParseText(e.Elements[0])
	if err != nil {
		return text
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(raw), &fields) != nil {
		return text // no JSON: it is compared as it is
	}
	delete(fields, "epoch")
	b, err := json.Marshal(fields) // sorted by name
	if err != nil {
		return text
	}
	return fmt.Sprintf("%s %d\n%s", e.Type, e.ExpireAt, b)
}
