package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

var (
	_ encoding.TextMarshaler   = Rate(0)
	_ encoding.TextUnmarshaler = (*Rate)(nil)
	_ json.Marshaler           = Rate(0)
	_ json.Unmarshaler         = (*Rate)(nil)
)

// Rate is a number of bytes per second that YAML and JSON write as "50MB". The
// units are B, kB, MB, GB (powers of 1000) and KiB, MiB, GiB (powers of 1024),
// in any case; a number without a unit is bytes. 0 is no bound.
type Rate int64

// rateUnits are the units, the largest first: String takes the first that
// divides the rate.
var rateUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}, {"B", 1},
}

// String is the shortest exact form: "50MB", "1MiB", "1001B", "0".
func (r Rate) String() string {
	for _, u := range rateUnits {
		if n := int64(r); n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return "0"
}

// MarshalText writes the string form.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MarshalJSON writes the string form.
func (r Rate) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// UnmarshalJSON reads the string form.
func (r *Rate) UnmarshalJSON(b []byte) error {
	if string(b) == "null" { // as everywhere in JSON: nothing is said
		return nil
	}
	var s string
	if string(b) == "0" { // as in YAML
		*r = 0
		return nil
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return inJSON[Rate](fmt.Errorf("rate %s: want a string such as \"50MB\"", b))
	}
	return inJSON[Rate](r.UnmarshalText([]byte(s)))
}

// UnmarshalText reads "50MB"; the empty text is 0.
func (r *Rate) UnmarshalText(b []byte) error {
	n, err := parseBytes(b, "rate", "bytes per second", "50MB")
	if err == nil {
		*r = Rate(n)
	}
	return err
}

// parseBytes reads a number of bytes with or without a unit; what, of and
// example are for the error.
func parseBytes(b []byte, what, of, example string) (int64, error) {
	if len(b) == 0 {
		return 0, nil
	}
	digits, unit := string(b), int64(1)
	for _, u := range rateUnits {
		if n := len(b) - len(u.name); n > 0 && strings.EqualFold(string(b[n:]), u.name) {
			digits, unit = strings.TrimRight(string(b[:n]), " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit || n < math.MinInt64/unit {
		return 0, fmt.Errorf("%s %q: want a whole number of %s with a unit, such as %s (kB, MB, GB, KiB, MiB, GiB)", what, b, of, example)
	}
	return n * unit, nil
}
