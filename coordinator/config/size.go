package config

import (
	"encoding"
	"encoding/json"
)

var (
	_ encoding.TextMarshaler   = Size(0)
	_ encoding.TextUnmarshaler = (*Size)(nil)
	_ json.Marshaler           = Size(0)
)

// Size is a number of bytes that YAML writes as "16GiB", with the units of Rate.
type Size int64

// DefaultMaxImport is api.maxImport when it is left out: above what a store of
// one file on one disk is meant for, and below what fills most disks.
const DefaultMaxImport Size = 16 << 30

// leastMaxImport is the least api.maxImport, 1 MiB: an archive of a job with
// hardly any state still has its manifest and its footer.
const leastMaxImport Size = 1 << 20

// String is the shortest exact form: "16GiB", "1001B", "0".
func (s Size) String() string { return Rate(s).String() }

// MarshalText writes the string form.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON writes the string form.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalText reads "16GiB"; the empty text is 0.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := parseBytes(b, "size", "bytes", "16GiB")
	if err == nil {
		*s = Size(n)
	}
	return err
}

func (a API) checkImport(l *list) {
	if a.MaxImport < leastMaxImport {
		l.add("api.maxImport", a.MaxImport.String(), "give at least %s: the largest archive that `checkpoint import` may send, such as %s", leastMaxImport, DefaultMaxImport)
	}
}
