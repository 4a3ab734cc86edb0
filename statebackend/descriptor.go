package statebackend

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Descriptor describes one state: its name and, for value, list and set
// states, the type T of what it holds (for map states, of the map's values).
type Descriptor[T any] struct {
	Name string
	// TypeName is the Java class that the schema registry shows. It may be
	// empty for strings, booleans, int and int32 (java.lang.Integer), int64
	// (java.lang.Long), float32, float64 and []byte; everything else must
	// be named, with any name that the job's programs agree on.
	TypeName string
	// Default is what an absent value is read as; nil for none. Value
	// states only.
	Default *T
	// Version of the schema; anything below 1 is 1.
	Version int
	// Shards spreads a value state over that many hashes, by the Java hash
	// of the typed key; 0 is one hash. Value states only. It can't change
	// while state exists.
	Shards int
}

// Schema is an entry of the schema registry.
type Schema struct {
	TypeName string
	Version  int
}

// String is the registry's form: type name|version.
func (s Schema) String() string { return s.TypeName + "|" + strconv.Itoa(s.Version) }

// ParseSchema reads the registry's form. The version comes after the last bar.
func ParseSchema(text string) (Schema, error) {
	i := strings.LastIndexByte(text, '|')
	if i < 1 {
		return Schema{}, fmt.Errorf("schema %.200q: want type name|version", text)
	}
	v, err := strconv.Atoi(text[i+1:])
	if err != nil || v < 1 {
		return Schema{}, fmt.Errorf("schema %.200q: want a version from 1 on after the bar", text)
	}
	return Schema{TypeName: text[:i], Version: v}, nil
}

// Schema gives what the descriptor is registered as.
func (d Descriptor[T]) Schema() (Schema, error) {
	s := Schema{TypeName: d.TypeName, Version: max(1, d.Version)}
	if s.TypeName != "" {
		return s, nil
	}
	name, ok := javaTypeName(reflect.TypeFor[T]())
	if !ok {
		return Schema{}, fmt.Errorf("state %q holds %s, which has no Java class of its own: name one in TypeName",
			d.Name, reflect.TypeFor[T]())
	}
	s.TypeName = name
	return s, nil
}

// javaTypeName knows the classes of plain values. A type that writes its own
// JSON may be anything.
func javaTypeName(t reflect.Type) (string, bool) {
	if p := reflect.PointerTo(t); p.Implements(marshalerType) || p.Implements(textMarshalerType) {
		return "", false
	}
	switch t.Kind() {
	case reflect.String:
		return "java.lang.String", t != numberType
	case reflect.Int, reflect.Int32:
		return "java.lang.Integer", true
	case reflect.Int64:
		return "java.lang.Long", true
	case reflect.Float32:
		return "java.lang.Float", true
	case reflect.Float64:
		return "java.lang.Double", true
	case reflect.Bool:
		return "java.lang.Boolean", true
	case reflect.Slice:
		return "[B", isBytes(t)
	}
	return "", false
}

func (d Descriptor[T]) validate() error {
	if d.Name == "" {
		return errors.New("a state without a name: give its descriptor one")
	}
	if d.Shards < 0 {
		return fmt.Errorf("state %q has %d shards: want 0 or more", d.Name, d.Shards)
	}
	return nil
}

// plain refuses what only value states have.
func (d Descriptor[T]) plain(kind string) error {
	if d.Default != nil || d.Shards != 0 {
		return fmt.Errorf("%s state %q has a default or shards: only value states have them", kind, d.Name)
	}
	return d.validate()
}
