package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// structure compares a YAML tree with the type that it is for, before the
// library decodes it: the library stops at the first fault, and makes 1 out of
// 1.5 without a word. It also notes where each field is written.
type structure struct {
	list
	lines map[string]int
}

var textType = reflect.TypeFor[encoding.TextUnmarshaler]()

func (s *structure) fault(n ast.Node, field, value, format string, args ...any) {
	s.add(field, value, format, args...)
	s.all[len(s.all)-1].Line = line(n)
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// check walks one node. A field that is there without a value keeps its
// default. What stands behind an alias is left to the decoder.
func (s *structure) check(n ast.Node, t reflect.Type, field string) {
	switch v := n.(type) {
	case *ast.AnchorNode:
		s.check(v.Value, t, field)
		return
	case *ast.TagNode:
		s.check(v.Value, t, field)
		return
	case nil, *ast.NullNode, *ast.AliasNode:
		return
	}
	if t.Kind() == reflect.Pointer { // a field whose zero is told from one left out
		t = t.Elem()
	}
	switch {
	case reflect.PointerTo(t).Implements(textType) || t.Kind() == reflect.String:
		s.scalar(n, t, field)
	case t.Kind() == reflect.Struct:
		s.object(n, t, field)
	case t.Kind() == reflect.Slice:
		s.sequence(n, t, field)
	case t.Kind() == reflect.Float64:
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
		default:
			s.fault(n, field, shown(n), "want a number such as 2.0")
		}
	case t.Kind() == reflect.Bool:
		if _, ok := n.(*ast.BoolNode); !ok {
			s.fault(n, field, shown(n), "want true or false")
		}
	default:
		if _, ok := n.(*ast.IntegerNode); !ok {
			s.fault(n, field, shown(n), "want a whole number")
		}
	}
}

func (s *structure) scalar(n ast.Node, t reflect.Type, field string) {
	scalar, ok := n.(ast.ScalarNode)
	if !ok {
		s.fault(n, field, "", "want one value, found %s", kind(n))
		return
	}
	if decoder, ok := reflect.New(t).Interface().(encoding.TextUnmarshaler); ok {
		if err := decoder.UnmarshalText([]byte(fmt.Sprint(scalar.GetValue()))); err != nil {
			s.fault(n, field, "", "%v", err)
		}
	}
}

func (s *structure) object(n ast.Node, t reflect.Type, field string) {
	node, ok := n.(ast.MapNode)
	if !ok {
		s.fault(n, field, "", "want fields with values, found %s", kind(n))
		return
	}
	for it := node.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			continue
		}
		name := it.KeyValue().Key.String()
		if key, ok := it.Key().(ast.ScalarNode); ok {
			name = fmt.Sprint(key.GetValue())
		}
		path := join(field, name)
		known := names(t)
		i := slices.Index(known, name)
		if i < 0 {
			s.fault(it.Key(), path, "", "unknown field; known are %s", strings.Join(known, ", "))
			continue
		}
		s.lines[path] = line(it.Key())
		s.check(it.Value(), t.Field(i).Type, path)
	}
}

func (s *structure) sequence(n ast.Node, t reflect.Type, field string) {
	node, ok := n.(ast.ArrayNode)
	if !ok {
		s.fault(n, field, "", "want a list (lines that begin with -), found %s", kind(n))
		return
	}
	it := node.ArrayRange()
	for i := 0; it.Next(); i++ {
		path := field + "[" + strconv.Itoa(i) + "]"
		if it.Value() == nil || it.Value().Type() == ast.NullType {
			s.add(path, "", "is empty: fill it or remove it") // the library knows no line for it
			continue
		}
		s.lines[path] = line(it.Value())
		s.check(it.Value(), t.Elem(), path)
	}
}

// names are the fields of a struct as YAML has them, by field index.
func names(t reflect.Type) []string {
	var all []string
	for i := range t.NumField() {
		all = append(all, t.Field(i).Tag.Get("yaml"))
	}
	return all
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// shown is the value of a scalar that is not a secret: secrets are texts, and
// this is for what should have been a number or a truth value.
func shown(n ast.Node) string {
	if v, ok := n.(ast.ScalarNode); ok {
		return fmt.Sprint(v.GetValue())
	}
	return kind(n)
}

func kind(n ast.Node) string {
	switch n.(type) {
	case ast.MapNode:
		return "fields"
	case ast.ArrayNode:
		return "a list"
	}
	return "one value"
}
