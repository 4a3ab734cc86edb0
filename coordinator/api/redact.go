package api

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// Bounds of what the audit log repeats of a request.
const (
	maxParam  = 400 // bytes of a text
	maxParams = 100 // entries of a list or object
	maxDepth  = 8
)

// hiddenWords are parts of field names whose values are not repeated.
var hiddenWords = []string{"password", "passwd", "secret", "token", "credential", "authorization", "command", "header", "apikey"}

const hidden = "(not shown)"

// redact is what the audit log repeats of a parameter: no value of a field
// whose name speaks of secrets, of a URL only scheme and host, of long texts
// and lists the beginning.
func redact(v any) any { return redactAt(v, 0) }

func redactAt(v any, depth int) any {
	if depth > maxDepth {
		return "…"
	}
	switch x := v.(type) {
	case string:
		return redactText(x)
	case []any:
		var out []any
		for i, e := range x {
			if i == maxParams {
				return append(out, fmt.Sprintf("… (%d in all)", len(x)))
			}
			out = append(out, redactAt(e, depth+1))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, e := range x {
			if len(out) == maxParams {
				out["…"] = fmt.Sprintf("%d in all", len(x))
				break
			}
			if secretName(name) {
				e = hidden
			}
			out[redactText(name).(string)] = redactAt(e, depth+1)
		}
		return out
	}
	return v
}

func secretName(name string) bool {
	name = strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
	for _, w := range hiddenWords {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

func redactText(s string) any {
	if scheme, _, ok := strings.Cut(s, "://"); ok {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" {
			return hidden
		}
		if u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return scheme + "://" + u.Host + "/" + hidden
		}
		return s
	}
	if len(s) > maxParam {
		n := maxParam
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		return fmt.Sprintf("%s… (%d bytes)", s[:n], len(s))
	}
	return s
}
