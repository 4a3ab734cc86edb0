package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// dice takes choices out of bytes: a fuzzer's, or a property's. When there are
// no more, each choice is the first, which is always the plain one.
type dice struct{ b []byte }

func (d *dice) n(below int) int {
	if len(d.b) == 0 || below < 2 {
		return 0
	}
	v := int(d.b[0])
	d.b = d.b[1:]
	if below > 200 && len(d.b) > 0 {
		v, d.b = v<<8|int(d.b[0]), d.b[1:]
	}
	return v % below
}

// rarely is true once in five times.
func (d *dice) rarely() bool { return d.n(5) == 4 }

func pick[T any](d *dice, all []T) T { return all[d.n(len(all))] }

// rest is some of the bytes themselves.
func (d *dice) rest(most int) string {
	n := d.n(most)
	n = min(n, len(d.b))
	out := string(d.b[:n])
	d.b = d.b[n:]
	return out
}

// request is one request to be sent.
type request struct {
	op          *operationSpec
	method      string
	target      string // path and query, escaped
	body        string
	contentType string
	token       string
}

func (r request) String() string {
	return fmt.Sprintf("%s %.300s (%s) %.300q", r.method, r.target, r.contentType, r.body)
}

// plainValues are values that mean something, by the name of a field or
// parameter: the document gives their type only.
func (w *world) plainValues(op *operationSpec) map[string][]any {
	return map[string][]any{
		"job": {"flights", "twin"}, "checkpoint": {"latest", "1", "2", "gold"}, "id": {w.lastOperation()}, "wait": {"1ms"}, "watch": {"0s"},
		"key": {"key-7"}, "file": {w.backupFile()}, "prefix": {"streaming:runtime"}, "parallelism": {2, 3}, "maxParallelism": {10},
		"schedule": {"", "@daily"}, "timeout": {"1m"}, "minPause": {"1s"}, "maxPause": {"1s"}, "maxStall": {"10ms"}, "maxReadRate": {"50MB"}, "maxAge": {"1h"},
		"grade": {"auto", "paused"}, "as": {""}, "note": {"a note"}, "after": {0}, "limit": {10}, "keep": {5}, "hash": {"java"}, "keyType": {"string"},
	}
}

// hostileTexts are put where texts belong, beside hostileNames.
var hostileTexts = []string{
	"", "\x00", "../../../etc/passwd", "%2f..%2f", "%00", "-1", "0", "18446744073709551616", "9223372036854775807", "1e400", "NaN", "null", "true", "{}",
	"9999999h", "-5s", "@every 1ns", "TZ=0", "0 0 30 2 *", "99999999999GiB", "${HOME}", "<script>", "\u2028", "🦆", "\U0010ffff", "e\u0301", strings.Repeat("é", 2500),
}

var hostileNumbers = []json.Number{"-1", "0", "1.5", "1e3", "1E400", "-0", "2147483648", "32769", "9223372036854775808", "18446744073709551616", "0.1e-400", "123456789012345678901234567890"}

// hostile is a value of any type.
func (d *dice) hostile(depth int) any {
	switch d.n(8) {
	case 0:
		return pick(d, hostileTexts)
	case 1:
		return pick(d, hostileNames)
	case 2:
		return pick(d, hostileNumbers)
	case 3:
		return nil
	case 4:
		return d.n(2) == 0
	case 5:
		return d.rest(40)
	case 6:
		return map[string]any{pick(d, hostileTexts): d.deeper(depth)}
	}
	return []any{d.deeper(depth)}
}

func (d *dice) deeper(depth int) any {
	if depth > 3 {
		return nil
	}
	return d.hostile(depth + 1)
}

// value is one of what a schema allows, by the names that it lies under; one of
// its parts may be something else, when hostile is set.
func (w *world) value(d *dice, s *schema, name string, plain map[string][]any, hostile bool) any {
	if s = w.doc.resolve(s); s == nil || hostile && d.rarely() {
		return d.hostile(0)
	}
	if known := plain[name]; known != nil && s.Properties == nil {
		return pick(d, known)
	}
	if len(s.Enum) > 0 {
		return pick(d, s.Enum)
	}
	types := s.types()
	if len(types) == 0 {
		return d.hostile(0)
	}
	switch types[0] {
	case "object":
		return w.object(d, s, plain, hostile)
	case "array":
		all := []any{}
		for range d.n(3) {
			all = append(all, w.value(d, s.Items, name, plain, hostile))
		}
		return all
	case "boolean":
		return d.n(2) == 1
	case "integer", "number":
		if s.Minimum != nil {
			return int(*s.Minimum) + d.n(3)
		}
		return d.n(100)
	}
	return pick(d, []string{"a", "gold", "x y", "日本"})
}

func (w *world) object(d *dice, s *schema, plain map[string][]any, hostile bool) map[string]any {
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		// The key groups of a job can't change, so they are given too.
		if slices.Contains(s.Required, name) || strings.HasSuffix(name, "arallelism") || d.rarely() {
			out[name] = w.value(d, s.Properties[name], name, plain, hostile)
		}
	}
	if hostile && d.rarely() {
		out[pick(d, hostileTexts)] = d.hostile(0)
	}
	return out
}

// generate makes a request for an operation: plain by its schema, or with
// anything wrong about it.
func (w *world) generate(d *dice, op *operationSpec, hostile bool) request {
	r := request{op: op, method: op.method, contentType: "application/json"}
	plain := w.plainValues(op)
	job := fmt.Sprint(pick(d, plain["job"]))
	if hostile && d.rarely() {
		job = pick(d, append(hostileNames, hostileTexts...))
	}
	plain["name"] = []any{job} // of a job; a savepoint's may be anything
	if op.OperationID != "apply-job" {
		plain["name"] = []any{fmt.Sprintf("save-%d", w.count.Add(1))}
	}
	path, query := op.path, url.Values{}
	for _, p := range op.Parameters {
		text := job
		if p.Name != "job" || p.In == "query" {
			text = fmt.Sprint(w.value(d, p.Schema, p.Name, plain, hostile))
		}
		switch {
		case p.In == "path":
			path = strings.Replace(path, "{"+p.Name+"}", w.segment(d, text, hostile), 1)
		case p.Required || p.Name == "wait" || p.Name == "watch" || p.Name == "key" || d.rarely():
			query.Add(p.Name, text)
		}
	}
	if hostile && d.rarely() {
		query.Add(pick(d, hostileTexts), d.rest(30))
	}
	r.target = path
	if len(query) > 0 {
		r.target += "?" + query.Encode()
	}
	if op.RequestBody != nil {
		w.fill(d, &r, plain, hostile)
	}
	if hostile {
		w.spoil(d, &r)
	}
	return r
}

// segment escapes a name, or leaves what a path may hold as it is.
func (w *world) segment(d *dice, name string, hostile bool) string {
	if hostile && d.rarely() && !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`?#%"<>\^{}|`+"`", c) }) {
		return name
	}
	return Segment(name)
}

// fill gives a request its body.
func (w *world) fill(d *dice, r *request, plain map[string][]any, hostile bool) {
	types := slices.Sorted(maps.Keys(r.op.RequestBody.Content))
	r.contentType = types[0]
	if r.contentType == archiveType {
		r.body = string(w.archive)
		if hostile && len(r.body) > 0 {
			at := d.n(len(r.body))
			r.body = r.body[:at] + d.rest(20) + r.body[min(len(r.body), at+d.n(30)):]
		}
		return
	}
	v := w.value(d, r.op.RequestBody.Content[types[0]].Schema, "", plain, hostile)
	b, err := json.Marshal(v)
	if err != nil { // a number that is none
		b = []byte("{\"parallelism\": 1e}")
	}
	r.body = string(b)
}

// spoil breaks what is outside of the schema's reach.
func (w *world) spoil(d *dice, r *request) {
	switch d.n(12) {
	case 1:
		r.contentType = pick(d, []string{"", "text/plain", "application/xml", "application/json; charset=latin1", "multipart/form-data", "application/cbor"})
	case 2:
		r.body = ""
	case 3:
		r.body = d.rest(100)
	case 4:
		r.body = strings.Repeat(pick(d, []string{`[`, `{"a":`, `"`}), pick(d, []int{20_000, 300}))
	case 5: // the same key twice
		r.body = strings.Replace(r.body, "{", `{"note":"one","note":2,"name":"b",`, 1)
	case 6:
		r.method = pick(d, []string{"PATCH", "PUT", "DELETE", "GET", "POST", "HEAD", "OPTIONS", "TRACE", "BREW"})
	case 7:
		r.body = r.body[:d.n(len(r.body)+1)]
	case 8:
		r.body = strings.ReplaceAll(r.body, `":`, `": `+strings.Repeat(" ", pick(d, []int{1, 1000, maxBody})))
	case 9:
		r.target = pick(d, []string{"//", "/v1//jobs", "/v1/../v1/jobs", "/v1/jobs/./flights", "/v1", "/v1/", "/healthz/..", "/v1/jobs/flights/", "/V1/JOBS"}) + pick(d, []string{"", "?", "?x=1"})
	}
}
