package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Checkpoint is a row of a job's history, as far as the checks need it.
type Checkpoint struct {
	Job         string    `json:"job"`
	ID          uint64    `json:"id"`
	Kind        string    `json:"kind"` // checkpoint, savepoint
	Name        string    `json:"name"`
	Trigger     string    `json:"trigger"`
	State       string    `json:"state"` // in_progress, completed, failed
	Grade       string    `json:"grade"`
	StartedAt   time.Time `json:"startedAt"`
	CompletedAt time.Time `json:"completedAt"` // zero unless completed
	Keys        uint64    `json:"keys"`
	Missing     uint64    `json:"missing"`
	Elements    uint64    `json:"elements"`
	Bytes       uint64    `json:"bytes"`
	FullBytes   uint64    `json:"fullBytes"`
	Parent      uint64    `json:"parent"` // 0 for none
	Parallelism int       `json:"parallelism"`
	Epoch       uint64    `json:"epoch"`
	Pinned      bool      `json:"pinned"`
	Bad         string    `json:"bad"` // why it can't be restored, "" when it can
	Incremental bool      `json:"incremental"`
	Layers      int       `json:"layers"`
	Estimated   bool      `json:"bytesEstimated"`
}

// Restorable reports whether it is completed and not found bad.
func (c Checkpoint) Restorable() bool { return c.State == stateCompleted && c.Bad == "" }

// The states of an attempt, and what is never removed by itself.
const (
	stateCompleted = "completed"
	stateFailed    = "failed"
	kindSavepoint  = "savepoint"
	triggerRescale = "rescale"
	triggerImport  = "import"
)

// chunkRef is a chunk as a manifest names it.
type chunkRef struct {
	ID      string `json:"id"` // 64 hex digits
	Section byte   `json:"section"`
	Raw     uint64 `json:"raw"`
	Stored  uint64 `json:"stored"`
}

// manifest is what the checks need of one.
type manifest struct {
	Format     int        `json:"format"`
	Checkpoint Checkpoint `json:"checkpoint"`
	Identity   struct {
		Prefix string `json:"prefix"`
		Job    string `json:"job"`
	} `json:"identity"`
	Incarnation string     `json:"incarnation"`
	Chunks      []chunkRef `json:"chunks"`
	Layers      []struct {
		Chunks []chunkRef `json:"chunks"`
	} `json:"layers"`
	Sorted bool `json:"sorted"`
}

// openManifest checks a manifest's envelope and reads its body.
func openManifest(data []byte) (*manifest, error) {
	const body = 44
	if len(data) < body || string(data[:4]) != "KFMF" {
		return nil, fmt.Errorf("manifest: %d bytes, beginning with %.4q", len(data), data)
	}
	h := sha256.New()
	_, _ = h.Write(data[:12]) // a hash.Hash never fails
	_, _ = h.Write(data[body:])
	switch version, n := data[4], binary.LittleEndian.Uint32(data[8:]); {
	case !bytes.Equal(h.Sum(nil), data[12:body]):
		return nil, fmt.Errorf("manifest: its SHA-256 is %x, it says %x", h.Sum(nil), data[12:body])
	case version < 1 || version > newest || data[5]|data[6]|data[7] != 0 || int64(n) != int64(len(data)-body):
		return nil, fmt.Errorf("manifest: its head is % x, its body has %d bytes", data[:12], len(data)-body)
	}
	var m manifest
	if err := json.Unmarshal(data[body:], &m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if m.Format != int(data[4]) {
		return nil, fmt.Errorf("manifest: format %d inside of one of version %d", m.Format, data[4])
	}
	return &m, unescape(&m.Checkpoint.Job, &m.Checkpoint.Name, &m.Checkpoint.Bad, &m.Identity.Prefix, &m.Identity.Job)
}

// readRow reads a row of a history.
func readRow(b []byte) (Checkpoint, error) {
	var c Checkpoint
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("row: %w", err)
	}
	return c, unescape(&c.Job, &c.Name, &c.Bad)
}

// unescape turns the strings that may be any bytes back into these.
func unescape(all ...*string) error {
	for _, s := range all {
		code, escaped := strings.CutPrefix(*s, "base64:")
		if !escaped {
			continue
		}
		b, err := base64.StdEncoding.Strict().DecodeString(code)
		if err != nil || utf8.Valid(b) && !bytes.HasPrefix(b, []byte("base64:")) {
			return fmt.Errorf("%q is no bytes escaped: %w", *s, err)
		}
		*s = string(b)
	}
	return nil
}
