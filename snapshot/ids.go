package snapshot

import (
	"fmt"
	"strconv"
)

// ID numbers the checkpoints of one job, from 1 on. Ids only grow, also after
// failures, deletions and a new store file (invariant I10). 0 is "none".
type ID uint64

// ParseID reads a decimal id of at least 1.
func ParseID(s string) (ID, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("checkpoint id %q: want a whole number from 1 on", s)
	}
	return ID(n), nil
}

// String is the decimal form.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Kind says whether retention may remove a checkpoint.
type Kind string

// The two kinds: a savepoint is kept until a person deletes it.
const (
	KindCheckpoint Kind = "checkpoint"
	KindSavepoint  Kind = "savepoint"
)

// Trigger is why a checkpoint was taken.
type Trigger string

// The closed list of triggers.
const (
	TriggerSchedule   Trigger = "schedule"
	TriggerManual     Trigger = "manual"
	TriggerShutdown   Trigger = "shutdown"
	TriggerPreRestore Trigger = "pre-restore"
	TriggerPreRescale Trigger = "pre-rescale"
	TriggerRescale    Trigger = "rescale"
	TriggerRekey      Trigger = "rekey"
	TriggerImport     Trigger = "import"
)

// State is where an attempt at a checkpoint stands.
type State string

// The three states. Only a completed checkpoint has a manifest.
const (
	StateInProgress State = "in_progress"
	StateCompleted  State = "completed"
	StateFailed     State = "failed"
)

// Grade is how a cut was made, and so what it is worth (design §7).
type Grade string

// The grades. GradeAuto is a wish, never what a cut has. GradeSnapshot is the
// in-process store's own consistent snapshot.
const (
	GradeAuto     Grade = "auto"
	GradeFenced   Grade = "fenced"
	GradeReplica  Grade = "replica"
	GradePrecopy  Grade = "precopy"
	GradePaused   Grade = "paused"
	GradeQuiet    Grade = "quiet"
	GradeSnapshot Grade = "snapshot"
)

// ParseGrade reads a grade as the command line and the configuration give it;
// the empty string is GradeAuto.
func ParseGrade(s string) (Grade, error) {
	switch g := Grade(s); g {
	case "":
		return GradeAuto, nil
	case GradeAuto, GradeFenced, GradeReplica, GradePrecopy, GradePaused, GradeQuiet, GradeSnapshot:
		return g, nil
	}
	return "", fmt.Errorf("grade %q: want one of auto, fenced, replica, precopy, paused, quiet, snapshot", s)
}
