package coordinator

import (
	"time"

	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/snapshot"
)

// EventKind is what happened, from a closed list.
type EventKind string

// The closed list of events.
const (
	EventJobApplied          EventKind = "job_applied"
	EventJobDeleted          EventKind = "job_deleted"
	EventJobPaused           EventKind = "job_paused"
	EventJobResumed          EventKind = "job_resumed"
	EventJobPanicked         EventKind = "job_panicked"
	EventJobRefused          EventKind = "job_refused"
	EventAdopted             EventKind = "state_adopted"
	EventCheckpointStarted   EventKind = "checkpoint_started"
	EventCheckpointCompleted EventKind = "checkpoint_completed"
	EventCheckpointFailed    EventKind = "checkpoint_failed"
	EventCheckpointBad       EventKind = "checkpoint_bad"
	EventCheckpointRemoved   EventKind = "checkpoint_removed"
	EventCheckpointShrunk    EventKind = "checkpoint_shrunk"
	EventCheckpointAccepted  EventKind = "checkpoint_accepted"
	EventRetentionHeld       EventKind = "retention_held"
	EventSelfCheckFailed     EventKind = "self_check_failed"
	EventCheckpointMerged    EventKind = "checkpoint_merged"
	EventMergeFailed         EventKind = "merge_failed"
	EventRetentionFailed     EventKind = "retention_failed"
	EventRecordFailed        EventKind = "record_failed"
	EventTickSkipped         EventKind = "tick_skipped"
	EventHealthChanged       EventKind = "health_changed"
	EventStateLost           EventKind = "state_lost"
	EventRecoveryAttempt     EventKind = "recovery_attempt"
	EventRecoveryFailed      EventKind = "recovery_failed"
	EventRecoveryFellBack    EventKind = "recovery_fell_back"
	EventRecovered           EventKind = "recovered"
	EventRestoreStarted      EventKind = "restore_started"
	EventRestoreCompleted    EventKind = "restore_completed"
	EventRestoreFailed       EventKind = "restore_failed"
	EventRescaleStarted      EventKind = "rescale_started"
	EventRescaleCompleted    EventKind = "rescale_completed"
	EventRescaleFailed       EventKind = "rescale_failed"
	EventResumed             EventKind = "restore_resumed"
	EventLeading             EventKind = "leading"
	EventDeposed             EventKind = "deposed"
	EventDrillPassed         EventKind = "drill_passed"
	EventDrillFailed         EventKind = "drill_failed"
	EventScratchRemoved      EventKind = "scratch_removed" // of drills that earlier leaders died in
	EventStoreCompacted      EventKind = "store_compacted"
	EventStoreBackedUp       EventKind = "store_backed_up"
	EventStoreUpkeepFailed   EventKind = "store_upkeep_failed"
	EventStoreSalvaged       EventKind = "store_salvaged" // the start found it damaged
	EventStoreStopped        EventKind = "store_stopped"  // nothing more is written until a restart
	EventCheckpointImported  EventKind = "checkpoint_imported"
	EventCopyMade            EventKind = "copy_made"
	EventCopyFailed          EventKind = "copy_failed"
	EventCopyRemoved         EventKind = "copy_removed"
	EventCopiesFound         EventKind = "copies_found" // checkpoints that only copies have
	EventCopyBad             EventKind = "copy_bad"     // one that was read again is damaged

	EventCheckpointOverdue      EventKind = "checkpoint_overdue"       // told once per silence
	EventCheckpointOverdueEnded EventKind = "checkpoint_overdue_ended" // by a good one, or nothing is promised any more
	EventHookFailed             EventKind = "hook_failed"              // told once until a delivery works, and when one is given up
	EventHookDropped            EventKind = "hook_dropped"
	EventHookRecovered          EventKind = "hook_recovered"
	EventHeartbeatFailed        EventKind = "heartbeat_failed"
	EventHeartbeatHeld          EventKind = "heartbeat_held" // something is wrong with a job
	EventHeartbeatBack          EventKind = "heartbeat_back"
)

// Event is one thing that happened to a job, or to the store (Job is empty
// then). Message is a sentence for
// people; the other fields are set where the kind has them.
type Event struct {
	At         time.Time            `json:"at"`
	Kind       EventKind            `json:"kind"`
	Job        string               `json:"job"`
	Message    string               `json:"message"`
	ID         snapshot.ID          `json:"id,omitempty"` // of a checkpoint
	Reason     string               `json:"reason,omitempty"`
	Operation  string               `json:"operation,omitempty"`
	Health     HealthState          `json:"health,omitempty"`
	Attempt    int                  `json:"attempt,omitempty"` // of a recovery, from 1
	Checkpoint *snapshot.Checkpoint `json:"checkpoint,omitempty"`
	Restore    *restore.Result      `json:"restore,omitempty"`
	Rescale    *rescaler.Result     `json:"rescale,omitempty"`
}

// Failed reports whether the event is bad news.
func (k EventKind) Failed() bool {
	switch k {
	case EventJobPanicked, EventJobRefused, EventCheckpointFailed, EventCheckpointBad, EventCheckpointShrunk, EventSelfCheckFailed, EventMergeFailed, EventRetentionFailed, EventRecordFailed,
		EventDeposed, EventStateLost, EventRecoveryFailed, EventRecoveryFellBack, EventRestoreFailed, EventRescaleFailed, EventDrillFailed, EventStoreUpkeepFailed, EventStoreSalvaged, EventStoreStopped,
		EventCopyBad, EventCheckpointOverdue, EventHookFailed, EventHookDropped, EventHeartbeatFailed, EventHeartbeatHeld:
		return true
	}
	return false
}

// Listener is told what happens, in order for each job. OnEvent must not
// block and must not call the coordinator.
type Listener interface {
	OnEvent(Event)
}

// Listeners passes each event on to all of them.
type Listeners []Listener

var _ Listener = Listeners(nil)

// OnEvent implements Listener.
func (l Listeners) OnEvent(e Event) {
	for _, x := range l {
		x.OnEvent(e)
	}
}

// ListenerFunc makes a Listener of a function.
type ListenerFunc func(Event)

var _ Listener = ListenerFunc(nil)

// OnEvent implements Listener.
func (f ListenerFunc) OnEvent(e Event) { f(e) }
