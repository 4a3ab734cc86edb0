package keygroups

import (
	"fmt"
	"slices"
	"strings"
)

// The known names, the default first.
var (
	hashes     = []string{string(HashJava), string(HashFlink)}
	rangeRules = []string{string(RangesLeading), string(RangesFlink)}
	keyTypes   = []string{string(KeyString), string(KeyInt), string(KeyLong)}
)

func (h Hash) known() bool    { return h == HashJava || h == HashFlink }
func (r Ranges) known() bool  { return r == RangesLeading || r == RangesFlink }
func (k KeyType) known() bool { return k == KeyString || k == KeyInt || k == KeyLong }

// String is the name as the configuration gives it.
func (h Hash) String() string { return string(h) }

// String is the name as the configuration gives it.
func (r Ranges) String() string { return string(r) }

// String is the name as the configuration gives it.
func (k KeyType) String() string { return string(k) }

// ParseHash reads java or flink; the empty string is the default, java.
func ParseHash(s string) (Hash, error) {
	name, err := parse("hash", s, hashes)
	return Hash(name), err
}

// ParseRanges reads leading or flink; the empty string is the default,
// leading.
func ParseRanges(s string) (Ranges, error) {
	name, err := parse("ranges", s, rangeRules)
	return Ranges(name), err
}

// ParseKeyType reads string, int or long; the empty string is the default,
// string.
func ParseKeyType(s string) (KeyType, error) {
	name, err := parse("keyType", s, keyTypes)
	return KeyType(name), err
}

func parse(what, s string, names []string) (string, error) {
	if s == "" {
		return names[0], nil
	}
	if !slices.Contains(names, s) {
		return "", unknown(what, s, names)
	}
	return s, nil
}

func unknown(what, s string, names []string) error {
	return fmt.Errorf("%w: %s %q: want one of %s", ErrRule, what, s, strings.Join(names, ", "))
}
