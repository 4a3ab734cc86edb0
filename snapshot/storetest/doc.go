// Package storetest is the suite that every snapshot.Store and
// snapshot.Journal must pass, with the helpers for tests that use one: each
// such test ends with [MustBeClean].
package storetest
