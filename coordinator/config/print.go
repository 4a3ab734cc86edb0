package config

import (
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
)

var (
	_ fmt.Formatter           = Redis{}
	_ json.Marshaler          = Redis{}
	_ yaml.InterfaceMarshaler = Redis{}
	_ fmt.Stringer            = File{}
	_ fmt.GoStringer          = File{}
)

// plainRedis is Redis without its methods.
type plainRedis Redis

func (r Redis) safe() plainRedis {
	r.URL = r.SafeURL()
	return plainRedis(r)
}

// Format prints with the password left out, whatever the verb.
func (r Redis) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), r.safe()) }

// MarshalYAML leaves the password out: what it writes is for people.
func (r Redis) MarshalYAML() (any, error) { return r.safe(), nil }

// MarshalJSON leaves the password out.
func (r Redis) MarshalJSON() ([]byte, error) { return json.Marshal(r.safe()) }

// String is the configuration as YAML, without passwords.
func (f File) String() string {
	b, err := yaml.Marshal(f)
	if err != nil {
		return "(configuration that can't be printed)"
	}
	return string(b)
}

// GoString is String: %#v shows no password either.
func (f File) GoString() string { return f.String() }
