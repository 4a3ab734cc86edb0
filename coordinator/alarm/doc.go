// Package alarm tells others what happens: hooks, which are a URL or a command
// each, get the events that they ask for, and a heartbeat is sent while every
// job is well, for a service that raises the alarm when it ends.
//
// Nothing here can hold up a coordinator: an event is put into a bounded queue
// for each hook, and what is delivered, tried again, given up or dropped is
// counted and told as an event of its own (hook_failed, hook_dropped,
// hook_recovered, heartbeat_…), which no hook gets.
package alarm
