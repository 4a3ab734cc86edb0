package redis

import (
	"context"
	"fmt"
	"sort"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// How long an inspection that watches waits to hear from the server: for the
// connection that it listens on, and for the last announcements.
const (
	hearAttach = 2 * time.Second
	hearEnd    = 2 * time.Second
)

// hearing is a watch of the job's own writes while it is inspected.
type hearing struct {
	watch     track.Watch
	announced bool          // by [track.LevelKeys]
	own       track.Tracker // made for the inspection, nil otherwise
	why       string        // why there is no watch
}

func (h *hearing) close() {
	if h.watch != nil {
		h.watch.Close()
	}
	if h.own != nil {
		_ = h.own.Close() // it gives no error
	}
}

// hear listens to the job's writes as well as can be. Where the coordinator
// follows the server's stream of writes anyway, the job's own are marked from
// now on, which costs the server nothing. Otherwise, and only when the writers
// are to be watched, it listens to the announcements of client-side caching on a
// connection of its own: the server sends each changed name once a turn of its
// event loop, and nothing of the values. MONITOR is never used.
func (in *inspection) hear() *hearing {
	h := &hearing{}
	if w := in.followed(); w != nil {
		h.watch = w
		return h
	}
	switch {
	case in.b.tracks.mode == TrackOff:
		h.why = "tracking is off (redis.tracking)"
		return h
	case in.req.Watch <= 0:
		h.why = "the writers were not watched"
		return h
	}
	h.own, h.announced = in.b.tracks.make[track.LevelKeys](track.Options{Dial: in.b.dialTracker, Server: in.b.addr.server()}), true
	ctx, cancel := context.WithTimeoutCause(in.ctx, hearAttach, fmt.Errorf("no answer within %v", hearAttach))
	defer cancel()
	w, err := h.own.Watch(ctx, track.Scope{DB: in.b.addr.db, Root: in.req.Job.Root()})
	if err == nil {
		if err = h.own.Attached(ctx); err == nil {
			w.Take() // what it could not see until now
			h.watch = w
			return h
		}
		w.Close()
	}
	h.why = whyNot(track.LevelKeys, err)
	return h
}

// followed is a watch of the tracker that the coordinator has started, nil when
// it isn't attached now.
func (in *inspection) followed() track.Watch {
	in.b.tracks.mu.Lock()
	tracker := in.b.tracks.started[track.LevelFields]
	in.b.tracks.mu.Unlock()
	if tracker == nil {
		return nil
	}
	short, cancel := context.WithTimeout(in.ctx, inspectAttach)
	defer cancel()
	if tracker.Attached(short) != nil {
		return nil
	}
	w, err := tracker.Watch(in.ctx, track.Scope{DB: in.b.addr.db, Root: in.req.Job.Root()})
	if err != nil {
		return nil // the other way is tried
	}
	return w
}

// heard takes the marks of the watch, when these are known to be all; otherwise
// act says why they aren't.
func (in *inspection) heard(h *hearing, at track.Position, act *statebackend.Activity) bool {
	if act.Unheard = h.why; h.watch == nil {
		return false
	}
	short, cancel := context.WithTimeout(in.ctx, hearEnd)
	defer cancel()
	if err := h.watch.Barrier(short, at); err != nil {
		act.Unheard = err.Error()
		return false
	}
	marks := h.watch.Take()
	if marks.All {
		act.Unheard = marks.Reason
		return false
	}
	act.By, act.Announced = statebackend.ByTracking, h.announced
	for name, k := range marks.Keys {
		if !in.req.Job.Owns([]byte(name)) {
			continue // bookkeeping, which the coordinator writes
		}
		act.Writes = true
		act.Count += k.Writes
		act.Written++
		act.Keys = append(act.Keys, statebackend.WrittenKey{Name: name, Elements: len(k.Fields), Writes: k.Writes, Whole: k.Whole})
	}
	sort.Slice(act.Keys, func(i, j int) bool {
		x, y := act.Keys[i], act.Keys[j]
		a, b := max(x.Writes, uint64(x.Elements)), max(y.Writes, uint64(y.Elements))
		return a > b || a == b && x.Name < y.Name
	})
	act.Keys = act.Keys[:min(len(act.Keys), statebackend.MaxWritten)]
	return true
}
