package api

import (
	"context"
	"net/http"
)

// Backup is the body of POST /v1/store/backup.
type Backup struct {
	File string `json:"file" minLength:"1" doc:"absolute path on the coordinator's host; a file that exists is refused"`
}

type backupInput struct{ Body Backup }

func (r routes) store() {
	add(r, http.MethodGet, "/store", "store-stats", "What the checkpoint store holds", 200, func(ctx context.Context, _ *none) (StoreStats, error) {
		s, err := r.Coordinator.StoreStats(ctx)
		return StoreStats{StoreStats: s, Copies: r.Coordinator.Copies()}, err
	}, viewer)
	add(r, http.MethodPost, "/store/verify", "store-verify", "Walk the whole store and report every problem", 200, func(ctx context.Context, _ *none) (StoreCheck, error) {
		problems, took, err := r.Coordinator.CheckStore(ctx)
		return StoreCheck{OK: err == nil && len(problems) == 0, Problems: nonNil(problems), DurationMs: took.Milliseconds()}, err
	}, operator)
	add(r, http.MethodPost, "/store/compact", "store-compact", "Rewrite the store's file without what is free", 202, func(context.Context, *none) (Operation, error) {
		return started(r.Coordinator.CompactStore())
	}, admin)
	add(r, http.MethodPost, "/store/backup", "store-backup", "Copy the store to a new file on the coordinator's host", 202, func(_ context.Context, in *backupInput) (Operation, error) {
		return started(r.Coordinator.BackupStore(in.Body.File))
	}, admin)
}
