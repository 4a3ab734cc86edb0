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
// it is removed in the background, in small transactions, when the attempt has
// failed or the last manifest has gone (see sweeper), and what a crash left
// when the file has been opened. Whether a chunk goes is decided within the
// transaction that removes it: by its count, and by the attempts and readers
// that need it.
//
// A rewrite ([DB.Rewrite]) is committed by one transaction too, which swaps the
// manifest, the row and the references. The old manifest's own chunks stay
// while anybody holds the checkpoint who held it before.
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
// not write; of an incremental checkpoint's, which are nearly all, the
// checksums of some megabytes in turn. What goes bad after its check is for a
// verification to find.
//
// # Upkeep
//
// The file grows by as much as is in use, at most by 16 MiB at a time, and never
// shrinks by itself: freed pages are used again. [DB.Compact]
// and [DB.Backup] make a copy while the store works (see copier): in short
// transactions, because a long one would block the writer when the map must
// grow, and would keep every page that is freed meanwhile from being used
// again. Writers are held off only for the end, in which what changed is copied
// again and both files are compared. A copy is opened and locked from its first
// byte on, so that a compaction's rename is the only thing that changes.
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
// says how to get at the file while the process lives. A compaction looks too
// before it replaces the file. Who waited for the lock of the old file opens
// the new one.
//
// The free list is written with each transaction (bbolt's default): without it
// bbolt would have to scan the file in a goroutine at every start and after
// every failed transaction. It costs 8 bytes per free page and transaction.
package bolt
