// Package statebackend keeps the keyed and operator state of streaming jobs.
//
// A job links it for typed handles (value, map, list, set; list, union and
// broadcast operator state) over a [Store]; the coordinator uses the same
// stores through [Cutter], [Records] and [Restorer]. The stores are
// statebackend/redis, byte-compatible with the layout of redis-streaming, and
// statebackend/memory. The suite in statebackend/backendtest runs on both.
package statebackend
