package main

import "runtime/debug"

// The collector's goals. Most of the memory are buffers without pointers, so
// to collect them often costs little; and what a burst of chunks makes while
// the collector is at work on a busy machine would double the peak.
const (
	gcPercent = 50
	// memoryGoal is no limit: a job with a million keys takes more, and then
	// gcPercent alone decides.
	memoryGoal = 80 << 20
)

// collectEarly sets the goals, unless the environment has its own.
func collectEarly(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
}
