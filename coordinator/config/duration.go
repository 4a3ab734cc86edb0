package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

var (
	_ encoding.TextMarshaler   = Duration(0)
	_ encoding.TextUnmarshaler = (*Duration)(nil)
	_ json.Marshaler           = Duration(0)
	_ json.Unmarshaler         = (*Duration)(nil)
)

// Duration is a time.Duration that YAML and JSON write as "1m30s".
type Duration time.Duration

// String is the form of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the string form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalJSON writes the string form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads the string form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" { // as everywhere in JSON: nothing is said
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return inJSON[Duration](fmt.Errorf("duration %s: want a string such as \"30s\"", b))
	}
	return inJSON[Duration](d.UnmarshalText([]byte(s)))
}

// inJSON is an error about a value in JSON to which the decoder adds the field
// that it stands in: it does so for this type alone.
func inJSON[T any](err error) error {
	if err == nil {
		return nil
	}
	return &json.UnmarshalTypeError{Value: err.Error(), Type: reflect.TypeFor[T]()}
}

// UnmarshalText reads "1m30s"; the empty text is 0.
func (d *Duration) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as 30s, 5m or 168h", b)
	}
	*d = Duration(v)
	return nil
}
