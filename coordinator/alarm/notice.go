package alarm

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"keyframe/coordinator"
	"keyframe/coordinator/config"
)

// NoticeSchema is the version of Notice. Fields may be added to one version;
// none changes its meaning.
const NoticeSchema = 1

// Notice is the JSON that a hook gets. A receiver that must not count one
// twice tells them apart by Run and Seq: a delivery whose answer was lost is
// made again.
type Notice struct {
	Schema  int               `json:"schema"`
	Host    string            `json:"host"`    // that the coordinator runs on
	Version string            `json:"version"` // of the coordinator
	Run     string            `json:"run"`     // differs with each start of the coordinator
	Hook    string            `json:"hook"`    // name of the hook
	Seq     uint64            `json:"seq"`     // of this hook's notices, from 1 on, in the order in which they happened; a gap is one that was dropped or given up
	Try     int               `json:"try"`     // from 1 on
	SentAt  time.Time         `json:"sentAt"`
	Lost    uint64            `json:"lost"` // notices of this hook before this one that were dropped or given up
	Group   config.AlarmGroup `json:"group,omitempty"`
	Failed  bool              `json:"failed"` // bad news
	Event   coordinator.Event `json:"event"`
}

// maxMessage bounds the message of a notice, in bytes; a panic's has a stack.
const maxMessage = 8 << 10

// Group is the group that an event belongs to; "" for what only those get who
// ask for all. What is bad news and in no other group is a failure.
func Group(k coordinator.EventKind) config.AlarmGroup {
	switch k {
	case coordinator.EventHookFailed, coordinator.EventHookDropped, coordinator.EventHookRecovered,
		coordinator.EventHeartbeatFailed, coordinator.EventHeartbeatHeld, coordinator.EventHeartbeatBack:
		return ""
	case coordinator.EventStateLost:
		return config.AlarmStateLoss
	case coordinator.EventRecovered, coordinator.EventRecoveryFailed, coordinator.EventRecoveryFellBack:
		return config.AlarmRecovery
	case coordinator.EventDrillFailed:
		return config.AlarmDrill
	case coordinator.EventCheckpointOverdue, coordinator.EventCheckpointOverdueEnded:
		return config.AlarmOverdue
	case coordinator.EventHealthChanged:
		return config.AlarmHealth
	case coordinator.EventCopyFailed: // tried again by itself, and yet to be known of
		return config.AlarmFailure
	}
	if k.Failed() {
		return config.AlarmFailure
	}
	return ""
}

// own reports whether an event is this package's: told to a hook, it would
// bring forth the next.
func own(k coordinator.EventKind) bool {
	switch k {
	case coordinator.EventHookFailed, coordinator.EventHookDropped, coordinator.EventHookRecovered,
		coordinator.EventHeartbeatFailed, coordinator.EventHeartbeatHeld, coordinator.EventHeartbeatBack:
		return true
	}
	return false
}

// wants reports whether a hook gets an event.
func wants(h config.Hook, e coordinator.Event) bool {
	if own(e.Kind) || len(h.Jobs) > 0 && e.Job != "" && !slices.Contains(h.Jobs, e.Job) {
		return false
	}
	return slices.Contains(h.Events, config.AlarmAll) || slices.Contains(h.Events, Group(e.Kind))
}

// encode gives the notice as one line of JSON.
func (n Notice) encode() ([]byte, error) {
	if m := n.Event.Message; len(m) > maxMessage {
		n.Event.Message = cutText(m, maxMessage) + " …"
	}
	b, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("encode notice %d of event %s: %w", n.Seq, n.Event.Kind, err)
	}
	return append(b, '\n'), nil
}

// cutText cuts a text at a character's end.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
