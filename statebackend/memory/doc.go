// Package memory is a state store inside the process: a small Redis-like
// keyspace with the layout of package statebackend. It serves jobs that keep
// their state on the heap and have the coordinator keep the checkpoints, and it
// serves tests and demonstrations, for which [Store.Lose] forgets everything as
// a crash would.
//
// Cuts are consistent snapshots by copy on write: writers wait only while the
// pointers of the job's keys are copied, whatever the size of the values.
package memory
