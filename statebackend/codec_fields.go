package statebackend

import (
	"reflect"
	"sort"
	"strings"
	"sync"
)

// field is one member of a struct's JSON object.
type field struct {
	name      string
	index     []int // as reflect.Value.FieldByIndex takes it
	tagged    bool
	omitEmpty bool
	omitZero  bool
	quoted    bool
}

var fieldCache sync.Map // reflect.Type → []field

// structFields gives a struct's members in the order in which they are
// declared, embedded structs' in place, under the rules of encoding/json:
// of several with one name the least deep wins, among those the tagged one,
// and none when that leaves several.
func structFields(t reflect.Type) []field {
	if got, ok := fieldCache.Load(t); ok {
		return got.([]field)
	}
	var all []field
	collectFields(t, nil, map[reflect.Type]bool{}, &all)
	got, _ := fieldCache.LoadOrStore(t, dominant(all))
	return got.([]field)
}

func collectFields(t reflect.Type, at []int, open map[reflect.Type]bool, all *[]field) {
	if open[t] {
		return // a struct that embeds itself by pointer
	}
	open[t] = true
	defer delete(open, t)
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := sf.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		inner := sf.Type
		if inner.Kind() == reflect.Pointer && inner.Name() == "" {
			inner = inner.Elem()
		}
		embedded := sf.Anonymous && inner.Kind() == reflect.Struct
		if !sf.IsExported() && !embedded {
			continue
		}
		index := append(append([]int(nil), at...), i)
		if embedded && name == "" {
			collectFields(inner, index, open, all)
			continue
		}
		if !sf.IsExported() {
			continue
		}
		f := field{name: name, index: index, tagged: name != ""}
		if !f.tagged {
			f.name = sf.Name
		}
		f.options(options, inner)
		*all = append(*all, f)
	}
}

// options reads what follows the name in a json tag.
func (f *field) options(tag string, inner reflect.Type) {
	for _, o := range strings.Split(tag, ",") {
		switch o {
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		case "string":
			f.quoted = quotable(inner.Kind())
		}
	}
}

func quotable(k reflect.Kind) bool {
	switch k {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return true
	}
	return false
}

// dominant leaves one field for each name, in the order of declaration.
func dominant(all []field) []field {
	byName := map[string][]field{}
	for _, f := range all {
		byName[f.name] = append(byName[f.name], f)
	}
	var out []field
	for _, same := range byName {
		sort.SliceStable(same, func(i, j int) bool {
			if len(same[i].index) != len(same[j].index) {
				return len(same[i].index) < len(same[j].index)
			}
			return same[i].tagged && !same[j].tagged
		})
		if len(same) > 1 && len(same[0].index) == len(same[1].index) && same[0].tagged == same[1].tagged {
			continue
		}
		out = append(out, same[0])
	}
	sort.Slice(out, func(i, j int) bool { return lessIndex(out[i].index, out[j].index) })
	return out
}

func lessIndex(a, b []int) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return len(a) < len(b)
}

// of gives the field's value; false when it lies behind a nil pointer.
func (f field) of(v reflect.Value) (reflect.Value, bool) {
	for i, n := range f.index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		v = v.Field(n)
	}
	return v, true
}

func (f field) omits(v reflect.Value) bool {
	if f.omitZero {
		if z, ok := zeroer(v); ok && z.IsZero() {
			return true
		} else if !ok && v.IsZero() {
			return true
		}
	}
	if !f.omitEmpty {
		return false
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}

// zeroer finds an IsZero method, as time.Time has one.
func zeroer(v reflect.Value) (interface{ IsZero() bool }, bool) {
	if v.Kind() == reflect.Pointer && v.IsNil() || v.Kind() == reflect.Interface {
		return nil, false
	}
	z, ok := v.Interface().(interface{ IsZero() bool })
	return z, ok
}
