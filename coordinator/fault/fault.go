// Package fault is the closed list of what can go wrong for a caller: each
// error that leaves the coordinator has one code, a message that names the
// thing and its value, and a hint that says what to do.
package fault

import (
	"errors"
	"fmt"
)

// Code is what code decides on; the API and the command line pass it on.
type Code string

// The closed list of codes. The exit code and the HTTP status of each are in
// one switch each (ExitCode in cmd/coordinator, Status in coordinator/api).
const (
	Usage        Code = "usage"         // wrong flags or arguments
	Config       Code = "config"        // the configuration is wrong
	NoJob        Code = "no_job"        // no such job
	NoCheckpoint Code = "no_checkpoint" // no such checkpoint
	NoKey        Code = "no_key"        // no such key
	NoOperation  Code = "no_operation"  // no such operation
	Busy         Code = "busy"          // another operation has the job
	Refused      Code = "refused"       // a guard said no; the hint names the way round, if any
	NoState      Code = "no_state"      // the job has no state yet, or it lies elsewhere
	StateLost    Code = "state_lost"    // the state store came back without the state
	Permission   Code = "permission"    // the state store denies a right
	Unreachable  Code = "unreachable"   // the state store can't be reached
	Corrupt      Code = "corrupt"       // a checkpoint or the store file is damaged
	Store        Code = "store"         // the checkpoint store refused
	Problems     Code = "problems"      // a check found problems
	Failed       Code = "failed"        // done nothing, for the reason given
	NoDaemon     Code = "no_daemon"     // nothing answers at that address
	Denied       Code = "denied"        // the API token is missing or wrong
	TooLarge     Code = "too_large"     // the request is over the limit
	Internal     Code = "internal"      // a bug
)

// Error is an error for people. Unwrap gives the cause.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Err     error  `json:"-"`
}

// Error is the message; the hint is shown beside it, not in it.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an Error without a cause.
func New(code Code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Wrap makes an Error whose message is "format: cause".
func Wrap(err error, code Code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...) + ": " + err.Error(), Hint: hint, Err: err}
}

// CodeOf is the code of the outermost Error in err's chain, Internal when
// there is none, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// As gives the outermost Error in err's chain, or an Internal one made of err.
func As(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Error() == err.Error() {
			return e
		}
		return &Error{Code: e.Code, Message: err.Error(), Hint: e.Hint, Err: err}
	}
	return &Error{Code: Internal, Message: err.Error(), Err: err}
}
