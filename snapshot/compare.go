package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
)

// DiffKeys gives every difference between two recordings as a line of text,
// none when they hold the same. Keys are matched by section and name, in
// whatever order they came; the elements of a hash, a set or a zset may come
// in any order, those of a list may not. Scores are compared by their bits,
// so -0 is not 0.
func DiffKeys(want, got []RecordedKey) []string {
	var out []string
	w, g := byName(want, "want", &out), byName(got, "got", &out)
	for _, n := range namesOf(w) {
		k := w[n]
		other, ok := g[n]
		if !ok {
			out = append(out, fmt.Sprintf("%s key %s is not there", n.section, quote([]byte(n.name))))
			continue
		}
		out = append(out, diffKey(k, other)...)
	}
	for _, n := range namesOf(g) {
		if _, ok := w[n]; !ok {
			out = append(out, fmt.Sprintf("%s key %s should not be there", n.section, quote([]byte(n.name))))
		}
	}
	return out
}

type sectionName struct {
	section Section
	name    string
}

func byName(keys []RecordedKey, side string, out *[]string) map[sectionName]*RecordedKey {
	m := make(map[sectionName]*RecordedKey, len(keys))
	for i := range keys {
		n := sectionName{keys[i].Key.Section, string(keys[i].Key.Name)}
		if m[n] != nil {
			*out = append(*out, fmt.Sprintf("%s has the %s key %s twice", side, n.section, quote(keys[i].Key.Name)))
		}
		m[n] = &keys[i]
	}
	return m
}

func namesOf(m map[sectionName]*RecordedKey) []sectionName {
	all := make([]sectionName, 0, len(m))
	for n := range m {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b sectionName) int {
		return cmp.Or(cmp.Compare(a.section, b.section), cmp.Compare(a.name, b.name))
	})
	return all
}

func diffKey(want, got *RecordedKey) []string {
	var out []string
	line := func(what string, w, g any) {
		out = append(out, fmt.Sprintf("%s key %s: %s is %v, want %v", want.Key.Section, quote(want.Key.Name), what, g, w))
	}
	w, g := want.Key, got.Key
	w.Name, g.Name = nil, nil
	if w.Op != g.Op || w.Loose != g.Loose || w.Type != g.Type || w.ExpireAt != g.ExpireAt || w.Count != g.Count || w.TypeName != g.TypeName || w.Server != g.Server {
		line("the key", fmt.Sprintf("%+v", w), fmt.Sprintf("%+v", g))
	}
	if want.End != got.End {
		line("its end", fmt.Sprintf("%+v", want.End), fmt.Sprintf("%+v", got.End))
	}
	if len(want.Elements) != len(got.Elements) {
		line("the number of elements", len(want.Elements), len(got.Elements))
		return out
	}
	a, b := want.Elements, got.Elements
	if !want.Key.Type.Ordered() {
		a, b = sorted(a), sorted(b)
	}
	for i := range a {
		if compareElements(a[i], b[i]) != 0 {
			line(fmt.Sprintf("element %d", i), describe(a[i]), describe(b[i]))
			break // one is enough: in an ordered key all later ones may differ
		}
	}
	return out
}

func sorted(e []RecordedElement) []RecordedElement {
	e = slices.Clone(e)
	slices.SortFunc(e, compareElements)
	return e
}

func compareElements(a, b RecordedElement) int {
	return cmp.Or(
		bytes.Compare(a.Field, b.Field),
		bytes.Compare(a.Value, b.Value),
		cmp.Compare(math.Float64bits(a.Score), math.Float64bits(b.Score)),
		cmp.Compare(a.Size, b.Size),
		compareBools(a.Removed, b.Removed))
}

func describe(e RecordedElement) string {
	gone := ""
	if e.Removed {
		gone = "removed "
	}
	return fmt.Sprintf("{%sfield %s, score %v, %d bytes %s}", gone, quote(e.Field), e.Score, e.Size, quote(e.Value))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
