package monkey

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"keyframe/internal/torture/witness"
)

// positionsOf reads how far each partition is; one that has none is at 0.
func positionsOf(s *witness.State) (at positions, err error) {
	for q := range at {
		e, ok := s.Keys[positionKey(q)]
		if !ok {
			continue
		}
		fields, err := e.Fields()
		if err != nil {
			return at, fmt.Errorf("position of partition %d: %w", q, err)
		}
		if at[q], err = strconv.Atoi(fields[positionField]); err != nil {
			return at, fmt.Errorf("position of partition %d: %w", q, err)
		}
	}
	return at, nil
}

// shownMost bounds how many of the differences are told.
const shownMost = 6

// broken is what in a state is not as its positions say.
func (m *model) broken(what string, s *witness.State, at positions) []string {
	keys, index := m.expected(at)
	is := map[string]witness.Entry{}
	operator := map[string]map[int]witness.Entry{}
	for name, e := range s.Keys {
		state, subtask, ok := operatorState(name)
		switch {
		case !ok:
			is[name] = e
		case operator[state] == nil:
			operator[state] = map[int]witness.Entry{subtask: e}
		default:
			operator[state][subtask] = e
		}
	}
	out := witness.DiffForeign(keys, is, noTime) // must be | is
	out = append(out, indexRules(s, index)...)
	out = append(out, operatorRules(s, operator, at)...)
	if n := len(out); n > shownMost {
		out = append(out[:shownMost], fmt.Sprintf("and %d more", n-shownMost))
	}
	for i := range out {
		out[i] = what + " (must be | is) at " + fmt.Sprint(at) + ": " + out[i]
	}
	return out
}

// indexRules: each name that was ever written is in the index with its schema,
// and no other, but for parts of operator state.
func indexRules(s *witness.State, want map[string]bool) []string {
	var out []string
	is := map[string]bool{}
	for _, name := range s.Names {
		is[name] = true
		_, _, operator := operatorState(name)
		if !want[name] && !operator {
			out = append(out, fmt.Sprintf("the index lists %q", name))
		}
		if s.Registry[name] != schema && !operator {
			out = append(out, fmt.Sprintf("schema of %q is %q", name, s.Registry[name]))
		}
	}
	for name := range want {
		if !is[name] {
			out = append(out, fmt.Sprintf("the index lacks %q", name))
		}
	}
	slices.Sort(out)
	return out
}

// operatorRules: whatever the parallelism, the list's items are all there once,
// the union is whole, and each broadcast copy is the same.
func operatorRules(s *witness.State, parts map[string]map[int]witness.Entry, at positions) []string {
	a, err := s.Assignment()
	if err != nil {
		return []string{err.Error()}
	}
	if err := s.CheckAssignment(); err != nil {
		return []string{err.Error()}
	}
	var out []string
	var items []string
	for _, subtask := range slices.Sorted(maps.Keys(parts["progress"])) {
		items = append(items, parts["progress"][subtask].Elements...)
	}
	want := texts(append(slices.Clone(listItems), marks(at[0])...))
	if slices.Sort(items); !slices.Equal(items, want) {
		out = append(out, fmt.Sprintf("operator list: %d items, must be %d: %.400q | %.400q", len(items), len(want), lacking(want, items), lacking(items, want)))
	}
	out = append(out, unionRules(parts["known"], a.Parallelism)...)
	rule := witness.Entry{Type: "hash"}
	for k, v := range rules {
		rule.Elements = append(rule.Elements, witness.HashText(k, v))
	}
	slices.Sort(rule.Elements)
	if n := len(parts["rules"]); n != a.Parallelism {
		out = append(out, fmt.Sprintf("broadcast: %d copies at parallelism %d", n, a.Parallelism))
	}
	for subtask, e := range parts["rules"] {
		if e.Text() != rule.Text() {
			out = append(out, fmt.Sprintf("broadcast of subtask %d: %s", subtask, e.Text()))
		}
	}
	return out
}

// unionRules: before the first rescale the parts make the union together, after
// it each subtask has all of it.
func unionRules(parts map[int]witness.Entry, parallelism int) []string {
	whole := strings.Join(texts(unionItems), " ")
	var all []string
	copies := 0
	for _, e := range parts {
		one := slices.Sorted(slices.Values(e.Elements))
		all = append(all, one...)
		if strings.Join(one, " ") == whole {
			copies++
		}
	}
	slices.Sort(all)
	if strings.Join(all, " ") == whole || copies == parallelism && len(parts) == copies {
		return nil
	}
	return []string{fmt.Sprintf("union: %d whole copies of %d parts at parallelism %d, items %q", copies, len(parts), parallelism, all)}
}

// texts are sorted texts of items.
func texts(items []string) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = witness.StringText(item)
	}
	slices.Sort(out)
	return out
}

// lacking are what of a isn't in b.
func lacking(a, b []string) []string {
	count := map[string]int{}
	for _, s := range b {
		count[s]++
	}
	var out []string
	for _, s := range a {
		if count[s]--; count[s] < 0 {
			out = append(out, s)
		}
	}
	return out
}
