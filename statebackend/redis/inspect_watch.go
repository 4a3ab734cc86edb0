package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// inspectAttach is how long an inspection waits for a tracker that the
// coordinator has started: one that isn't attached now is of no use.
const inspectAttach = 50 * time.Millisecond

// activity is a look at the job's writers that has begun.
type activity struct {
	facts   serverFacts
	began   time.Time
	hearing *hearing
	sources []statebackend.SourceActivity
	last    []string // last delivered id of each
}

func (a *activity) close() {
	if a.hearing != nil {
		a.hearing.close()
	}
}

// beginWatch notes where everything stands, and begins to listen.
func (in *inspection) beginWatch() (*activity, error) {
	facts, err := askFacts(in.conn)
	if err != nil {
		return nil, in.b.mapError(err, "look at the server")
	}
	a := &activity{facts: facts, began: time.Now()}
	if a.sources, a.last, err = in.readSources(); err != nil {
		return nil, err
	}
	a.hearing = in.hear()
	return a, nil
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
	if in.heard(a.hearing, facts.position, &act) {
		return act, nil
	}
	if a.facts.runID == facts.runID && a.facts.dirty >= 0 && facts.dirty >= 0 {
		act.By, act.Writes = statebackend.ByServer, a.facts.dirty != facts.dirty
	}
	return act, nil
}

// readSources tells where the job's consumer groups stand, and the last id
// that each was given. A stream or a group that is not there is left out.
func (in *inspection) readSources() (all []statebackend.SourceActivity, last []string, err error) {
	for _, ref := range in.req.Sources {
		n, err := in.b.Partitions(in.ctx, ref.Topic)
		if errors.Is(err, statebackend.ErrWrongType) {
			in.wrong(sourceMetaKey(ref.Topic), "hash", "the number of partitions of topic "+ref.Topic)
			continue
		}
		if err != nil && (in.ctx.Err() != nil || slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })) {
			return nil, nil, err
		}
		if err != nil {
			in.unable("the number of partitions of topic "+ref.Topic, err)
			continue
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
	if resp.IsCode(err, "WRONGTYPE") {
		in.wrong(s.Stream, "stream", "the job's consumer group in it")
		return "", true, nil
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
