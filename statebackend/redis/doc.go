// Package redis is the state store on one Redis server, byte-compatible with
// the layout of redis-streaming: the commands that the typed handles need, the
// coordinator's cuts and records, and restores.
//
// go-redis carries the small commands. Cuts and staging, which move whole
// states, use a raw connection of package resp with deep pipelines, because a
// reply may be larger than memory allows.
package redis
