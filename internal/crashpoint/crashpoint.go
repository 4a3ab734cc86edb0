// Package crashpoint names the moments at which a crash must lose nothing: the
// ones before and after each durable step. A program that is built with the tag
// crashpoints kills itself at the one that KEYFRAME_CRASH_AT names; in every
// other build [At] is an empty function that is compiled to nothing.
//
// KEYFRAME_CRASH_AT is a name of [Points], or name:n for the nth time that the
// process comes there. With "!eio" at its end the process lives on, and from
// there on each fdatasync, by which a store commits, fails with EIO (Linux).
package crashpoint

// Name is a point's name, from the closed list of [Points].
type Name string

// Point is a moment, what goes on there, and what is on disk and in Redis then.
type Point struct {
	Name Name
	Left string
}

// Env is the variable that says where to stop.
const Env = "KEYFRAME_CRASH_AT"
