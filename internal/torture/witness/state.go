package witness

import (
	"fmt"
	"slices"
	"strings"
)

// sorted sorts the elements of every type but a list.
func (e Entry) sorted() Entry {
	if e.Type != "list" {
		slices.Sort(e.Elements)
	}
	return e
}

// state makes a checkpoint's sections into a State, and holds them to the
// totals that the manifest says.
func (m *manifest) state(all [sectionSource + 1]merged, root string) (*State, error) {
	s := &State{Keys: map[string]Entry{}, Registry: map[string]string{}, Others: map[string]string{}}
	var keys, missing, elements, bytes uint64
	for _, section := range []merged{all[sectionKeyed], all[sectionOperator]} {
		for name, r := range section {
			s.Names = append(s.Names, name)
			if r.kind == typeMissing {
				missing++
				continue
			}
			keys++
			elements += uint64(len(r.elements))
			bytes += uint64(len(name)) + r.bytes()
			if !r.expired {
				s.Keys[name] = r.entry()
			}
		}
	}
	slices.Sort(s.Names)
	c := m.Checkpoint
	if len(slices.Compact(slices.Clone(s.Names))) != len(s.Names) {
		return nil, fmt.Errorf("a name is in both the keyed and the operator section")
	}
	if keys != c.Keys || missing != c.Missing || elements != c.Elements || bytes != c.Bytes && !c.Estimated {
		return nil, fmt.Errorf("it holds %d keys, %d names without one, %d elements, %d bytes, and says %d, %d, %d, %d",
			keys, missing, elements, bytes, c.Keys, c.Missing, c.Elements, c.Bytes)
	}
	return s, s.addMeta(all[sectionMeta], root)
}

// bytes are those of fields and values of the finished elements.
func (r *record) bytes() (n uint64) {
	for _, e := range r.elements {
		n += uint64(len(e.field) + len(e.value))
	}
	return n
}

// addMeta takes the bookkeeping: its keys have the names that they have in
// Redis.
func (s *State) addMeta(section merged, root string) error {
	for name, r := range section {
		tail, ok := bookkeeping(root, name)
		switch {
		case !ok:
			return fmt.Errorf("key %q is no bookkeeping of %s", name, root)
		case r.kind == typeMissing || r.expired:
		case tail == tailRegistry:
			for _, e := range r.elements {
				s.Registry[string(e.field)] = string(e.value)
			}
		default:
			s.Others[tail] = r.entry().Text()
		}
	}
	return nil
}

// root is what the names of a job's keys begin with.
func (m *manifest) root() string {
	return strings.Join([]string{m.Identity.Prefix, m.Identity.Job}, ":")
}
