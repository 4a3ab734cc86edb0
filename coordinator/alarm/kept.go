package alarm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"keyframe/coordinator"
)

// bucketKept of the journal: name of a hook → JSON of kept.
const bucketKept = "hooks"

// keepTime bounds one access to the journal.
const keepTime = 10 * time.Second

// Journal keeps what waits for its delivery over a restart; snapshot.Journal is
// one.
type Journal interface {
	Put(ctx context.Context, bucket, key string, value []byte) error
	Get(ctx context.Context, bucket, key string) (value []byte, ok bool, err error)
	Delete(ctx context.Context, bucket, key string) error
}

// kept is what of a hook's queue is in the journal, oldest first.
type kept struct {
	Waiting []keptEvent `json:"waiting"`
}

type keptEvent struct {
	Event coordinator.Event `json:"event"`
	At    time.Time         `json:"at"` // put in
}

// load takes what an earlier run left. What it can't read it says, and goes on:
// old news must not keep new news back.
func (h *hook) load() {
	if h.journal == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	value, ok, err := h.journal.Get(ctx, bucketKept, h.spec.Name)
	var k kept
	if err == nil && ok {
		err = json.Unmarshal(value, &k)
	}
	if err != nil {
		h.say(coordinator.EventHookDropped, "", "hook %q (%s): what waited before the start can't be read: %v", h.spec.Name, h.to.target(), err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saved = len(k.Waiting) > 0
	for _, w := range k.Waiting {
		h.seq++
		h.queue = append(h.queue, queued{seq: h.seq, event: w.Event, at: w.At})
	}
}

// save puts what waits into the journal, first first (which is under way; nil
// for none). It is called when a try has failed, after each delivery while the
// journal has something, and at the end: a receiver that works costs no write,
// and a kill loses only what was not tried yet. It reports whether all that
// waits is in the journal.
func (h *hook) save(first ...queued) bool {
	if h.journal == nil {
		return false
	}
	h.mu.Lock()
	var k kept
	for _, q := range slices.Concat(h.left, first, h.queue) {
		k.Waiting = append(k.Waiting, keptEvent{q.event, q.at.Round(0)})
	}
	saved := h.saved
	h.mu.Unlock()
	if len(k.Waiting) == 0 && !saved {
		return true
	}
	err := h.store(k)
	h.mu.Lock()
	if err == nil {
		h.saved = len(k.Waiting) > 0
	}
	untold := err != nil && !h.unsaved
	h.unsaved = err != nil
	h.mu.Unlock()
	if untold {
		h.say(coordinator.EventHookFailed, "", "hook %q (%s): what waits can't be kept over a restart: %v", h.spec.Name, h.to.target(), err)
	}
	return err == nil
}

func (h *hook) store(k kept) error {
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	if len(k.Waiting) == 0 {
		return h.journal.Delete(ctx, bucketKept, h.spec.Name)
	}
	value, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("encode what waits for hook %q: %w", h.spec.Name, err)
	}
	return h.journal.Put(ctx, bucketKept, h.spec.Name, value)
}

// saveLess is save when something was settled.
func (h *hook) saveLess() {
	h.mu.Lock()
	saved := h.saved
	h.mu.Unlock()
	if saved {
		h.save()
	}
}

// leave sets a notice aside that a stop came before.
func (h *hook) leave(q queued) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = append(h.left, q)
}

// settle keeps for the next start what was left, or counts it as dropped where
// it can't be kept.
func (h *hook) settle() {
	h.mu.Lock()
	n := uint64(len(h.left))
	h.mu.Unlock()
	if n == 0 {
		return
	}
	ok := h.save()
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		h.counts.Kept += n
		return
	}
	h.counts.Dropped += n
}
