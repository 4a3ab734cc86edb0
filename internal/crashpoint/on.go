//go:build crashpoints

package crashpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// What Env asks for.
var (
	name   Name
	pass   int64 = 1
	eio    bool
	passed atomic.Int64
)

func init() {
	text, fails := strings.CutSuffix(os.Getenv(Env), "!eio")
	if text == "" {
		return
	}
	point, n, counted := strings.Cut(text, ":")
	name, eio = Name(point), fails
	var err error
	if counted {
		pass, err = strconv.ParseInt(n, 10, 64)
	}
	known := slices.ContainsFunc(Points, func(p Point) bool { return p.Name == name })
	if err != nil || pass < 1 || !known {
		fmt.Fprintf(os.Stderr, "%s=%q: give a name of crashpoint.Points, or name:n\n", Env, os.Getenv(Env))
		os.Exit(2)
	}
}

// At ends the process with SIGKILL when it is where Env says, after it has said
// so on stderr. Nothing is flushed and nothing deferred runs.
func At(here Name) {
	if here != name || passed.Add(1) != pass {
		return
	}
	fmt.Fprintf(os.Stderr, "crashpoint %s reached\n", here)
	if eio {
		failSyncs()
		return
	}
	// It can't fail: a process may kill itself.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
