package torture

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// seqs are how far each writer was, with its newest link, and the common
// counter.
type seqs struct {
	writer [writers]uint64
	link   [writers]uint64
	pair   uint64
}

// olderThan says where s is behind o, "" when nowhere.
func (s seqs) olderThan(o seqs) string {
	for id := range s.writer {
		if s.writer[id] < o.writer[id] {
			return fmt.Sprintf("writer %d is at step %d, before it was at %d", id, s.writer[id], o.writer[id])
		}
	}
	if s.pair < o.pair {
		return fmt.Sprintf("the counter is %d, before it was %d", s.pair, o.pair)
	}
	return ""
}

// progressOf reads how far the writers were out of a content.
func progressOf(c content) seqs {
	var s seqs
	for id := range writers {
		s.writer[id] = c.number(key(id, "seq"), "s:solo")
		s.link[id] = c.number(key(id, "chain"), "s:solo")
	}
	a, _, _, _ := pairKeys()
	s.pair = c.number(a, "s:n")
	return s
}

// violations are all rules of the state that a content breaks: each writer's
// keys are what the model says for its step, the counters are equal, and
// operator state has lost, doubled and changed nothing.
func violations(c content, static map[string]entry, memory *replays) []string {
	var out []string
	expected, names := map[string]entry{}, []string{}
	for id, seq := range progressOf(c).writer {
		keys, registered := memory.at(id, seq).entries()
		for name, e := range keys {
			expected[name] = e
		}
		names = append(names, registered...)
		if seq == 0 {
			names = append(names, key(id, "seq"), key(id, "counts"))
		}
		names = append(names, key(id, "chain"))
	}
	for name, e := range static {
		expected[name] = e
		names = append(names, name)
	}
	a, b, list, count := pairKeys()
	names = append(names, a, b, list, count)
	rest := map[string]entry{}
	for name, e := range c.keys {
		want, known := expected[name]
		switch {
		case known && !want.equal(e):
			out = append(out, fmt.Sprintf("key %q (is, must be): %s", name, e.differs(want)))
		case !known:
			rest[name] = e
		}
	}
	for name := range expected {
		if _, ok := c.keys[name]; !ok {
			out = append(out, fmt.Sprintf("key %q is missing", name))
		}
	}
	out = append(out, pairRules(c, rest)...)
	out = append(out, flashRules(rest)...)
	operators, more := operatorRules(c, rest)
	out = append(out, operators...)
	names = append(names, more...)
	for name := range rest {
		out = append(out, fmt.Sprintf("key %q belongs to nobody", name))
	}
	out = append(out, indexRules(c, names)...)
	return few(out)
}

func indexRules(c content, names []string) []string {
	var out []string
	if sort.Strings(names); !slices.Equal(names, c.index) {
		out = append(out, fmt.Sprintf("index: %d names, must be %d: %s", len(c.index), len(names), firstDifference(c.index, names)))
	}
	for _, name := range names {
		if c.schema[name] != schema {
			out = append(out, fmt.Sprintf("schema of %q is %q", name, c.schema[name]))
		}
	}
	if len(c.schema) != len(names) {
		out = append(out, fmt.Sprintf("%d schemas for %d names", len(c.schema), len(names)))
	}
	return out
}

// firstDifference of two sorted lists.
func firstDifference(is, want []string) string {
	for i := range min(len(is), len(want)) {
		if is[i] != want[i] {
			return fmt.Sprintf("%q where %q should be", is[i], want[i])
		}
	}
	return "one goes on"
}

// pairRules: two counters in two keys that one transaction counts up, and a
// list whose length is in a counter.
func pairRules(c content, rest map[string]entry) []string {
	var out []string
	a, b, list, count := pairKeys()
	if x, y := c.number(a, "s:n"), c.number(b, "s:n"); x != y {
		out = append(out, fmt.Sprintf("the two counters are %d and %d", x, y))
	}
	if n, said := len(c.keys[list].Elements), c.number(count, "s:n"); uint64(n) != said {
		out = append(out, fmt.Sprintf("the list has %d items, its counter says %d", n, said))
	}
	for _, name := range []string{a, b, list, count} {
		delete(rest, name)
	}
	for id := range writers {
		delete(rest, key(id, "chain")) // its content is for chains to judge
	}
	return out
}

// flashRules: a key that soon expires holds its own expiry time.
func flashRules(rest map[string]entry) []string {
	var out []string
	for id := range writers {
		for i := range flashes {
			name := ring(id, "flash", i)
			e, ok := rest[name]
			if !ok {
				continue
			}
			delete(rest, name)
			if e.Type != "string" || len(e.Elements) != 1 || e.Elements[0] != strconv.FormatInt(e.ExpireAt, 10) {
				out = append(out, fmt.Sprintf("key %q holds %q and expires at %d", name, e.Elements, e.ExpireAt))
			}
		}
	}
	return out
}

// operatorRules is I4 on the operator state; names are the operator keys that
// the index must have.
func operatorRules(c content, rest map[string]entry) (out, names []string) {
	head := job.Root() + ":cg:g:topic:orders:p:"
	parts := map[string][]entry{}
	for _, name := range c.index {
		n, state, ok := strings.Cut(strings.TrimPrefix(name, head), ":opstate:src:")
		if _, err := strconv.Atoi(n); !ok || err != nil {
			continue
		}
		names = append(names, name)
		if e, ok := c.keys[name]; ok {
			parts[state] = append(parts[state], e)
			delete(rest, name)
		}
	}
	var all []string
	for _, e := range parts["offsets"] {
		all = append(all, e.Elements...)
	}
	if !slices.Equal(sorted(all), sorted(listItems)) {
		out = append(out, fmt.Sprintf("list state holds %q", all))
	}
	out = append(out, unionRules(parts["seen"])...)
	want := hashOf(rules)
	for _, e := range parts["rules"] {
		if !e.equal(want) {
			out = append(out, fmt.Sprintf("a broadcast copy holds %q", e.Elements))
		}
	}
	if len(parts["rules"]) == 0 {
		out = append(out, "broadcast state is gone")
	}
	return out, names
}

// unionRules: at first the parts together are the union, after a rescale each
// part is.
func unionRules(parts []entry) []string {
	var all []string
	whole := len(parts) > 0
	for _, e := range parts {
		all = append(all, e.Elements...)
		whole = whole && slices.Equal(e.Elements, unionItems)
	}
	if whole || slices.Equal(sorted(all), unionItems) {
		return nil
	}
	return []string{fmt.Sprintf("union state holds %q", all)}
}
