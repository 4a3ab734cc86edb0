package statebackend

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"unicode/utf8"
)

// maxDepth is how deeply values may be nested: Jackson's own limit. It also
// ends values that contain themselves.
const maxDepth = 1000

// EncodeJSON writes v byte for byte as Jackson's plain ObjectMapper does on
// Java 17: members, items and map keys are compared as bytes, so two programs
// that share a state must agree on every one of them.
//
// Strings are escaped as little as possible (no HTML escapes, control
// characters as \u00XX with upper-case digits), floats are Java doubles or
// floats ([AppendDouble]; NaN and infinities as strings), []byte is base64,
// nil is null. Struct fields go in their order with their json tags (name, -,
// omitempty, omitzero, string); maps go in the order of their keys' bytes
// (Java's HashMap has no order to match). What implements json.Marshaler (as
// time.Time: RFC 3339) or encoding.TextMarshaler writes itself; its strings are
// then escaped as all others.
//
// Errors: a string that isn't UTF-8 (Java can't hold it), a value that JSON
// has no form for, nesting deeper than 1000.
func EncodeJSON(v any) ([]byte, error) {
	e := encoder{}
	if err := e.value(reflect.ValueOf(v), 0); err != nil {
		return nil, fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	return e.b, nil
}

type encoder struct{ b []byte }

var (
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
	numberType        = reflect.TypeFor[json.Number]()
)

func (e *encoder) value(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	if !v.IsValid() {
		return e.raw("null")
	}
	if done, err := e.own(v); done || err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.Bool:
		e.b = strconv.AppendBool(e.b, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.b = strconv.AppendInt(e.b, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.b = strconv.AppendUint(e.b, v.Uint(), 10)
	case reflect.Float64:
		e.b = appendJavaFloat(e.b, v.Float(), 64)
	case reflect.Float32:
		e.b = appendJavaFloat(e.b, v.Float(), 32)
	case reflect.String:
		return e.text(v)
	case reflect.Pointer, reflect.Interface:
		return e.value(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return e.list(v, depth)
	case reflect.Map:
		return e.object(v, depth)
	case reflect.Struct:
		return e.fields(v, depth)
	default:
		return fmt.Errorf("a %s has no JSON form", v.Type())
	}
	return nil
}

func (e *encoder) raw(s string) error {
	e.b = append(e.b, s...)
	return nil
}

// own lets a value write itself. A method with a pointer receiver counts
// whether or not the value is addressable, so that the bytes of a value don't
// depend on where it lies.
func (e *encoder) own(v reflect.Value) (bool, error) {
	t := v.Type()
	if t.Kind() == reflect.Interface {
		return false, nil // what is in it decides
	}
	asJSON, asText := t.Implements(marshalerType), t.Implements(textMarshalerType)
	if !asJSON && !asText && t.Kind() != reflect.Pointer {
		p := reflect.PointerTo(t)
		asJSON, asText = p.Implements(marshalerType), p.Implements(textMarshalerType)
		if asJSON || asText {
			at := reflect.New(t)
			at.Elem().Set(v)
			v = at
		}
	}
	switch {
	case !asJSON && !asText:
		return false, nil
	case v.Kind() == reflect.Pointer && v.IsNil():
		return true, e.raw("null")
	case asJSON:
		return true, e.marshaled(v.Interface().(json.Marshaler))
	}
	text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
	if err != nil {
		return true, err
	}
	return true, e.str(string(text))
}

// marshaled takes what a json.Marshaler wrote and writes it again, token by
// token, with our escapes and without spaces. Numbers stay as they are.
func (e *encoder) marshaled(m json.Marshaler) error {
	raw, err := m.MarshalJSON()
	if err != nil {
		return err
	}
	if !json.Valid(raw) {
		return errors.New("its MarshalJSON gave something that isn't JSON")
	}
	if !utf8.Valid(raw) {
		return errors.New("its MarshalJSON gave a string that is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return e.tokens(d)
}

func (e *encoder) tokens(d *json.Decoder) error {
	tok, err := d.Token()
	if err != nil {
		return err
	}
	switch x := tok.(type) {
	case json.Delim:
		e.b = append(e.b, byte(x))
		for first := true; d.More(); first = false {
			if !first {
				e.b = append(e.b, ',')
			}
			if x == '{' {
				if err := e.tokens(d); err != nil {
					return err
				}
				e.b = append(e.b, ':')
			}
			if err := e.tokens(d); err != nil {
				return err
			}
		}
		end, err := d.Token()
		if err != nil {
			return err
		}
		e.b = append(e.b, byte(end.(json.Delim)))
		return nil
	case json.Number:
		return e.raw(x.String())
	default:
		return e.value(reflect.ValueOf(x), 0)
	}
}

func (e *encoder) text(v reflect.Value) error {
	if v.Type() != numberType {
		return e.str(v.String())
	}
	s := v.String()
	if !isNumber(s) {
		return fmt.Errorf("json.Number %q isn't a number", s)
	}
	return e.raw(s)
}

// isNumber reports whether a text is a JSON number and nothing around it.
func isNumber(s string) bool {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	return s != "" && (s[0] == '-' || digit(s[0])) && digit(s[len(s)-1]) && json.Valid([]byte(s))
}

const upperHex = "0123456789ABCDEF"

// str writes a string with Jackson's default escapes.
func (e *encoder) str(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("string %.100q is not UTF-8", s)
	}
	e.b = append(e.b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		e.b = append(e.b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			e.b = append(e.b, '\\', c)
		case '\b':
			e.b = append(e.b, `\b`...)
		case '\t':
			e.b = append(e.b, `\t`...)
		case '\n':
			e.b = append(e.b, `\n`...)
		case '\f':
			e.b = append(e.b, `\f`...)
		case '\r':
			e.b = append(e.b, `\r`...)
		default:
			e.b = append(e.b, '\\', 'u', '0', '0', upperHex[c>>4], upperHex[c&15])
		}
	}
	e.b = append(e.b, s[from:]...)
	e.b = append(e.b, '"')
	return nil
}

func (e *encoder) list(v reflect.Value, depth int) error {
	if v.Kind() == reflect.Slice {
		if v.IsNil() {
			return e.raw("null")
		}
		if isBytes(v.Type()) {
			e.b = append(e.b, '"')
			e.b = base64.StdEncoding.AppendEncode(e.b, v.Bytes())
			e.b = append(e.b, '"')
			return nil
		}
	}
	e.b = append(e.b, '[')
	for i := range v.Len() {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if err := e.value(v.Index(i), depth+1); err != nil {
			return err
		}
	}
	e.b = append(e.b, ']')
	return nil
}

// isBytes reports whether a slice goes as base64: the elements are bytes that
// don't write themselves, as in encoding/json.
func isBytes(t reflect.Type) bool {
	el := t.Elem()
	p := reflect.PointerTo(el)
	return el.Kind() == reflect.Uint8 && !p.Implements(marshalerType) && !p.Implements(textMarshalerType)
}

func (e *encoder) object(v reflect.Value, depth int) error {
	if v.IsNil() {
		return e.raw("null")
	}
	type pair struct {
		name  string
		value reflect.Value
	}
	pairs := make([]pair, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		name, err := mapKeyText(it.Key())
		if err != nil {
			return err
		}
		pairs = append(pairs, pair{name, it.Value()})
	}
	sort.Slice(pairs, func(i, j int) bool { return pairs[i].name < pairs[j].name })
	e.b = append(e.b, '{')
	for i, p := range pairs {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if err := e.member(p.name, p.value, depth); err != nil {
			return err
		}
	}
	e.b = append(e.b, '}')
	return nil
}

func (e *encoder) member(name string, v reflect.Value, depth int) error {
	if err := e.str(name); err != nil {
		return err
	}
	e.b = append(e.b, ':')
	if err := e.value(v, depth+1); err != nil {
		return fmt.Errorf("%.100q: %w", name, err)
	}
	return nil
}

// mapKeyText gives a map key as the name of a member. The same kinds as in
// encoding/json, which has to read them back.
func mapKeyText(k reflect.Value) (string, error) {
	if k.Kind() == reflect.String {
		return k.String(), nil
	}
	if k.Type().Implements(textMarshalerType) {
		if k.Kind() == reflect.Pointer && k.IsNil() {
			return "", nil
		}
		text, err := k.Interface().(encoding.TextMarshaler).MarshalText()
		return string(text), err
	}
	switch {
	case k.CanInt():
		return strconv.FormatInt(k.Int(), 10), nil
	case k.CanUint():
		return strconv.FormatUint(k.Uint(), 10), nil
	}
	return "", fmt.Errorf("a %s can't be a member's name: use a string or an integer", k.Type())
}

func (e *encoder) fields(v reflect.Value, depth int) error {
	fields := structFields(v.Type())
	e.b = append(e.b, '{')
	first := true
	for _, f := range fields {
		fv, ok := f.of(v)
		if !ok || f.omits(fv) {
			continue
		}
		if !first {
			e.b = append(e.b, ',')
		}
		first = false
		start := len(e.b)
		if err := e.member(f.name, fv, depth); err != nil {
			return err
		}
		if f.quoted {
			if err := e.requote(start, f.name); err != nil {
				return err
			}
		}
	}
	e.b = append(e.b, '}')
	return nil
}

// requote puts the value of the member that began at start into a string, for
// the json tag's option string. null stays null.
func (e *encoder) requote(start int, name string) error {
	head := encoder{}
	if err := head.str(name); err != nil {
		return err
	}
	at := start + len(head.b) + 1
	text := string(e.b[at:])
	if text == "null" {
		return nil
	}
	e.b = e.b[:at]
	return e.str(text)
}
