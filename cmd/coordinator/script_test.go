package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"keyframe/internal/redistest"
)

// TestScripts runs the stories of testdata/script: the built command as
// processes, a real private Redis.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			addr := freeAddr(t)
			e.Vars = append(e.Vars, recordEnv+"="+os.Getenv(recordEnv), "GORACE="+os.Getenv("GORACE"), "API="+addr, "COORDINATOR_ADDR="+addr,
				"REDIS_PASSWORD="+testPassword, "TZ=Asia/Kathmandu")
			e.Values[worldKey{}] = &scriptWorld{t: t, seen: map[string]string{}}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"redis": scriptRedis, "state": scriptState, "digest": scriptDigest, "same": scriptSame,
			"code": scriptCode, "await": scriptAwait, "json": scriptJSON, "jsonerr": scriptJSONError, "fields": scriptFields, "envsubst": scriptEnv,
			"zero": scriptZero, "truncate": scriptTruncate, "aside": scriptAside, "evict": scriptEvict,
		},
	})
}

type worldKey struct{}

// scriptWorld is what one script has started.
type scriptWorld struct {
	t    *testing.T
	r    *redistest.Server
	seen map[string]string // digests by the name that the script gave
}

func worldOf(ts *testscript.TestScript) *scriptWorld { return ts.Value(worldKey{}).(*scriptWorld) }

func (w *scriptWorld) url() string { return w.r.URL() }

// redis start|kill|restart|restart-empty, or redis COMMAND ARGS…
func scriptRedis(ts *testscript.TestScript, neg bool, args []string) {
	w := worldOf(ts)
	switch args[0] {
	case "start":
		w.r = startRedis(w.t)
		ts.Defer(w.r.Kill)
		ts.Setenv("REDIS", "redis://"+w.r.Addr+"/0")
	case "kill":
		w.r.Kill()
	case "restart-empty":
		w.r.RestartEmpty()
	default:
		all := make([]any, len(args))
		for i, a := range args {
			all[i] = a
		}
		fmt.Fprintln(ts.Stdout(), w.r.Do(all...))
	}
}

// envsubst FROM TO writes a file with $REDIS and $API filled in.
func scriptEnv(ts *testscript.TestScript, _ bool, args []string) {
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// state JOB FIELDS VALUE writes a job's state.
func scriptState(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(putState(context.Background(), worldOf(ts).url(), args[0], n, args[2]))
}

// digest NAME JOB remembers what a job's state is: digest, expiry of each key,
// and what the index and the registry hold.
func scriptDigest(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	root := "streaming:runtime:" + args[1]
	names := []string{root + ":stateKeys", root + ":stateSchema"}
	for _, m := range w.r.Do("SMEMBERS", root+":stateKeys").([]any) {
		names = append(names, m.(string))
	}
	slices.Sort(names)
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintln(&b, n, w.r.Do("DEBUG", "DIGEST-VALUE", n), w.r.Do("PEXPIRETIME", n))
	}
	w.seen[args[0]] = b.String()
}

// [!] same A B compares two digests.
func scriptSame(ts *testscript.TestScript, neg bool, args []string) {
	a, b := worldOf(ts).seen[args[0]], worldOf(ts).seen[args[1]]
	if a == "" || b == "" {
		ts.Fatalf("no such digest")
	}
	if (a == b) == neg {
		ts.Fatalf("%s\n%s", a, b)
	}
}

// code N COMMAND ARGS… runs a command that must exit with N.
func scriptCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d\n%s%s", args[1:], got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// await PATTERN COMMAND ARGS… runs a command until its output matches.
func scriptAwait(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	for end := time.Now().Add(20 * time.Second); ; {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%v: %v, no %s in\n%s%s", args[1:], err, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// document decodes the one JSON document that the last command wrote.
func document(ts *testscript.TestScript, from string) any {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(from)))
	var v any
	if err := dec.Decode(&v); err != nil {
		ts.Fatalf("%s is no JSON: %v\n%s", from, err, ts.ReadFile(from))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("%s has more than one document: %s", from, ts.ReadFile(from))
	}
	return v
}

// at follows a path such as items.0.id.
func at(ts *testscript.TestScript, v any, path string) any {
	if path == "." {
		return v
	}
	for step := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(x) {
				ts.Fatalf("no %s in %v", path, x)
			}
			v = x[i]
		default:
			ts.Fatalf("no %s in %v", path, v)
		}
	}
	return v
}

// json PATH VALUE… checks values in the last command's document; nothing may
// have gone to stderr.
func scriptJSON(ts *testscript.TestScript, _ bool, args []string) {
	if text := ts.ReadFile("stderr"); text != "" {
		ts.Fatalf("stderr: %s", text)
	}
	v := document(ts, "stdout")
	for i := 0; i+1 < len(args); i += 2 {
		if got := fmt.Sprint(at(ts, v, args[i])); got != args[i+1] {
			ts.Fatalf("%s is %s, want %s", args[i], got, args[i+1])
		}
	}
}

// fields PATH NAME… checks that an object has exactly these fields; those that
// end in ? may be absent. Times must be UTC, and no list null.
func scriptFields(ts *testscript.TestScript, _ bool, args []string) {
	object, ok := at(ts, document(ts, "stdout"), args[0]).(map[string]any)
	if !ok {
		ts.Fatalf("%s is no object", args[0])
	}
	for _, name := range args[1:] {
		name, optional := strings.CutSuffix(name, "?")
		v, there := object[name]
		if !there && !optional {
			ts.Fatalf("%s lacks %s", args[0], name)
		}
		if there && v == nil {
			ts.Fatalf("%s of %s is null", name, args[0])
		}
		if text, ok := v.(string); ok && (strings.HasSuffix(name, "At") || name == "since") {
			if _, err := time.Parse(time.RFC3339, text); err != nil || !strings.HasSuffix(text, "Z") {
				ts.Fatalf("%s of %s is no RFC 3339 time in UTC: %s", name, args[0], text)
			}
		}
		delete(object, name)
	}
	if len(object) > 0 {
		ts.Fatalf("%s has more fields: %v", args[0], object)
	}
}

// jsonerr CODE checks the error that the last command gave as JSON.
func scriptJSONError(ts *testscript.TestScript, _ bool, args []string) {
	if text := ts.ReadFile("stdout"); text != "" {
		ts.Fatalf("stdout: %s", text)
	}
	v := document(ts, "stderr")
	object := at(ts, v, "error").(map[string]any)
	for name := range object {
		if !slices.Contains([]string{"code", "message", "hint"}, name) {
			ts.Fatalf("error has field %s", name)
		}
	}
	if got := object["code"]; got != args[0] {
		ts.Fatalf("code %v, want %s: %v", got, args[0], object)
	}
}
