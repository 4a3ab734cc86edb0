// Package bolt keeps checkpoints in one bbolt file: [DB] implements
// [snapshot.Store] and [snapshot.Journal].
//
// # The file
//
// All numbers are big-endian. Top-level buckets:
//
//	bucket    key              value
//	keyframe  "magic"          "keyframe checkpoint store"
//	          "format"         u32: 1
//	jobs      job name         a bucket per job:
//	            "last"         u64: the greatest id the job ever had
//	            "rows"         bucket: id u64 → snapshot.EncodeCheckpoint
//	            "manifests"    bucket: id u64 → snapshot.EncodeManifest
//	chunks    seq u64          the chunk's envelope, byte for byte
//	index     chunk id (32 B)  seq u64, refs u32, stored u32
//	journal   bucket's name    a bucket: key → value
//
// A job's bucket stays when its history is emptied: "last" is why ids never
// go back. Chunks lie under a number that only grows (the sequence of bucket
// chunks), so that a checkpoint's chunks are neighbours and adding or removing
// them touches few pages; the random part, the index, is 48 bytes per chunk.
// refs is the number of manifests that name the chunk, stored the length of
// its envelope.
//
// # Commit point
//
// Chunks are written in transactions of some megabytes while the checkpoint is
// made; nothing names them yet. [Writer.Commit] then writes the manifest, the
// completed row and the references of all chunks in one transaction: the one
// commit point. A chunk with refs 0 that no running attempt needs is garbage:
// it is removed when the attempt fails or the last manifest goes, in small
// transactions, and what a crash left is removed when the file is opened.
//
// Damage can make a count wrong. Open raises those that are too low, before it
// sweeps, so that no sweep takes a chunk that a manifest names. When a
// checkpoint whose manifest can't be read is deleted, all are counted anew, as
// soon as every manifest left can be read; until then the chunks stay, and
// Check says how many.
//
// # Own output
//
// A checkpoint is committed over chunks that are known to be whole. What a
// batch stored is read back and compared, after its transaction and before the
// commit: it shows that the file gives, at the chunk's id, the bytes that were
// sealed (from the system's cache, so not what the disk itself keeps). A chunk
// that is there already is read and checked whole when it is to be used again,
// which costs a decompression and a SHA-256 over it, about 1 ms per MiB; a damaged
// one is stored again under its references, which mends all checkpoints that
// share it. Commit checks those that the manifest names and the attempt did
// not write. What goes bad after its check is for a verification to find.
//
// # Trust
//
// bbolt maps the file, and may panic in a goroutine of its own, or fault, when
// the file is damaged. Open therefore reads the file's pages by plain reads
// first (see [Probe]) and, in a program that calls [MaybeProbe], lets a child
// process open it with bbolt and walk it before the parent does.
//
// The path must lead to the open file whenever something is committed. Once it
// does not (removed, replaced, the folder moved), the store writes no more and
// says how to get at the file while the process lives.
//
// The free list is written with each transaction (bbolt's default): without it
// bbolt would have to scan the file in a goroutine at every start and after
// every failed transaction. It costs 8 bytes per free page and transaction.
package bolt
