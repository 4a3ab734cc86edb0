// Package coordinator owns jobs: one actor for each, which takes checkpoints
// on the job's schedule and on demand, watches that the state is still there,
// recovers it when it is lost, and restores and rescales it on request.
//
// Everything that touches a job's state runs in the job's actor, one thing at
// a time (I7). Callers get an [Operation] to follow. What happens is told to a
// [Listener] as [Event] values; log lines and metrics are listeners.
package coordinator
