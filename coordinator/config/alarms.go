package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/goccy/go-yaml"
)

// Alarms says who is told when something goes wrong, and who is told again and
// again that nothing has.
type Alarms struct {
	Hooks     []Hook    `yaml:"hooks"`
	Heartbeat Heartbeat `yaml:"heartbeat"`
}

// AlarmGroup is a kind of news that hooks can ask for, from a closed list.
type AlarmGroup string

// The groups. Which event belongs to which is alarm.Group's to say.
const (
	AlarmFailure   AlarmGroup = "failure"    // a checkpoint, restore, merge, upkeep, … failed
	AlarmRecovery  AlarmGroup = "recovery"   // lost state was recovered, or that failed
	AlarmStateLoss AlarmGroup = "state-loss" // the state is lost
	AlarmDrill     AlarmGroup = "drill"      // a restore on trial failed
	AlarmOverdue   AlarmGroup = "overdue"    // no good checkpoint for too long, and the end of that
	AlarmHealth    AlarmGroup = "health"     // each change of a job's health
	AlarmAll       AlarmGroup = "all"        // everything that happens
)

// AlarmGroups are all groups; the first five are what a hook gets that names
// none.
var AlarmGroups = []AlarmGroup{AlarmFailure, AlarmRecovery, AlarmStateLoss, AlarmDrill, AlarmOverdue, AlarmHealth, AlarmAll}

// Hook is one receiver of news: a URL, to which JSON is sent by POST, or a
// command, which gets the JSON on stdin.
type Hook struct {
	Name    string       `yaml:"name"` // in the log and in metrics; hook1, hook2, … by default
	URL     string       `yaml:"url"`
	URLFile string       `yaml:"urlFile"` // many services put a secret into the URL
	URLEnv  string       `yaml:"urlEnv"`
	Headers []Header     `yaml:"headers"`
	Command []string     `yaml:"command"` // program and arguments; no shell
	PassEnv []string     `yaml:"passEnv"` // variables that the command gets beside PATH and the like
	Events  []AlarmGroup `yaml:"events"`
	Jobs    []string     `yaml:"jobs"`    // all when left out
	Timeout Duration     `yaml:"timeout"` // of one try
	Tries   int          `yaml:"tries"`   // at most
	MaxAge  Duration     `yaml:"maxAge"`  // so long after it happened it isn't tried again
}

// Header is one header of a request. A secret stands in a file or in an
// environment variable.
type Header struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
	File  string `yaml:"file"`
	Env   string `yaml:"env"`
}

// Heartbeat is a URL that is asked every so often while all jobs are well, for
// a service that raises the alarm when that ends.
type Heartbeat struct {
	URL        string   `yaml:"url"`
	URLFile    string   `yaml:"urlFile"`
	URLEnv     string   `yaml:"urlEnv"`
	Method     string   `yaml:"method"` // GET or POST
	Headers    []Header `yaml:"headers"`
	Every      Duration `yaml:"every"`
	Timeout    Duration `yaml:"timeout"`
	FailSuffix string   `yaml:"failSuffix"` // the URL with it behind is asked while something is wrong; silence when left out
	Jobs       []string `yaml:"jobs"`       // all when left out
}

// Bounds and defaults of alarms.
const (
	minHeartbeat = time.Second
	maxHookTries = 1000
	usualGroups  = 5 // of AlarmGroups, that a hook gets which names none
)

// On reports whether there is a heartbeat.
func (h Heartbeat) On() bool { return h.URL != "" || h.URLFile != "" || h.URLEnv != "" }

// WithDefaults fills the fields that are zero; i is the hook's place in the
// list.
func (h Hook) WithDefaults(i int) Hook {
	h.Name = cmp.Or(h.Name, "hook"+strconv.Itoa(i+1))
	if len(h.Events) == 0 {
		h.Events = AlarmGroups[:usualGroups:usualGroups]
	}
	h.Timeout = cmp.Or(h.Timeout, Duration(10*time.Second))
	h.Tries = cmp.Or(h.Tries, 20)
	h.MaxAge = cmp.Or(h.MaxAge, Duration(time.Hour))
	return h
}

// WithDefaults fills the fields that are zero.
func (h Heartbeat) WithDefaults() Heartbeat {
	h.Method = cmp.Or(h.Method, http.MethodGet)
	h.Every = cmp.Or(h.Every, Duration(time.Minute))
	h.Timeout = cmp.Or(h.Timeout, Duration(10*time.Second))
	return h
}

// Address reads the URL, anew with each call. Errors don't show it.
func (h Hook) Address() (*url.URL, error) {
	return address("alarms.hooks.url", h.URL, h.URLFile, h.URLEnv)
}

// Address reads the URL, anew with each call. Errors don't show it.
func (h Heartbeat) Address() (*url.URL, error) {
	return address("alarms.heartbeat.url", h.URL, h.URLFile, h.URLEnv)
}

// Read gives the header's value, anew with each call. Errors don't show it.
func (h Header) Read() (string, error) {
	if h.Value != "" {
		return h.Value, nil
	}
	v, err := h.secret().value()
	if err == nil && !isHeaderValue(v) {
		err = fmt.Errorf("%s: it has characters that no HTTP header carries", h.secret().source())
	}
	return v, err
}

func (h Header) secret() secret { return secret{"headers." + h.Name + ".", h.File, h.Env} }

func address(field, plain, file, env string) (*url.URL, error) {
	if plain == "" {
		v, err := secret{field, file, env}.value()
		if err != nil {
			return nil, err
		}
		plain = v
	}
	return webURL(plain)
}

// webURL parses the URL of a receiver. Its errors show nothing of it.
func webURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, errors.New("it is no URL: write http://host:port/path or https://…")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("its scheme is not known: write http:// or https://")
	case u.Port() != "" && !isPort(u.Port()):
		return nil, errors.New("its port is not within 1 to 65535")
	}
	return u, nil
}

// SafeWebURL is scheme and host of a URL: its user, path and options may be a
// secret.
func SafeWebURL(text string) string {
	u, err := webURL(text)
	if err != nil {
		return "(no URL)"
	}
	return u.Scheme + "://" + u.Host
}

var (
	_ fmt.Formatter           = Hook{}
	_ json.Marshaler          = Hook{}
	_ yaml.InterfaceMarshaler = Hook{}
	_ fmt.Formatter           = Heartbeat{}
	_ json.Marshaler          = Heartbeat{}
	_ yaml.InterfaceMarshaler = Heartbeat{}
	_ fmt.Formatter           = Header{}
	_ json.Marshaler          = Header{}
	_ yaml.InterfaceMarshaler = Header{}
)

// The types without their methods.
type (
	plainHook      Hook
	plainHeartbeat Heartbeat
	plainHeader    Header
)

func (h Hook) safe() plainHook {
	if h.URL != "" {
		h.URL = SafeWebURL(h.URL)
	}
	return plainHook(h)
}

func (h Heartbeat) safe() plainHeartbeat {
	if h.URL != "" {
		h.URL = SafeWebURL(h.URL)
	}
	return plainHeartbeat(h)
}

func (h Header) safe() plainHeader {
	if h.Value != "" {
		h.Value = "(not shown)"
	}
	return plainHeader(h)
}

// Format leaves out what may be secret, whatever the verb.
func (h Hook) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), h.safe()) }

// Format leaves out what may be secret, whatever the verb.
func (h Heartbeat) Format(f fmt.State, verb rune) {
	fmt.Fprintf(f, fmt.FormatString(f, verb), h.safe())
}

// Format leaves out what may be secret, whatever the verb.
func (h Header) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), h.safe()) }

// MarshalYAML leaves out what may be secret.
func (h Hook) MarshalYAML() (any, error) { return h.safe(), nil }

// MarshalYAML leaves out what may be secret.
func (h Heartbeat) MarshalYAML() (any, error) { return h.safe(), nil }

// MarshalYAML leaves out what may be secret.
func (h Header) MarshalYAML() (any, error) { return h.safe(), nil }

// MarshalJSON leaves out what may be secret.
func (h Hook) MarshalJSON() ([]byte, error) { return json.Marshal(h.safe()) }

// MarshalJSON leaves out what may be secret.
func (h Heartbeat) MarshalJSON() ([]byte, error) { return json.Marshal(h.safe()) }

// MarshalJSON leaves out what may be secret.
func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal(h.safe()) }
