// Package snapshot is the vocabulary and the format of checkpoints.
//
// A checkpoint is a stream of records (one key after the other, each with its
// elements), cut into compressed, checksummed chunks, and described by a
// manifest that names the chunks in order. Layers of chunks that say what
// changed may stand over the first. FORMAT.md has the byte tables.
//
// Data flows one way: a cut pushes keys into an [Encoder] (a [Sink]), which
// writes chunks through a [ChunkWriter]; [Walk] reads a manifest's chunks from
// a [ChunkSource] and pushes the same keys, in the same order, into any Sink:
// with layers, the keys as they are with all of them. [Stack] puts what an
// Encoder wrote over a parent, [Merge] makes layers fewer.
// [Store] keeps manifests and chunks; its [Writer.Commit] is the one commit
// point of a checkpoint.
package snapshot
