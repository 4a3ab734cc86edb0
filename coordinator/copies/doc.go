// Package copies keeps a second copy of every completed checkpoint, in one or
// more directories: another disk, a mounted bucket. Each copy is one file
// (snapshot/archive), whose name is its one commit point.
//
// A [Keeper] works in the background, one goroutine for each directory, and
// never holds a checkpoint up. It compares what the store has with what the
// directory has, and makes what is missing, newest first; so it does not matter
// what was missed while it, the disk or the network was away.
//
// A copy follows its checkpoint: one that the store's retention or a person
// deletes goes there too, as soon as the directory can be reached. It is
// deleted only by that: the deletion is noted in the journal before it happens.
// A copy whose checkpoint the store lost, or never had, is nobody's to delete.
// And the newest copy of a job stays while the store has a checkpoint of that
// job that is yet to be copied.
package copies
