package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// Bucket is the journal's bucket of restores and rescales under way, one for
// each job at most; the key is the job's name.
const Bucket = "restores"

// The kinds of entries, as they also stand in the mark of the job's record.
const (
	KindRestore = "restore"
	KindRescale = "rescale"
)

// Entry is the written plan of a restore or a rescale under way: enough to
// find out after a crash how it ended, to clean up, and to tell what it did.
type Entry struct {
	ID         string      `json:"id"` // of the restore, in the mark and the staging keys too
	Job        string      `json:"job"`
	Prefix     string      `json:"prefix"`
	Kind       string      `json:"kind"`
	Checkpoint snapshot.ID `json:"checkpoint"`
	// From is the job whose history holds the checkpoint, "" for Job's own.
	From      string      `json:"from,omitempty"`
	Undo      snapshot.ID `json:"undo,omitempty"`
	StartedAt time.Time   `json:"startedAt"`
	Phase     string      `json:"phase"` // the last one that is known to have begun
	// What the flip does, known once everything is staged.
	Keys     uint64 `json:"keys"`
	Elements uint64 `json:"elements"`
	Expired  uint64 `json:"expired"`
	Removed  uint64 `json:"removed"`
	Epoch    uint64 `json:"epoch"`
	// Detail is the kind's own: the plan of a rescale.
	Detail json.RawMessage `json:"detail,omitempty"`
}

// validate is called at both ends: before an entry is written, and after one
// was read.
func (e Entry) validate() error {
	switch {
	case e.ID == "":
		return fmt.Errorf("entry has no id")
	case e.Job == "" || e.Prefix == "":
		return fmt.Errorf("entry %s names job %q with prefix %q: both must be there", e.ID, e.Job, e.Prefix)
	case e.Kind != KindRestore && e.Kind != KindRescale:
		return fmt.Errorf("entry %s has kind %q: want %s or %s", e.ID, e.Kind, KindRestore, KindRescale)
	case e.Checkpoint == 0:
		return fmt.Errorf("entry %s names no checkpoint", e.ID)
	}
	return nil
}

// PutEntry writes an entry durably, in place of an older one of the job.
func PutEntry(ctx context.Context, j snapshot.Journal, e Entry) error {
	if err := e.validate(); err != nil {
		return fault.Wrap(err, fault.Internal, "", "write down the %s of job %q", e.Kind, e.Job)
	}
	data, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "", "write down the %s of job %q", e.Kind, e.Job)
	}
	if err := j.Put(ctx, Bucket, e.Job, data); err != nil {
		return Fault(err, fault.Store, "write down the %s of job %q", e.Kind, e.Job)
	}
	return nil
}

// GetEntry reads the entry of a job; nil when there is none.
func GetEntry(ctx context.Context, j snapshot.Journal, job string) (*Entry, error) {
	data, ok, err := j.Get(ctx, Bucket, job)
	if err != nil {
		return nil, Fault(err, fault.Store, "read the journal of job %q", job)
	}
	if !ok {
		return nil, nil
	}
	var e Entry
	if err = json.Unmarshal(data, &e); err == nil {
		err = e.validate()
	}
	if err == nil && e.Job != job {
		err = fmt.Errorf("entry %s belongs to job %q", e.ID, e.Job)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Corrupt, "`store verify` tells what else is damaged",
			"read the journal of job %q (%d bytes)", job, len(data))
	}
	return &e, nil
}

// DropEntry removes the entry of a job.
func DropEntry(ctx context.Context, j snapshot.Journal, job string) error {
	return Fault(j.Delete(ctx, Bucket, job), fault.Store, "remove the journal's entry of job %q", job)
}
