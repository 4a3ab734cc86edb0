package snapshot

import (
	"time"

	"keyframe/keygroups"
)

// FormatVersion is the version of the format that this package writes. It
// reads every version from 1 to this one.
const FormatVersion = 2

// MaxLayers is how many layers may stand over a base: what a walk holds in
// memory grows with it.
const MaxLayers = 64

// Identity says whose state a checkpoint holds.
type Identity struct {
	Server string `json:"server"` // scheme://host:port/db, never with a user or a password
	Prefix string `json:"prefix"`
	Job    string `json:"job"`
}

// ServerInfo is what the server said of itself inside the cut.
type ServerInfo struct {
	Version string `json:"version"` // "" for an in-process store
	RunID   string `json:"runId"`   // new at every start of the server
}

// OperatorMode is how an operator state is redistributed when the parallelism
// changes.
type OperatorMode string

// The three modes.
const (
	ModeList      OperatorMode = "list"
	ModeUnion     OperatorMode = "union"
	ModeBroadcast OperatorMode = "broadcast"
)

// Handed remembers a union as it was last handed out, so that copies which
// come back are told from contributions (design §6).
type Handed struct {
	Epoch  uint64 `json:"epoch"`
	Length int    `json:"length"` // items
	Digest string `json:"digest"` // hex SHA-256 over each item's length and bytes
}

// OperatorState is one registered operator state: an entry of the job's
// operatorState hash.
type OperatorState struct {
	Operator string       `json:"operator"`
	Name     string       `json:"name"`
	Mode     OperatorMode `json:"mode"`
	Handed   *Handed      `json:"handed,omitempty"`
}

// StateStats counts what one operator's state holds. Kind is the Redis type.
// Operator and State are empty for keys that could not be parsed.
type StateStats struct {
	Operator string `json:"operator"`
	State    string `json:"state"`
	Type     string `json:"type"`
	Keys     uint64 `json:"keys"`
	Elements uint64 `json:"elements"`
	Bytes    uint64 `json:"bytes"`
}

// GroupStats counts what one key group holds.
type GroupStats struct {
	Group    int    `json:"group"`
	Keys     uint64 `json:"keys"`
	Elements uint64 `json:"elements"`
	Bytes    uint64 `json:"bytes"`
}

// Manifest describes one completed checkpoint whole: with the chunks that it
// names it restores alone.
type Manifest struct {
	Format      int        `json:"format"`
	Checkpoint  Checkpoint `json:"checkpoint"` // as completed
	Identity    Identity   `json:"identity"`
	Incarnation string     `json:"incarnation"`
	// Attempt is the attempt id that the job's record in the state store
	// held inside the cut; 0 when it could not be written there.
	Attempt ID         `json:"attempt"`
	Server  ServerInfo `json:"server"`
	CutAt   time.Time  `json:"cutAt"` // by the server's clock
	// KeyGroups is the rule under which the keyed state is laid out.
	KeyGroups keygroups.Rule `json:"keyGroups"`
	// Ranges are the key groups of each subtask, nil when the job never had
	// an assignment.
	Ranges         []keygroups.Range `json:"ranges,omitempty"`
	OperatorStates []OperatorState   `json:"operatorStates,omitempty"`
	States         []StateStats      `json:"states,omitempty"`
	Groups         []GroupStats      `json:"groups,omitempty"`
	// Chunks are the base: all sections of a plain checkpoint, in order.
	Chunks []ChunkRef `json:"chunks"`
	// Layers stand over the base, oldest first: each supersedes what is below
	// it. Source chunks are in the last of all layers only (in the base when
	// there are none).
	Layers []Layer `json:"layers,omitempty"`
	// Sorted says that the keys of each section, in the base and in every
	// layer, are in the order of CompareNames: only over such a checkpoint
	// can a layer stand.
	Sorted bool `json:"sorted,omitempty"`
}

// Layer is what changed over the layers below it.
type Layer struct {
	Chunks []ChunkRef `json:"chunks"`
	// Names is the most bytes of fields and members that one key's patch has
	// in this layer: what a reader must hold at a time.
	Names uint64 `json:"names"`
}
