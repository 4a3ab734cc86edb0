package redis

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// inspectAttach is how long an inspection waits for a tracker that the
// coordinator has started: one that isn't attached now is of no use.
const inspectAttach = 50 * time.Millisecond

// activity is a look at the job's writers that has begun.
type activity struct {
	facts   serverFacts
	began   time.Time
	watch   track.Watch // nil when nothing tracks fields
	sources []statebackend.SourceActivity
	last    []string // last delivered id of each
}

func (a *activity) close() {
	if a.watch != nil {
		a.watch.Close()
	}
}

// beginWatch notes where everything stands. Where the coordinator follows the
// server's stream of writes anyway, the job's own writes are marked from now
// on, which costs the server nothing.
func (in *inspection) beginWatch() (*activity, error) {
	facts, err := askFacts(in.conn)
	if err != nil {
		return nil, in.b.mapError(err, "look at the server")
	}
	a := &activity{facts: facts, began: time.Now()}
	if a.sources, a.last, err = in.readSources(); err != nil {
		return nil, err
	}
	in.b.tracks.mu.Lock()
	tracker := in.b.tracks.started[track.LevelFields]
	in.b.tracks.mu.Unlock()
	if tracker == nil {
		return a, nil
	}
	short, cancel := context.WithTimeout(in.ctx, inspectAttach)
	defer cancel()
	if tracker.Attached(short) != nil {
		return a, nil
	}
	w, err := tracker.Watch(in.ctx, track.Scope{DB: in.b.addr.db, Root: in.req.Job.Root()})
	if err == nil {
		a.watch = w
	}
	return a, nil // without a watch the server's own count is judged
}

// endWatch tells what happened since beginWatch.
func (in *inspection) endWatch(a *activity) (statebackend.Activity, error) {
	if err := in.pause(in.req.Watch - time.Since(a.began)); err != nil {
		return statebackend.Activity{}, err
	}
	facts, err := askFacts(in.conn)
	if err != nil {
		return statebackend.Activity{}, in.b.mapError(err, "look at the server")
	}
	sources, last, err := in.readSources()
	if err != nil {
		return statebackend.Activity{}, err
	}
	act := statebackend.Activity{Over: time.Since(a.began), Sources: sources}
	for i := range act.Sources {
		act.Sources[i].Moved = i >= len(a.last) || a.last[i] != last[i]
	}
	if a.watch != nil && in.tracked(a.watch, facts.position, &act) {
		return act, nil
	}
	if a.facts.runID == facts.runID && a.facts.dirty >= 0 && facts.dirty >= 0 {
		act.By, act.Writes = statebackend.ByServer, a.facts.dirty != facts.dirty
	}
	return act, nil
}

// tracked takes the marks of the watch, when these are known to be all.
func (in *inspection) tracked(w track.Watch, at track.Position, act *statebackend.Activity) bool {
	short, cancel := context.WithTimeout(in.ctx, time.Second)
	defer cancel()
	if w.Barrier(short, at) != nil {
		return false
	}
	marks := w.Take()
	if marks.All {
		return false
	}
	act.By = statebackend.ByTracking
	for name, k := range marks.Keys {
		if !in.req.Job.Owns([]byte(name)) {
			continue // bookkeeping, which the coordinator writes
		}
		act.Writes = true
		act.Keys = append(act.Keys, statebackend.WrittenKey{Name: name, Elements: len(k.Fields), Whole: k.Whole})
	}
	sort.Slice(act.Keys, func(i, j int) bool {
		x, y := act.Keys[i], act.Keys[j]
		return x.Elements > y.Elements || x.Elements == y.Elements && x.Name < y.Name
	})
	act.Keys = act.Keys[:min(len(act.Keys), statebackend.MaxWritten)]
	return true
}

// readSources tells where the job's consumer groups stand, and the last id
// that each was given. A stream or a group that is not there is left out.
func (in *inspection) readSources() (all []statebackend.SourceActivity, last []string, err error) {
	for _, ref := range in.req.Sources {
		n, err := in.b.Partitions(in.ctx, ref.Topic)
		if err != nil {
			return nil, nil, err
		}
		counted := n > 0
		if !counted {
			n = keygroups.MaxMaxParallelism // as many streams as there are, from 0 upward
		}
		for p := range n {
			if err := in.check(); err != nil {
				return nil, nil, err
			}
			s := statebackend.SourceActivity{Stream: streamKey(ref.Topic, p), Group: ref.Group}
			id, there, err := in.readGroup(&s)
			if err != nil {
				return nil, nil, err
			}
			if !there && !counted {
				break
			}
			if id != "" {
				all, last = append(all, s), append(last, id)
			}
		}
	}
	return all, last, nil
}

// readGroup tells the last id that a group was given, "" when there is no
// such group, and how much waits for it. there is false without a stream.
func (in *inspection) readGroup(s *statebackend.SourceActivity) (id string, there bool, err error) {
	groups, err := in.conn.Call(headLimit, "XINFO", "GROUPS", s.Stream)
	if err != nil && isReply(err) && strings.Contains(err.Error(), "no such key") {
		return "", false, nil
	}
	if err != nil {
		return "", false, in.b.mapError(err, "XINFO GROUPS "+s.Stream)
	}
	for _, g := range groups.Array {
		f := pairs(g)
		if f["name"].String() != s.Group {
			continue
		}
		id = f["last-delivered-id"].String()
		if lag, told := f["lag"]; told && lag.Kind == resp.Integer {
			s.Unread = lag.Int
			return id, true, nil
		}
		// Before 7.0, and where entries were removed, only whether any waits.
		info, err := in.conn.Call(headLimit, "XINFO", "STREAM", s.Stream)
		if err != nil {
			return "", false, in.b.mapError(err, fmt.Sprintf("XINFO STREAM %s", s.Stream))
		}
		if newest := pairs(info)["last-generated-id"].String(); newest != id {
			s.Unread = 1
		}
	}
	return id, true, nil
}

// pairs reads an answer of names and values in turn.
func pairs(v resp.Value) map[string]resp.Value {
	all := make(map[string]resp.Value, len(v.Array)/2)
	for i := 0; i+1 < len(v.Array); i += 2 {
		all[v.Array[i].String()] = v.Array[i+1]
	}
	return all
}
