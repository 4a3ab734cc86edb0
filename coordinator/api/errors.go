package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
)

// The library asks this variable for every error that it makes itself.
func init() { huma.NewError = layerError }

// Problem is the body of every error answer.
type Problem struct {
	Fault  fault.Error `json:"error"`
	status int
}

var _ huma.StatusError = (*Problem)(nil)

// Error implements error.
func (p *Problem) Error() string { return p.Fault.Message }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.status }

// ContentType implements huma.ContentTypeFilter: it is plain JSON.
func (p *Problem) ContentType(string) string { return "application/json" }

// Status is the HTTP status of each code: the one switch of the API.
func Status(c fault.Code) int {
	switch c {
	case fault.Usage, fault.Config:
		return http.StatusBadRequest
	case fault.Denied:
		return http.StatusUnauthorized
	case fault.NoJob, fault.NoCheckpoint, fault.NoKey, fault.NoOperation:
		return http.StatusNotFound
	case fault.Busy, fault.Refused, fault.NoState, fault.StateLost:
		return http.StatusConflict
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.Problems, fault.Corrupt, fault.Failed:
		return http.StatusUnprocessableEntity
	case fault.Permission, fault.Unreachable, fault.NoDaemon:
		return http.StatusBadGateway
	case fault.Store:
		return http.StatusServiceUnavailable
	case fault.Internal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// codeOf is the code for answers that the HTTP layer itself gives.
func codeOf(status int) fault.Code {
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return fault.TooLarge
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault.Denied
	case status >= 500:
		return fault.Internal
	}
	return fault.Usage
}

// problem turns an error into an answer.
func problem(err error) error {
	if err == nil {
		return nil
	}
	f := coordinator.Explain(err)
	return &Problem{Fault: *f, status: Status(f.Code)}
}

// layerError is what the library makes of a request that it refuses by itself
// (a body that isn't JSON, an unknown field, a value out of range).
func layerError(status int, msg string, errs ...error) huma.StatusError {
	var p *Problem
	for _, err := range errs {
		if errors.As(err, &p) {
			return p
		}
	}
	parts := []string{msg}
	for _, err := range errs {
		if err != nil {
			parts = append(parts, fieldFirst(err.Error()))
		}
	}
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	return &Problem{Fault: fault.Error{Code: codeOf(status), Message: strings.Join(parts, "; "), Hint: describeHint}, status: status}
}

// wrongValue is what the decoder says of a value that a field can't hold.
var wrongValue = regexp.MustCompile(`json: cannot unmarshal (.*) into Go struct field [^. ]*\.(\S+) of type \S+`)

// fieldFirst names the field and the value, and leaves out the names of types,
// which mean nothing to who has sent them.
func fieldFirst(text string) string { return wrongValue.ReplaceAllString(text, "$2: $1") }

const describeHint = "GET /openapi.json describes every request"

// writeProblem answers outside of the library's handlers.
func writeProblem(w http.ResponseWriter, status int, f *fault.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may be gone; there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(Problem{Fault: *f})
}
