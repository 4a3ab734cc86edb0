// Package audit is the record of who changed what: a file of JSON lines that
// only grows, each of which holds the SHA-256 of the one before, so that a line
// that was removed or changed is found by [Verify].
//
// One commit point: the fsync of a line. [Log.Append] returns after it, or says
// why not; a line that was not acknowledged is cut off before the next one is
// written, so the chain never holds what a caller was told to be missing.
//
// What the chain does not show by itself: lines cut off at the end, and a file
// that somebody wrote anew from its first line. Against the first the log
// remembers its newest line elsewhere ([Anchor]); against the second helps only
// a copy of a line's hash that the writer can't reach, such as in the
// coordinator's log.
package audit
