package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Phase says what a line is about.
type Phase string

// The phases. A begin without an end of the same request is a change whose
// outcome the coordinator did not live to see.
const (
	PhaseBegin Phase = "begin" // what is about to be done: nothing has been
	PhaseEnd   Phase = "end"   // how it went
	PhaseNote  Phase = "note"  // what was refused, or what the coordinator did by itself
)

// Outcome is how it went.
type Outcome string

// The outcomes. Accepted is a change that goes on as an operation, whose own
// end is another line.
const (
	OutcomeDone     Outcome = "done"
	OutcomeAccepted Outcome = "accepted"
	OutcomeFailed   Outcome = "failed"
	OutcomeDenied   Outcome = "denied" // the role was not enough
)

// Entry is one line. Seq and Prev are set by [Log.Append]; no field may hold a
// secret.
type Entry struct {
	Seq       uint64         `json:"seq" doc:"Number of the line, from 1 on, without gaps"`
	Prev      string         `json:"prev" doc:"SHA-256 of the line before, in hex; zeros in the first"`
	At        time.Time      `json:"at"`
	Phase     Phase          `json:"phase" enum:"begin,end,note"`
	Request   string         `json:"request,omitempty" doc:"The same in the lines of one request"`
	Principal string         `json:"principal" doc:"Name of the token or certificate; loopback without tokens, coordinator for what it does by itself"`
	By        string         `json:"by" doc:"token, certificate, loopback or coordinator"`
	Role      string         `json:"role,omitempty"`
	Source    string         `json:"source,omitempty" doc:"Where the request came from"`
	Action    string         `json:"action" doc:"operationId of the API, or the kind of an event"`
	Job       string         `json:"job,omitempty"`
	Params    map[string]any `json:"parameters,omitempty"`
	Plan      map[string]any `json:"plan,omitempty" doc:"What was to be changed, or was"`
	Operation string         `json:"operation,omitempty"`
	Outcome   Outcome        `json:"outcome,omitempty" enum:"done,accepted,failed,denied"`
	Error     string         `json:"error,omitempty"`
}

// Bounds of a line in bytes.
const (
	// MaxLine is the longest line, with its end.
	MaxLine = 64 << 10
	// maxText is the longest of its texts; longer ones are cut.
	maxText = 2000
)

// genesis stands for the hash of the line before the first.
var genesis = strings.Repeat("0", 2*sha256.Size)

// hashOf is the hash of a line without its end.
func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// encode is the line without its end. JSON escapes every control character, so
// a line is one line whatever a name holds.
func encode(e Entry) ([]byte, error) {
	cutAll(&e, maxText)
	line, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("audit: encode %s: %w", e.Action, err)
	}
	if len(line) >= MaxLine {
		e.Params = map[string]any{"omitted": fmt.Sprintf("the line had %d bytes, sha256 %s", len(line), hashOf(line))}
		e.Plan = nil
		cutAll(&e, maxText/8) // JSON makes six bytes of a control character
		if line, err = json.Marshal(e); err != nil {
			return nil, fmt.Errorf("audit: encode %s: %w", e.Action, err)
		}
	}
	return line, nil
}

// cutAll shortens the texts of an entry.
func cutAll(e *Entry, most int) {
	for _, s := range []*string{&e.Principal, &e.Source, &e.Action, &e.Job, &e.Operation, &e.Error, &e.Request} {
		*s = cut(*s, most)
	}
}

// cut shortens a text to most bytes, between two characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	n := most
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:n], len(s))
}

// decode reads a line strictly: a field that is not known was not written here.
func decode(line []byte) (Entry, error) {
	dec := json.NewDecoder(strings.NewReader(string(line)))
	dec.DisallowUnknownFields()
	var e Entry
	if err := dec.Decode(&e); err != nil {
		return e, fmt.Errorf("it is no audit line: %w", err)
	}
	if dec.More() {
		return e, fmt.Errorf("something follows the entry %d", e.Seq)
	}
	if e.Seq == 0 || len(e.Prev) != 2*sha256.Size {
		return e, fmt.Errorf("seq %d or prev %q is none", e.Seq, cut(e.Prev, maxText))
	}
	return e, nil
}
