package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

// Fingerprint tells the cut that a checkpoint shows from every other, in 16
// lower-case hex digits. It stays the same when the checkpoint's layers are
// merged and when it is imported elsewhere under another job and id: what it is
// made of is in the manifest and belongs to the cut alone.
func Fingerprint(m *snapshot.Manifest) string {
	// Only strings, numbers and times in UTC: they encode without an error.
	b, _ := json.Marshal(struct {
		Identity         snapshot.Identity
		Incarnation      string
		Attempt          snapshot.ID
		Server           snapshot.ServerInfo
		CutAt, StartedAt time.Time
		Rule             keygroups.Rule
		Keys, Missing    uint64
		Elements         uint64
		Epoch            uint64
		Parallelism      int
	}{
		m.Identity, m.Incarnation, m.Attempt, m.Server, m.CutAt.UTC(), m.Checkpoint.StartedAt.UTC(), m.KeyGroups,
		m.Checkpoint.Keys, m.Checkpoint.Missing, m.Checkpoint.Elements, m.Checkpoint.Epoch, m.Checkpoint.Parallelism,
	})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
