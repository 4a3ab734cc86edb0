// Command coordinator checkpoints, restores and rescales the state of
// streaming jobs. `run` is the daemon; every other command talks to its API.
package main

import (
	"context"
	"os"

	"golang.org/x/term"

	"keyframe/bench"
	"keyframe/snapshot/bolt"
)

func main() {
	bolt.MaybeProbe()  // doesn't return in a child that probes a store file
	bench.MaybeChild() // nor this in a child of a bench
	collectEarly(os.Getenv)
	os.Exit(newApp().run(context.Background(), os.Args))
}

// newApp is the command as a shell runs it.
func newApp() *app {
	return &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv,
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		stopTime:    stopTime,
		tokenEvery:  tokenEvery,
	}
}
