package snapshot

import "context"

// Upkeep is what a store of one file offers besides [Store]: to give back room
// that deleted checkpoints left, and to be copied while it works. One call at a
// time: ErrUpkeep while another is under way. Checkpoints are taken, read and
// deleted meanwhile. progress (may be nil) is told the phase and how far it is;
// it must not block, nor call the store.
type Upkeep interface {
	// Compact rewrites the store's file without what is free, and puts the
	// new one in its place in one step. After an error, or a kill at any
	// moment, the old file or the new one stands whole.
	Compact(ctx context.Context, progress func(UpkeepProgress)) (CompactResult, error)
	// Backup writes a copy of the store as it is at one moment to a new file,
	// which appears whole or not at all. One that exists is refused
	// (fs.ErrExist).
	Backup(ctx context.Context, file string, progress func(UpkeepProgress)) (BackupResult, error)
}

// UpkeepProgress is how far a compaction or a backup is, in bytes of content.
type UpkeepProgress struct {
	Phase string // what is being done, a word or two
	Done  int64
	Total int64 // about
}

// CompactResult is what a compaction did. Sizes are in bytes.
type CompactResult struct {
	Path        string  `json:"path"`
	BeforeBytes int64   `json:"beforeBytes"` // size of the file before
	AfterBytes  int64   `json:"afterBytes"`  // and after
	Chunks      int     `json:"chunks"`
	HeldMs      float64 `json:"heldMs"` // how long writers of the store had to wait
	DurationMs  int64   `json:"durationMs"`
}

// BackupResult is what a backup wrote. Sizes are in bytes.
type BackupResult struct {
	File        string  `json:"file"`
	Bytes       int64   `json:"bytes"` // size of the file
	Jobs        int     `json:"jobs"`
	Checkpoints int     `json:"checkpoints"`
	Chunks      int     `json:"chunks"`
	HeldMs      float64 `json:"heldMs"` // how long writers of the store had to wait
	DurationMs  int64   `json:"durationMs"`
}
