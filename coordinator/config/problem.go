package config

import (
	"fmt"
	"strconv"
	"strings"

	"keyframe/coordinator/fault"
)

// Problem is one thing that is wrong in a configuration.
type Problem struct {
	Line    int    // in the YAML text, from 1 on; 0 when unknown
	Field   string // path of the field, such as jobs[0].retention.keep
	Value   string // as it was given, quoted if a text; "" when there is none. Never a secret
	Message string // what is wrong and what to do
}

// String is the problem in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	for _, part := range []string{p.Field, p.Value} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	return b.String() + p.Message
}

// Problems is all that is wrong in a configuration: the cause (errors.As) of
// the *fault.Error that this package's functions give.
type Problems []Problem

var _ error = Problems(nil)

// Error lists the problems, one a line if there are several.
func (ps Problems) Error() string {
	if len(ps) == 1 {
		return ps[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems", len(ps))
	for _, p := range ps {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// fault makes the error for the caller, nil when there are no problems. What
// names the configuration.
func (ps Problems) fault(what string) error {
	if len(ps) == 0 {
		return nil
	}
	return fault.Wrap(ps, fault.Config, "correct what is listed; configs/keyframe.yaml shows every field", "%s", what)
}

// list collects problems; a nil *list can't.
type list struct{ all Problems }

func (l *list) add(field, value, format string, args ...any) {
	l.all = append(l.all, Problem{Field: field, Value: value, Message: fmt.Sprintf(format, args...)})
}

// text quotes a text value, so that an empty one and spaces can be seen.
func text[T ~string](v T) string { return strconv.Quote(string(v)) }

// locate gives each problem the line of its field, or of the nearest field
// around it that is written down.
func (ps Problems) locate(lines map[string]int) Problems {
	for i := range ps {
		for field := ps[i].Field; ps[i].Line == 0 && field != ""; field = parent(field) {
			ps[i].Line = lines[field]
		}
	}
	return ps
}

func parent(field string) string {
	return field[:max(strings.LastIndexAny(field, ".["), 0)]
}
