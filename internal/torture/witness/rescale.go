package witness

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Assignment is the JSON of {root}:assignment.
type Assignment struct {
	Epoch          uint64 `json:"epoch"`
	MaxParallelism int    `json:"maxParallelism"`
	Parallelism    int    `json:"parallelism"`
	Hash           string `json:"hash"`
	Ranges         []struct {
		Subtask int `json:"subtask"`
		Start   int `json:"start"`
		End     int `json:"end"` // inclusive
	} `json:"ranges"`
}

// Assignment reads the state's assignment.
func (s *State) Assignment() (a Assignment, err error) {
	e, err := ParseEntry(s.Others[tailAssigned])
	if err != nil {
		return a, fmt.Errorf("assignment: %w", err)
	}
	if e.Type != "string" || len(e.Elements) != 1 {
		return a, fmt.Errorf("assignment: it is a %s of %d", e.Type, len(e.Elements))
	}
	raw, err := ParseText(e.Elements[0])
	if err != nil {
		return a, fmt.Errorf("assignment: %w", err)
	}
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		return a, fmt.Errorf("assignment %.200q: %w", raw, err)
	}
	return a, nil
}

// CheckAssignment says what is wrong with the state's assignment: each key
// group from 0 to the max parallelism must have one owner, each subtask one
// range.
func (s *State) CheckAssignment() error {
	a, err := s.Assignment()
	if err != nil {
		return err
	}
	if len(a.Ranges) != a.Parallelism || a.Parallelism < 1 || a.MaxParallelism < a.Parallelism {
		return fmt.Errorf("assignment: %d ranges, parallelism %d, max parallelism %d", len(a.Ranges), a.Parallelism, a.MaxParallelism)
	}
	owners := make([]int, a.MaxParallelism)
	subtasks := map[int]bool{}
	for _, r := range a.Ranges {
		if r.Start < 0 || r.End < r.Start || r.End >= a.MaxParallelism || r.Subtask < 0 || r.Subtask >= a.Parallelism || subtasks[r.Subtask] {
			return fmt.Errorf("assignment: subtask %d has groups %d to %d of %d", r.Subtask, r.Start, r.End, a.MaxParallelism)
		}
		subtasks[r.Subtask] = true
		for g := r.Start; g <= r.End; g++ {
			owners[g]++
		}
	}
	for g, n := range owners {
		if n != 1 {
			return fmt.Errorf("assignment: key group %d has %d owners", g, n)
		}
	}
	return nil
}

// CheckRescale judges a rescale (I4): every keyed key is as it was, lists keep
// the multiset of their items, each union is whole and the same everywhere,
// each broadcast copy is one of before and the same everywhere, and each key
// group has one owner. root is the job's; now the server's time.
func CheckRescale(root string, before, after *State, parallelism int, now time.Time) []Finding {
	var f found
	f.addErr("I4", after.CheckAssignment())
	a, err := after.Assignment()
	if err == nil && a.Parallelism != parallelism {
		f.add("I4", "the assignment's parallelism is %d, %d was asked for", a.Parallelism, parallelism)
	}
	modes, err1 := before.modes()
	modesAfter, err2 := after.modes()
	f.addErr("I4", errors.Join(err1, err2))
	was, keyedWas := split(root, before, modes)
	is, keyedIs := split(root, after, modesAfter)
	for _, d := range diffEntries("keyed key", keyedWas, keyedIs, now) {
		f.add("I4", "before | after: %s", d)
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for key := range all {
		m, ok := modes[key.state]
		if !ok {
			f.add("I4", "%v: it has no mode", key.state)
			continue
		}
		if err := m.check(was[key], is[key], parallelism); err != nil {
			f.add("I4", "%s of operator %q, state %q at %s: %v", m.Mode, key.state.operator, key.state.name, key.base, err)
		}
	}
	return f
}

// stateName is an operator's state.
type stateName struct{ operator, name string }

// place is an operator state of one group and topic.
type place struct {
	base  string // {root}:cg:{group}:topic:{topic}
	state stateName
}

// mode is a value of the hash {root}:operatorState.
type mode struct {
	Mode   string `json:"mode"`
	Handed *struct {
		Length int    `json:"length"`
		Digest string `json:"digest"`
	} `json:"handed"`
}

func (s *State) modes() (map[stateName]mode, error) {
	out := map[stateName]mode{}
	text, ok := s.Others[tailModes]
	if !ok {
		return out, nil
	}
	e, err := ParseEntry(text)
	if err != nil {
		return nil, fmt.Errorf("operator states: %w", err)
	}
	fields, err := e.Fields()
	if err != nil {
		return nil, fmt.Errorf("operator states: %w", err)
	}
	for field, value := range fields {
		operator, name, ok := strings.Cut(field, "\x01")
		var m mode
		if err := json.Unmarshal([]byte(value), &m); err != nil || !ok {
			return nil, fmt.Errorf("operator state %q has the mode %.100q: %w", field, value, err)
		}
		out[stateName{operator, name}] = m
	}
	return out, nil
}

// split gives the parts of each operator state by their subtasks, and the keys
// that are none.
func split(root string, s *State, modes map[stateName]mode) (parts map[place]map[int]Entry, keyed map[string]Entry) {
	parts, keyed = map[place]map[int]Entry{}, map[string]Entry{}
	for name, e := range s.Keys {
		at, subtask, ok := operatorKey(root, name, modes)
		if !ok {
			keyed[name] = e
			continue
		}
		if parts[at] == nil {
			parts[at] = map[int]Entry{}
		}
		parts[at][subtask] = e
	}
	return parts, keyed
}

// operatorKey understands {base}:p:{subtask}:opstate:{operator}:{name} by the
// known states: names may hold anything.
func operatorKey(root, name string, modes map[stateName]mode) (at place, subtask int, ok bool) {
	if !strings.HasPrefix(name, root+":cg:") || !strings.Contains(name, operatorInfix) {
		return at, 0, false
	}
	for state := range modes {
		head, found := strings.CutSuffix(name, operatorInfix+state.operator+":"+state.name)
		if !found {
			continue
		}
		i := strings.LastIndex(head, ":p:")
		if i < 0 {
			continue
		}
		n, err := strconv.Atoi(head[i+len(":p:"):])
		if err != nil {
			continue
		}
		return place{head[:i], state}, n, true
	}
	return at, 0, false
}

// inOrder are the parts in the order of their subtasks.
func inOrder(parts map[int]Entry) (out [][]string) {
	subtasks := make([]int, 0, len(parts))
	for n := range parts {
		subtasks = append(subtasks, n)
	}
	slices.Sort(subtasks)
	for _, n := range subtasks {
		out = append(out, parts[n].Elements)
	}
	return out
}

func (m mode) check(was, is map[int]Entry, parallelism int) error {
	for n := range is {
		if n >= parallelism {
			return fmt.Errorf("subtask %d of %d has a part", n, parallelism)
		}
	}
	switch m.Mode {
	case "list":
		return sameItems(slices.Concat(inOrder(was)...), slices.Concat(inOrder(is)...))
	case "union":
		return everywhere(is, parallelism, func(part []string) error { return sameItems(m.union(inOrder(was)), part) },
			len(m.union(inOrder(was))) == 0)
	case "broadcast":
		return everywhere(is, parallelism, func(part []string) error {
			for _, old := range inOrder(was) {
				if slices.Equal(old, part) {
					return nil
				}
			}
			return fmt.Errorf("a copy of %d that no subtask had before", len(part))
		}, len(was) == 0)
	}
	return fmt.Errorf("the mode is unknown")
}

// everywhere holds the parts of all subtasks to fit, and to each other.
func everywhere(is map[int]Entry, parallelism int, fit func([]string) error, none bool) error {
	if none && len(is) == 0 {
		return nil
	}
	for n := range parallelism {
		part, ok := is[n]
		if !ok {
			return fmt.Errorf("subtask %d has none", n)
		}
		if !slices.Equal(part.Elements, is[0].Elements) {
			return fmt.Errorf("subtask %d has another content than subtask 0", n)
		}
		if err := fit(part.Elements); err != nil {
			return fmt.Errorf("subtask %d: %w", n, err)
		}
	}
	return nil
}

func sameItems(was, is []string) error {
	lost, added := without(was, is), without(is, was)
	if len(lost)+len(added) == 0 {
		return nil
	}
	return fmt.Errorf("%d items were lost (%.200q), %d are new (%.200q)", len(lost),
		lost[:min(shownElements, len(lost))], len(added), added[:min(shownElements, len(added))])
}

// union are the items of the whole (design §6): what was handed out last counts
// once, however many parts begin with it; what follows it in a part, and each
// other part, are contributions.
func (m mode) union(parts [][]string) (all []string) {
	handed := false
	for _, part := range parts {
		if m.Handed == nil || len(part) < m.Handed.Length || itemsDigest(part[:m.Handed.Length]) != m.Handed.Digest {
			all = append(all, part...)
			continue
		}
		if !handed {
			all = append(all, part[:m.Handed.Length]...)
		}
		handed = true
		all = append(all, part[m.Handed.Length:]...)
	}
	return all
}

// itemsDigest is hex SHA-256 over each item's length (u64, big-endian) and
// bytes; of items whose bytes a text doesn't show it is nothing's.
func itemsDigest(items []string) string {
	h := sha256.New()
	for _, text := range items {
		item, err := ParseText(text)
		if err != nil {
			return ""
		}
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(item)))) // a hash.Hash never fails
		_, _ = h.Write([]byte(item))
	}
	return hex.EncodeToString(h.Sum(nil))
}
