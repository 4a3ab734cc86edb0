package torture

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"keyframe/snapshot"
)

// entry is one Redis key whole. Elements are in the list's order, or sorted.
type entry struct {
	Type     string
	ExpireAt int64 // ms since 1970, 0 for none
	Elements []string
}

// pair is a hash field with its value, unambiguous for any bytes.
func pair(field, value string) string {
	return strconv.Itoa(len(field)) + ":" + field + "=" + value
}

// scored is a zset member with its exact score.
func scored(member string, score float64) string {
	return strconv.FormatFloat(score, 'g', -1, 64) + "@" + member
}

func hashOf(fields map[string]string) entry {
	e := entry{Type: "hash"}
	for f, v := range fields {
		e.Elements = append(e.Elements, pair(f, v))
	}
	sort.Strings(e.Elements)
	return e
}

func (e entry) equal(o entry) bool {
	return e.Type == o.Type && e.ExpireAt == o.ExpireAt && slices.Equal(e.Elements, o.Elements)
}

// differs says where two keys differ.
func (e entry) differs(o entry) string {
	if e.Type != o.Type || e.ExpireAt != o.ExpireAt || len(e.Elements) != len(o.Elements) {
		return fmt.Sprintf("%s of %d, expires %d; and %s of %d, expires %d", e.Type, len(e.Elements), e.ExpireAt, o.Type, len(o.Elements), o.ExpireAt)
	}
	for i := range e.Elements {
		if e.Elements[i] != o.Elements[i] {
			return fmt.Sprintf("element %d: %.60q and %.60q", i, e.Elements[i], o.Elements[i])
		}
	}
	return "nothing"
}

// content is a job's state: of a checkpoint, or live.
type content struct {
	keys   map[string]entry // state keys that exist
	index  []string         // all names of the index, sorted
	schema map[string]string
	modes  map[string]string
	epoch  uint64
}

// field gives a hash field of a key, "" when it isn't there.
func (c content) field(key, field string) string {
	head := pair(field, "")
	for _, e := range c.keys[key].Elements {
		if v, ok := strings.CutPrefix(e, head); ok {
			return v
		}
	}
	return ""
}

func (c content) number(key, field string) uint64 {
	n, err := strconv.ParseUint(c.field(key, field), 10, 64)
	if err != nil {
		return 0 // not there; what is no number is found by the model
	}
	return n
}

// differences compares a checkpoint with the live state that it was restored
// to, at the server's time now: keys whose expiry has passed may be gone.
func (c content) differences(live content, now int64) []string {
	var out []string
	for name, want := range c.keys {
		got, ok := live.keys[name]
		switch {
		case !ok && want.ExpireAt != 0 && want.ExpireAt <= now:
		case !ok:
			out = append(out, fmt.Sprintf("key %q is missing: %s of %d", name, want.Type, len(want.Elements)))
		case !want.equal(got):
			out = append(out, fmt.Sprintf("key %q: %s", name, want.differs(got)))
		}
	}
	for name := range live.keys {
		if _, ok := c.keys[name]; !ok {
			out = append(out, fmt.Sprintf("key %q is too much", name))
		}
	}
	if !slices.Equal(c.index, live.index) {
		out = append(out, fmt.Sprintf("index: %d names and %d", len(c.index), len(live.index)))
	}
	out = append(out, differentMaps("schema", c.schema, live.schema)...)
	out = append(out, differentMaps("operator state modes", c.modes, live.modes)...)
	return few(out)
}

// few is the first of many, in order.
func few(all []string) []string {
	const most = 6
	sort.Strings(all)
	if len(all) > most {
		all = append(all[:most:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}

func differentMaps(what string, a, b map[string]string) []string {
	var out []string
	for k, v := range a {
		if b[k] != v {
			out = append(out, fmt.Sprintf("%s of %q: %q and %q", what, k, v, b[k]))
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			out = append(out, fmt.Sprintf("%s of %q is too much", what, k))
		}
	}
	return out
}

// recorded turns what a walk over a checkpoint gave into a content.
func recorded(r *snapshot.Recorder, registry, modes string) content {
	c := content{keys: map[string]entry{}, schema: map[string]string{}, modes: map[string]string{}}
	for _, k := range r.Keys {
		name := string(k.Key.Name)
		switch {
		case k.Key.Section == snapshot.SectionMeta && name == registry:
			c.schema = fieldsOf(k)
		case k.Key.Section == snapshot.SectionMeta && name == modes:
			c.modes = fieldsOf(k)
		case k.Key.Section == snapshot.SectionKeyed || k.Key.Section == snapshot.SectionOperator:
			c.index = append(c.index, name)
			if k.Key.Type != snapshot.TypeMissing && !k.End.Expired {
				c.keys[name] = entryOf(k)
			}
		}
	}
	sort.Strings(c.index)
	return c
}

func fieldsOf(k snapshot.RecordedKey) map[string]string {
	m := map[string]string{}
	for _, e := range k.Elements {
		m[string(e.Field)] = string(e.Value)
	}
	return m
}

func entryOf(k snapshot.RecordedKey) entry {
	e := entry{Type: k.Key.Type.String(), ExpireAt: k.Key.ExpireAt}
	if k.Key.Type == snapshot.TypeOpaque {
		e.Type = k.Key.TypeName
	}
	for _, x := range k.Elements {
		switch k.Key.Type {
		case snapshot.TypeHash:
			e.Elements = append(e.Elements, pair(string(x.Field), string(x.Value)))
		case snapshot.TypeZSet:
			e.Elements = append(e.Elements, scored(string(x.Value), x.Score))
		default:
			e.Elements = append(e.Elements, string(x.Value))
		}
	}
	if !k.Key.Type.Ordered() {
		sort.Strings(e.Elements)
	}
	return e
}
