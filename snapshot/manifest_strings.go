package snapshot

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// escapePrefix begins a string that JSON could not carry as it is: names in
// Redis are bytes, and JSON would turn the ones that aren't UTF-8 into U+FFFD.
const escapePrefix = "base64:"

func needsEscape(s string) bool {
	return !utf8.ValidString(s) || strings.HasPrefix(s, escapePrefix)
}

// escapeString leaves valid UTF-8 alone, unless it looks like an escape.
func escapeString(s string) string {
	if !needsEscape(s) {
		return s
	}
	return escapePrefix + base64.StdEncoding.EncodeToString([]byte(s))
}

// unescapeString is the inverse; only what escapeString writes is read.
func unescapeString(s string) (string, error) {
	code, ok := strings.CutPrefix(s, escapePrefix)
	if !ok {
		return s, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(code)
	if err != nil {
		return "", fmt.Errorf("escaped string %q: %w", s, err)
	}
	if escapeString(string(b)) != s {
		return "", fmt.Errorf("escaped string %q is not how its bytes are escaped", s)
	}
	return string(b), nil
}

// mapStrings gives a deep copy of m with every string changed by fn and every
// time in UTC. By reflection, so that a string field added to the manifest
// can't be forgotten here.
func mapStrings(m Manifest, fn func(string) string) Manifest {
	return mapValue(reflect.ValueOf(m), fn).Interface().(Manifest)
}

var timeType = reflect.TypeFor[time.Time]()

func mapValue(v reflect.Value, fn func(string) string) reflect.Value {
	if v.Type() == timeType {
		return reflect.ValueOf(inUTC(v.Interface().(time.Time)))
	}
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.String:
		out.SetString(fn(v.String()))
	case reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(mapValue(v.Field(i), fn))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(mapValue(v.Elem(), fn))
		}
	case reflect.Slice:
		mapSlice(v, out, fn)
	}
	return out
}

// inUTC leaves a time in its own zone when its year in UTC is one that JSON has
// no form for (year 0 east of Greenwich): what could be read can be written.
func inUTC(t time.Time) time.Time {
	if u := t.UTC(); u.Year() >= 0 && u.Year() <= 9999 {
		return u
	}
	return t
}

func mapSlice(v, out reflect.Value, fn func(string) string) {
	if v.IsNil() {
		return
	}
	out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
	if v.Type().Elem() == reflect.TypeFor[ChunkRef]() { // by far the longest, and no strings
		reflect.Copy(out, v)
		return
	}
	for i := range v.Len() {
		out.Index(i).Set(mapValue(v.Index(i), fn))
	}
}
