package track

import (
	"fmt"
	"strconv"
	"strings"
)

// commandCalls are the server's counts of calls, command by command, from INFO
// commandstats. SWAPDB exchanges two databases without an invalidation, so its
// count is what tells of it; the other counts tell whether that can be
// believed, since CONFIG RESETSTAT sets all of them to zero.
type commandCalls struct {
	calls map[string]uint64
	// reset is the line of CONFIG RESETSTAT, whose duration is part of it: a
	// second reset gives another line though both count one call. "" for
	// none; servers before 7.0 don't have it.
	reset string
}

const resetCommand = "config|resetstat"

// parseCalls reads the text of INFO commandstats. A text without the commands
// that this connection has sent is an error: it would never show a SWAPDB.
func parseCalls(text string) (commandCalls, error) {
	c := commandCalls{calls: make(map[string]uint64, 64)}
	for line := range strings.SplitSeq(text, "\n") {
		name, ok := strings.CutPrefix(line, "cmdstat_")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(strings.TrimRight(name, "\r"), ":")
		number, ok := strings.CutPrefix(rest, "calls=")
		if !ok {
			return c, fmt.Errorf("INFO commandstats has the line %.80q, without calls", line)
		}
		number, _, _ = strings.Cut(number, ",")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return c, fmt.Errorf("INFO commandstats has the line %.80q: %w", line, err)
		}
		c.calls[name] = n
		if name == resetCommand {
			c.reset = rest
		}
	}
	if c.calls["ping"] == 0 {
		return c, fmt.Errorf("INFO commandstats does not count PING: it has %d commands", len(c.calls))
	}
	return c, nil
}

// since says why keys may have changed unannounced between before and now, ""
// when they can't have.
func (now commandCalls) since(before commandCalls) string {
	if was, is := before.calls["swapdb"], now.calls["swapdb"]; is != was {
		return fmt.Sprintf("SWAPDB was called: the server counts %d calls, %d before", is, was)
	}
	if now.reset != before.reset {
		return "CONFIG RESETSTAT was called: whether SWAPDB was called before it cannot be told"
	}
	for name, was := range before.calls {
		if is := now.calls[name]; is < was {
			return fmt.Sprintf("the server's statistics began anew (%d calls of %s, %d before): whether SWAPDB was called cannot be told",
				is, strings.ToUpper(name), was)
		}
	}
	return ""
}

// infoField is the value of one line of INFO, "" when it isn't there.
func infoField(text, name string) string {
	for line := range strings.SplitSeq(text, "\n") {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\r"), ":"); ok && key == name {
			return value
		}
	}
	return ""
}
