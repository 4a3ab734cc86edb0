package witness

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// longText is the most bytes that an element's text shows whole: above it
// stand the length and a SHA-256.
const longText = 64 << 10

// StringText is the text of a string, a list's item, a set's member, a DUMP
// payload: quoted as Go does, so that each byte counts and all of it can be
// read. Above 64 KiB it is the length and the SHA-256, without quotes.
func StringText(b string) string {
	if len(b) > longText {
		return fmt.Sprintf("%d bytes, SHA-256 %x", len(b), sha256.Sum256([]byte(b)))
	}
	return strconv.Quote(b)
}

// HashText is the text of a hash's field and its value.
func HashText(field, value string) string { return StringText(field) + "=" + StringText(value) }

// ScoreText is the text of a zset's member and its score: the shortest decimal
// that is this very number; -0 is not 0.
func ScoreText(score float64, member string) string {
	return strconv.FormatFloat(score, 'g', -1, 64) + " " + StringText(member)
}

// ParseText gives the bytes back of which StringText made a text.
func ParseText(text string) (string, error) {
	s, err := strconv.Unquote(text)
	if err != nil {
		return "", fmt.Errorf("text %.100q: it shows no bytes (over %d of them only their number is kept): %w", text, longText, err)
	}
	return s, nil
}

// ParseHashText gives field and value back of which HashText made a text.
func ParseHashText(text string) (field, value string, err error) {
	head, err := strconv.QuotedPrefix(text)
	if err != nil {
		return "", "", fmt.Errorf("text %.100q: it shows no field: %w", text, err)
	}
	rest, ok := strings.CutPrefix(text[len(head):], "=")
	if !ok {
		return "", "", fmt.Errorf("text %.100q: no value after the field", text)
	}
	field, err1 := ParseText(head)
	value, err2 := ParseText(rest)
	return field, value, errors.Join(err1, err2)
}

// Text is the whole entry in lines: type, expiry, then an element in each.
func (e Entry) Text() string {
	return fmt.Sprintf("%s %d\n%s", e.Type, e.ExpireAt, strings.Join(e.Elements, "\n"))
}

// ParseEntry reads what Text wrote. No element has a newline in its text.
func ParseEntry(text string) (Entry, error) {
	head, rest, ok := strings.Cut(text, "\n")
	kind, number, ok2 := strings.Cut(head, " ")
	expire, err := strconv.ParseInt(number, 10, 64)
	if !ok || !ok2 || err != nil {
		return Entry{}, fmt.Errorf("text %.100q: it is no entry's", text)
	}
	e := Entry{Type: kind, ExpireAt: expire}
	if rest != "" {
		e.Elements = strings.Split(rest, "\n")
	}
	return e, nil
}

// Fields are the fields of a hash, bytes as they were.
func (e Entry) Fields() (map[string]string, error) {
	out := make(map[string]string, len(e.Elements))
	if e.Type != "hash" {
		return nil, fmt.Errorf("a %s has no fields", e.Type)
	}
	for _, text := range e.Elements {
		field, value, err := ParseHashText(text)
		if err != nil {
			return nil, err
		}
		out[field] = value
	}
	return out, nil
}

func (e Entry) equal(o Entry) bool {
	return e.Type == o.Type && e.ExpireAt == o.ExpireAt && slices.Equal(e.Elements, o.Elements)
}
