package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"keyframe/snapshot"
)

// show writes one JSON document, or what plain writes.
func (a *app) show(v any, plain func(w io.Writer)) error {
	if !a.json {
		plain(a.out)
		return nil
	}
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// numbers are the columns that stand to the right.
var numbers = map[string]bool{
	"AGE": true, "TOOK": true, "STALL": true, "KEYS": true, "ELEMENTS": true, "SIZE": true, "STORED": true, "P": true, "FAILURES": true,
	"REMOVE": true, "EXPIRED": true, "HASH": true, "GROUP": true, "SUBTASK": true, "PARTITION": true, "PENDING": true, "STATE KEYS": true,
}

// newTable is a plain table on w; call Render.
func newTable(w io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options.DrawBorder = false
	t.Style().Options.SeparateColumns = false
	t.Style().Format.Header, t.Style().Format.Footer = text.FormatDefault, text.FormatDefault
	t.AppendHeader(table.Row(header))
	var columns []table.ColumnConfig
	for i, h := range header {
		if name, ok := h.(string); ok && numbers[name] {
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight, AlignFooter: text.AlignRight})
		}
	}
	t.SetColumnConfigs(columns)
	return t
}

// size is a number of bytes for people.
func size(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	f, unit := float64(n), 0
	for f >= 1024 && unit < 5 {
		f /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", f, " KMGTP"[unit])
}

// count is a number with separators.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// millis is a duration in ms for people.
func millis(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// since is an age for people, to the second.
func since(t, now time.Time) string { return now.Sub(t).Round(time.Second).String() }

// nameOf is what people call a checkpoint.
func nameOf(c snapshot.Checkpoint) string {
	s := c.ID.String()
	if c.Name != "" {
		s += " " + quoted(c.Name)
	}
	return s
}

// marks are the remarks of a checkpoint in a listing.
func marks(c snapshot.Checkpoint) string {
	var m []string
	if c.Pinned {
		m = append(m, "pinned")
	}
	if s := c.Shrunk; s != nil {
		m = append(m, shrunkMark(*s))
	}
	if c.Bad != "" {
		m = append(m, "BAD: "+quoted(c.Bad))
	}
	if c.Failure != nil {
		m = append(m, string(c.Failure.Reason)+": "+quoted(c.Failure.Message))
	}
	if c.Note != "" {
		m = append(m, quoted(c.Note))
	}
	return strings.Join(m, "; ")
}

// longestName is how many bytes of a name a table shows.
const longestName = 120

// quoted is a name as a person can read it: as it is, or quoted when it has
// anything that would garble the terminal.
func quoted(s string) string {
	if len(s) > longestName {
		cut := longestName
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		return fmt.Sprintf("%s… (%d bytes)", quoted(s[:cut]), len(s))
	}
	return sentence(s)
}

// sentence is quoted for a text that must be read to its end, since the remedy
// stands there.
func sentence(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return strconv.Quote(s)
		}
	}
	if strings.TrimSpace(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// number is a count with its noun, in the plural where that is due.
func number(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%s %s", count(uint64(n)), noun)
}
