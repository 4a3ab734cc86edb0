package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"keyframe/coordinator/fault"
)

// maxText is the largest configuration that is read, in bytes.
const maxText = 8 << 20

// Load reads and checks a configuration file. Errors are *fault.Error of code
// config that list all problems with field, value, line and remedy.
func Load(path string) (File, error) {
	text, err := readLimited(path)
	if err != nil {
		return File{}, fault.Wrap(err, fault.Config, "give the path of a configuration file with -c; configs/minimal.yaml is the smallest", "read configuration")
	}
	return parse("configuration "+path, text)
}

// Parse is Load for a text that has been read. An empty text gives Defaults.
func Parse(text []byte) (File, error) { return parse("configuration", text) }

func parse(what string, text []byte) (File, error) {
	f := Defaults()
	lines, problems := decodeYAML(text, &f)
	if len(problems) == 0 {
		for i := range f.Jobs {
			f.Jobs[i] = f.Jobs[i].withGroups()
		}
		problems = f.problems().locate(lines)
	}
	if err := problems.fault(what); err != nil {
		return File{}, err
	}
	return f, nil
}

// ParseJob reads and checks the definition of one job, in YAML or JSON, with
// the fields of an entry of jobs in the configuration.
func ParseJob(text []byte) (Job, error) {
	j := jobDefaults()
	if len(bytes.TrimSpace(text)) == 0 {
		return Job{}, Problems{{Message: "the text is empty: give a job with at least a name"}}.fault("job")
	}
	lines, problems := map[string]int(nil), Problems(nil)
	if json.Valid(text) {
		problems = decodeJSON(text, &j)
	} else {
		lines, problems = decodeYAML(text, &j)
	}
	if len(problems) == 0 {
		j = j.withGroups()
		problems = j.problems("").locate(lines)
	}
	if err := problems.fault("job"); err != nil {
		return Job{}, err
	}
	return j, nil
}

// UnmarshalYAML decodes a job over the defaults, so that a field which is left
// out is told from one that is 0.
func (j *Job) UnmarshalYAML(decode func(any) error) error {
	type plain Job
	p := plain(jobDefaults())
	if err := decode(&p); err != nil {
		return err
	}
	*j = Job(p)
	return nil
}

var _ yaml.InterfaceUnmarshaler = (*Job)(nil)

// decodeYAML decodes one document over what into points to. Panics of the
// library become problems.
func decodeYAML(text []byte, into any) (lines map[string]int, problems Problems) {
	defer func() {
		if r := recover(); r != nil {
			problems = Problems{{Message: "the YAML parser gave up: correct the indentation and the quotes"}}
		}
	}()
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, Problems{fromYAML(err)}
	}
	body, err := onlyDocument(tree)
	if err != nil {
		return nil, Problems{{Message: err.Error()}}
	}
	if body == nil {
		return nil, nil
	}
	s := structure{lines: map[string]int{}}
	s.check(body, reflect.TypeOf(into).Elem(), "")
	if len(s.all) > 0 {
		return nil, s.all
	}
	if err := yaml.NodeToValue(body, into, yaml.Strict()); err != nil {
		return nil, Problems{fromYAML(err)}
	}
	return s.lines, nil
}

// onlyDocument is the body of the only document with content, nil when there
// is none.
func onlyDocument(tree *ast.File) (ast.Node, error) {
	var body ast.Node
	for _, doc := range tree.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return nil, errors.New("there is more than one YAML document: keep one, without --- between")
		}
		body = doc.Body
	}
	return body, nil
}

// fromYAML takes the line and the message from a library error, and leaves the
// source that it would print: it may hold a password.
func fromYAML(err error) Problem {
	var y yaml.Error
	if !errors.As(err, &y) {
		return Problem{Message: err.Error()}
	}
	p := Problem{Message: y.GetMessage()}
	if t := y.GetToken(); t != nil && t.Position != nil {
		p.Line = t.Position.Line
	}
	return p
}

// decodeJSON decodes over the defaults that into holds.
func decodeJSON(text []byte, into *Job) Problems {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return Problems{{Field: wrong.Field, Value: wrong.Value, Message: fmt.Sprintf("want a value of type %s", wrong.Type)}}
	}
	return Problems{{Message: err.Error()}}
}

func readLimited(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err = io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(text) > maxText {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxText)
	}
	return text, err
}
