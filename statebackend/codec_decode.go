package statebackend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"time"
	"unicode/utf8"
)

// DecodeJSON reads one JSON document into a T. It takes what [EncodeJSON] and
// Jackson write, so the strings "NaN", "Infinity" and "-Infinity" are floats
// where T has a float. Numbers in an interface come as json.Number, whose text
// is what was written, so that they are written back as they were. Members
// that T doesn't have are left out. null is an error unless T can be nil (or
// reads it itself): it isn't the same as a zero.
func DecodeJSON[T any](data []byte) (T, error) {
	var v T
	if err := decodeInto(data, reflect.ValueOf(&v).Elem()); err != nil {
		var zero T
		return zero, fmt.Errorf("decode %.200q as %s: %w", data, reflect.TypeFor[T](), err)
	}
	return v, nil
}

func decodeInto(data []byte, into reflect.Value) error {
	if !utf8.Valid(data) {
		return errors.New("it is not UTF-8")
	}
	if isNull(data) && !takesNull(into.Type()) {
		return errors.New("it is null: use a pointer type for values that may be null")
	}
	err := decodeStandard(data, into)
	if err == nil || !mentionsNonFinite(data) {
		return err
	}
	into.SetZero()
	return decodeLoose(data, into, 0)
}

func isNull(data []byte) bool { return string(bytes.TrimSpace(data)) == "null" }

func takesNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return t != reflect.TypeFor[time.Time]() && reflect.PointerTo(t).Implements(unmarshalerType)
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

func decodeStandard(data []byte, into reflect.Value) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(into.Addr().Interface()); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF // nothing at all is no document
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return nil
}

func mentionsNonFinite(data []byte) bool {
	return bytes.Contains(data, []byte(`"NaN"`)) || bytes.Contains(data, []byte(`Infinity"`))
}

// decodeLoose is the way for documents with non-finite floats, which
// encoding/json refuses: it walks the type down to the floats.
func decodeLoose(data []byte, into reflect.Value, depth int) error {
	t := into.Type()
	switch {
	case depth > maxDepth:
		return fmt.Errorf("nested deeper than %d", maxDepth)
	case isNull(data), reflect.PointerTo(t).Implements(unmarshalerType):
		return decodeStandard(data, into)
	}
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		return decodeFloat(data, into)
	case reflect.Pointer:
		into.Set(reflect.New(t.Elem()))
		return decodeLoose(data, into.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return decodeItems(data, into, depth)
	case reflect.Map:
		return decodeMembers(data, into, depth)
	case reflect.Struct:
		return decodeStruct(data, into, depth)
	}
	return decodeStandard(data, into)
}

func decodeFloat(data []byte, into reflect.Value) error {
	switch string(bytes.TrimSpace(data)) {
	case `"NaN"`:
		into.SetFloat(math.NaN())
	case `"Infinity"`:
		into.SetFloat(math.Inf(1))
	case `"-Infinity"`:
		into.SetFloat(math.Inf(-1))
	default:
		return decodeStandard(data, into)
	}
	return nil
}

func decodeItems(data []byte, into reflect.Value, depth int) error {
	t := into.Type()
	if t.Elem().Kind() == reflect.Uint8 {
		return decodeStandard(data, into)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if t.Kind() == reflect.Slice {
		into.Set(reflect.MakeSlice(t, len(raw), len(raw)))
	}
	for i := range min(len(raw), into.Len()) {
		if err := decodeLoose(raw[i], into.Index(i), depth+1); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// decodeMembers lets encoding/json read the keys, with the values left raw.
func decodeMembers(data []byte, into reflect.Value, depth int) error {
	t := into.Type()
	raw := reflect.New(reflect.MapOf(t.Key(), reflect.TypeFor[json.RawMessage]()))
	if err := json.Unmarshal(data, raw.Interface()); err != nil {
		return err
	}
	into.Set(reflect.MakeMap(t))
	for it := raw.Elem().MapRange(); it.Next(); {
		v := reflect.New(t.Elem()).Elem()
		if err := decodeLoose(it.Value().Interface().(json.RawMessage), v, depth+1); err != nil {
			return fmt.Errorf("member %v: %w", it.Key(), err)
		}
		into.SetMapIndex(it.Key(), v)
	}
	return nil
}

func decodeStruct(data []byte, into reflect.Value, depth int) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	for _, f := range structFields(into.Type()) {
		value, ok := raw[f.name]
		if !ok {
			continue
		}
		if f.quoted {
			var inner string
			if err := json.Unmarshal(value, &inner); err != nil {
				return fmt.Errorf("member %q: %w", f.name, err)
			}
			value = json.RawMessage(inner)
		}
		place, err := f.make(into)
		if err == nil {
			err = decodeLoose(value, place, depth+1)
		}
		if err != nil {
			return fmt.Errorf("member %q: %w", f.name, err)
		}
	}
	return nil
}

// make gives the field's place, with the pointers to embedded structs before
// it filled.
func (f field) make(v reflect.Value) (reflect.Value, error) {
	for i, n := range f.index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() && !v.CanSet() {
				return v, fmt.Errorf("it lies in an embedded %s, which is not exported", v.Type())
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(n)
	}
	return v, nil
}
