package api

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"
)

// The reader of OpenAPI documents below knows nothing of the server but the
// document that it serves: what it accepts, any client may rely on.

// schema is what the document says of a value.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 any                `json:"type"` // a text or a list of texts
	Format               string             `json:"format"`
	Enum                 []any              `json:"enum"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties json.RawMessage    `json:"additionalProperties"`
	Minimum, Maximum     *float64
	MinLength, MaxLength *int
}

// parameter is one of a path's or query's.
type parameter struct {
	Name, In string
	Required bool
	Schema   *schema
}

type content map[string]struct{ Schema *schema }

// operationSpec is one operation of the document.
type operationSpec struct {
	OperationID string `json:"operationId"`
	Role        string `json:"x-role"`
	Parameters  []parameter
	RequestBody *struct {
		Required bool
		Content  content
	}
	Responses map[string]struct{ Content content }
	method    string
	path      string
}

// spec is a whole document.
type spec struct {
	Paths      map[string]map[string]*operationSpec
	Components struct{ Schemas map[string]*schema }
	ops        []*operationSpec // in the order of their ids
}

func readSpec(text string) (*spec, error) {
	d := &spec{}
	if err := json.Unmarshal([]byte(text), d); err != nil {
		return nil, err
	}
	for path, methods := range d.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			d.ops = append(d.ops, op)
		}
	}
	sort.Slice(d.ops, func(i, j int) bool { return d.ops[i].OperationID < d.ops[j].OperationID })
	return d, nil
}

// resolve follows references.
func (d *spec) resolve(s *schema) *schema {
	for s != nil && s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s
}

// types are the types that a schema allows.
func (s *schema) types() []string {
	switch t := s.Type.(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, one := range t {
			all = append(all, fmt.Sprint(one))
		}
		return all
	}
	return nil
}

// conforms says where a value, decoded with json.Number, is not what its schema
// says; "" when it is.
func (d *spec) conforms(v any, s *schema, at string) string {
	if s = d.resolve(s); s == nil {
		return at + ": the document has no schema for it"
	}
	types := s.types()
	if len(types) == 0 {
		return "" // anything
	}
	if v == nil {
		if slices.Contains(types, "null") {
			return ""
		}
		return fmt.Sprintf("%s is null, want %v", at, types)
	}
	if !slices.ContainsFunc(types, func(t string) bool { return isOf(v, t) }) {
		return fmt.Sprintf("%s is a %T (%.80v), want %v", at, v, v, types)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Sprintf("%s is %v, want one of %v", at, v, s.Enum)
	}
	switch v := v.(type) {
	case string:
		return s.text(v, at)
	case json.Number:
		return s.number(v, at)
	case []any:
		for i, e := range v {
			if why := d.conforms(e, s.Items, fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
	case map[string]any:
		return d.object(v, s, at)
	}
	return ""
}

func isOf(v any, t string) bool {
	switch v := v.(type) {
	case string:
		return t == "string"
	case bool:
		return t == "boolean"
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	case json.Number:
		return t == "number" || t == "integer" && !strings.ContainsAny(v.String(), ".eE")
	}
	return false
}

func (s *schema) text(v, at string) string {
	n := utf8.RuneCountInString(v)
	switch {
	case s.MinLength != nil && n < *s.MinLength, s.MaxLength != nil && n > *s.MaxLength:
		return fmt.Sprintf("%s has %d characters", at, n)
	case s.Format == "date-time":
		if _, err := time.Parse(time.RFC3339Nano, v); err != nil {
			return fmt.Sprintf("%s is no time: %v", at, err)
		}
	}
	return ""
}

func (s *schema) number(v json.Number, at string) string {
	f, err := v.Float64()
	switch {
	case err != nil || math.IsInf(f, 0):
		return fmt.Sprintf("%s: %s is no number", at, v)
	case s.Minimum != nil && f < *s.Minimum, s.Maximum != nil && f > *s.Maximum:
		return fmt.Sprintf("%s: %s is out of range", at, v)
	}
	return ""
}

func (d *spec) object(v map[string]any, s *schema, at string) string {
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return fmt.Sprintf("%s lacks %s", at, name)
		}
	}
	for name, e := range v {
		in := s.Properties[name]
		if in == nil {
			switch more := string(s.AdditionalProperties); more {
			case "false":
				return fmt.Sprintf("%s has %s, which the document doesn't know", at, name)
			case "", "true":
				continue
			default:
				if err := json.Unmarshal(s.AdditionalProperties, &in); err != nil {
					return fmt.Sprintf("%s: %v", at, err)
				}
			}
		}
		if why := d.conforms(e, in, at+"."+name); why != "" {
			return why
		}
	}
	return ""
}
