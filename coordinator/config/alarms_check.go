package config

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// check knows nothing of the jobs: they may be applied later.
func (a Alarms) check(l *list) {
	names := map[string]int{}
	for i, h := range a.Hooks {
		at := fmt.Sprintf("alarms.hooks[%d]", i)
		h = h.WithDefaults(i)
		h.check(l, at)
		if first, ok := names[h.Name]; ok {
			l.add(at+".name", text(h.Name), "alarms.hooks[%d] has the same name: give each its own", first)
		} else {
			names[h.Name] = i
		}
	}
	a.Heartbeat.check(l, "alarms.heartbeat")
}

func (h Hook) check(l *list, at string) {
	if ways := set(h.URL, h.URLFile, h.URLEnv); len(h.Command) == 0 && ways == 0 {
		l.add(at, "", "say who is told: url, urlFile, urlEnv or command")
	} else if len(h.Command) > 0 && ways > 0 {
		l.add(at+".command", text(h.Command[0]), "there is a URL too: make two hooks of it")
	} else if len(h.Command) > 0 {
		h.checkCommand(l, at)
	} else {
		checkAddress(l, at, h.URL, h.URLFile, h.URLEnv)
		if len(h.PassEnv) > 0 {
			l.add(at+".passEnv", "", "it is for commands: remove it")
		}
	}
	for i, g := range h.Events {
		oneOf(l, fmt.Sprintf("%s.events[%d]", at, i), g, AlarmGroups...)
	}
	checkJobs(l, at, h.Jobs)
	checkHeaders(l, at, h.Headers)
	atLeast(l, at+".timeout", h.Timeout, time.Millisecond, "a duration such as 10s")
	atLeast(l, at+".maxAge", h.MaxAge, time.Second, "a duration such as 1h")
	if h.Tries < 1 || h.Tries > maxHookTries {
		l.add(at+".tries", strconv.Itoa(h.Tries), "give 1 to %d", maxHookTries)
	}
}

func (h Hook) checkCommand(l *list, at string) {
	if strings.TrimSpace(h.Command[0]) == "" {
		l.add(at+".command[0]", text(h.Command[0]), "give the path of a program")
	}
	for i, word := range h.Command {
		if strings.ContainsRune(word, 0) {
			l.add(fmt.Sprintf("%s.command[%d]", at, i), text(word), "no program takes a NUL byte")
		}
	}
	if len(h.Headers) > 0 {
		l.add(at+".headers", "", "they are for URLs: remove them")
	}
	for i, name := range h.PassEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			l.add(fmt.Sprintf("%s.passEnv[%d]", at, i), text(name), "give the name of an environment variable")
		}
	}
}

func (h Heartbeat) check(l *list, at string) {
	if !h.On() {
		if h.Method != "" || h.Every != 0 || h.Timeout != 0 || h.FailSuffix != "" || len(h.Headers)+len(h.Jobs) > 0 {
			l.add(at, "", "say what is asked: url, urlFile or urlEnv")
		}
		return
	}
	h = h.WithDefaults()
	checkAddress(l, at, h.URL, h.URLFile, h.URLEnv)
	oneOf(l, at+".method", h.Method, http.MethodGet, http.MethodPost)
	atLeast(l, at+".every", h.Every, minHeartbeat, "a duration such as 1m")
	atLeast(l, at+".timeout", h.Timeout, time.Millisecond, "a duration such as 10s")
	checkHeaders(l, at, h.Headers)
	checkJobs(l, at, h.Jobs)
	if strings.ContainsAny(h.FailSuffix, " ?#\x00") {
		l.add(at+".failSuffix", text(h.FailSuffix), "it goes behind the URL's path: write something like /fail")
	}
}

// set counts the texts that are not empty.
func set(texts ...string) (n int) {
	for _, t := range texts {
		if t != "" {
			n++
		}
	}
	return n
}

// checkAddress shows neither the URL nor a part of it.
func checkAddress(l *list, at, plain, file, env string) {
	if plain != "" {
		if file != "" || env != "" {
			l.add(at+".url", "", "urlFile or urlEnv is set too: keep one")
		}
		if _, err := webURL(plain); err != nil {
			l.add(at+".url", "", "%v", err)
		}
		return
	}
	before := len(l.all)
	checkSecret(l, at, "url", secret{at + ".url", file, env})
	if len(l.all) > before {
		return
	}
	if _, err := address(at+".url", plain, file, env); err != nil {
		field, value := at+".urlFile", file
		if file == "" {
			field, value = at+".urlEnv", env
		}
		l.add(field, text(value), "what it holds: %v", err)
	}
}

func checkHeaders(l *list, at string, headers []Header) {
	for i, h := range headers {
		field := fmt.Sprintf("%s.headers[%d]", at, i)
		if !isHeaderName(h.Name) {
			l.add(field+".name", text(h.Name), "it is no name of a header")
		} else if slices.Contains([]string{"Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Connection"}, http.CanonicalHeaderKey(h.Name)) {
			l.add(field+".name", text(h.Name), "it is set already: remove it")
		}
		switch n := set(h.Value, h.File, h.Env); {
		case n == 0:
			l.add(field, "", "say where its value is: value, file or env")
		case n > 1:
			l.add(field, "", "keep one of value, file and env")
		default:
			if v, err := h.Read(); err != nil {
				l.add(field, "", "%v", err)
			} else if !isHeaderValue(v) {
				l.add(field+".value", "", "it has characters that no HTTP header carries")
			}
		}
	}
}

func checkJobs(l *list, at string, jobs []string) {
	for i, j := range jobs {
		if j == "" {
			l.add(fmt.Sprintf("%s.jobs[%d]", at, i), text(j), "give a job's name, or leave the list out for all")
		}
	}
}

// secrets are where secrets of alarms stand.
func (a Alarms) secrets() []secret {
	var all []secret
	headers := func(list []Header) {
		for _, h := range list {
			all = append(all, h.secret())
		}
	}
	for i, h := range a.Hooks {
		all = append(all, secret{fmt.Sprintf("alarms.hooks[%d].url", i), h.URLFile, h.URLEnv})
		headers(h.Headers)
	}
	all = append(all, secret{"alarms.heartbeat.url", a.Heartbeat.URLFile, a.Heartbeat.URLEnv})
	headers(a.Heartbeat.Headers)
	return all
}

// isHeaderName reports whether a text is a token of RFC 9110.
func isHeaderName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// isHeaderValue reports whether a text has no control characters.
func isHeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
