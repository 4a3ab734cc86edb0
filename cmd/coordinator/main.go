// Command coordinator checkpoints, restores and rescales the state of
// streaming jobs. `run` is the daemon; every other command talks to its API.
package main

import (
	"os"

	"golang.org/x/term"

	"keyframe/snapshot/bolt"
)

func main() {
	bolt.MaybeProbe() // doesn't return in a child that probes a store file
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv,
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	os.Exit(a.run(os.Args))
}
