package redis

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// rework is what marks ask to be read again.
type rework struct {
	patches []dirtyKey
	wholes  []keyInfo
	gone    []string
	// rescan: the index changed in a way that its marks don't name.
	rescan bool
}

// metaNames are the job's own keys that a checkpoint carries.
func metaNames(job statebackend.Job) []string {
	return []string{job.Registry(), job.OperatorStates(), job.Assignment()}
}

// planner turns marks into work.
type planner struct {
	job    statebackend.Job
	roster *roster
	work   rework
	ask    []string // names whose place in the index must be asked for
}

// plan sorts the marks. Names that the job's index doesn't list are nobody's
// state, and left out.
func (p *planner) plan(m track.Marks) {
	meta := metaNames(p.job)
	index := m.Keys[p.job.Index()]
	if index != nil {
		p.work.rescan = index.Whole
		p.ask = fieldList(index)
	}
	for name, k := range m.Keys {
		if slices.Contains(meta, name) {
			t, ok := p.roster.meta[name]
			p.add(place{snapshot.SectionMeta, name}, k, t, ok)
		}
		if p.roster.blind {
			p.ask = append(p.ask, name)
			continue
		}
		id := []byte(name)
		t, ok := p.roster.get(id)
		if !ok {
			continue
		}
		if index != nil {
			if _, moved := index.Fields[name]; moved {
				continue // it is asked for
			}
		}
		p.add(place{statebackend.Classify(p.job, id), name}, k, t, ok)
	}
	slices.Sort(p.ask)
	p.ask = slices.Compact(p.ask)
}

// add plans one key: by its fields when it was pushed as a type that has such,
// otherwise whole.
func (p *planner) add(at place, k *track.Key, t snapshot.KeyType, known bool) {
	if k.Whole || !known || !patchable(t) {
		p.whole(at)
		return
	}
	p.work.patches = append(p.work.patches, dirtyKey{at: at, typ: t, fields: fieldList(k)})
}

// fieldList gives the fields that are marked of a key. Most often it is one.
func fieldList(k *track.Key) []string {
	list := make([]string, 0, len(k.Fields))
	for f := range k.Fields {
		list = append(list, f)
	}
	return list
}

func (p *planner) whole(at place) {
	p.work.wholes = append(p.work.wholes, keyInfo{name: []byte(at.name), section: at.section})
}

// listed takes the answer whether a name that was asked for is in the index.
func (p *planner) listed(name string, is bool) {
	if is {
		p.whole(place{statebackend.Classify(p.job, []byte(name)), name})
		return
	}
	if _, ok := p.roster.get([]byte(name)); ok || p.roster.blind {
		p.work.gone = append(p.work.gone, name)
	}
}

// askBatch is how many names are asked for in one command.
const askBatch = 512

// askIndex asks which of the names the index lists.
func (r *cutReader) askIndex(names []string, listed func(name string, is bool)) error {
	index := &keyInfo{name: []byte(r.job.Index()), typ: snapshot.TypeSet}
	for batch := range slices.Chunk(names, askBatch) {
		v, err := r.call(index, "SMISMEMBER", batch...)
		if err == nil && len(v.Array) != len(batch) {
			err = fmt.Errorf("%w: %d answers for %d names", resp.ErrProtocol, len(v.Array), len(batch))
		}
		if err != nil {
			return r.keyFailed(index, err)
		}
		for i, name := range batch {
			listed(name, v.Array[i].Int == 1)
		}
		if err := r.check(); err != nil {
			return err
		}
	}
	return nil
}

// scanIndex walks over the index once, and leaves in the arena the names whose
// hash is from a bound on, as many as fit, sorted. fn is told of every name.
func scanIndex(s *stream, job statebackend.Job, arena *nameArena, from uint64, fn func(name []byte)) error {
	arena.reset(from)
	key, count := []byte(job.Index()), int64(indexPage)
	if err := sendKey(s.conn, key, "SCARD"); err != nil {
		return err
	}
	if err := s.askScan(key, "SSCAN", "0", count); err != nil {
		return err
	}
	expected, err := s.number()
	if err != nil {
		return err
	}
	arena.expect(expected)
	for cursor := ""; cursor != "0"; {
		if cursor, err = s.cursor(); err != nil {
			return err
		}
		if cursor != "0" {
			if err := s.askScan(key, "SSCAN", cursor, count); err != nil {
				return err
			}
		}
		if count, err = scanPage(s, arena, count, fn); err != nil {
			return err
		}
	}
	return arena.sort()
}

// scanPage reads the names of one page, and says how many to ask for next: what
// this page's bytes came to decides.
func scanPage(s *stream, arena *nameArena, count int64, fn func(name []byte)) (int64, error) {
	n, err := s.array()
	if err != nil {
		return 0, err
	}
	s.read = 0
	err = s.names(n, func(name []byte) error {
		fn(name)
		return arena.add(name)
	})
	if err != nil {
		return 0, err
	}
	if n > 0 {
		count = max(1, min(indexPageSize/max(s.read/n, 1), indexPage))
	}
	return count, s.check()
}

// eachRange walks over the index as often as its names need, and calls fn with
// each range of them, in order.
func (c *precopyCut) eachRange(s *stream, fn func(arena *nameArena) error) error {
	index := &keyInfo{name: []byte(c.req.Job.Index()), typ: snapshot.TypeSet}
	root := []byte(c.req.Job.Root() + ":")
	arena := &nameArena{budget: nameBudget}
	for from := uint64(0); ; {
		err := scanIndex(s, c.req.Job, arena, from, func(name []byte) {
			if !bytes.HasPrefix(name, root) {
				c.foreign(string(name))
			}
		})
		if err != nil {
			return c.reader.keyFailed(index, err)
		}
		if err := c.watchForeign(); err != nil {
			return err
		}
		if err := fn(arena); err != nil {
			return err
		}
		if arena.last {
			return nil
		}
		from = arena.below
	}
}

// foreignMost bounds the bytes of the names outside the job's root: a tracker
// compares each write of the server with them.
const foreignMost = 1 << 20

// foreign notes a name of the index outside the job's root.
func (c *precopyCut) foreign(name string) {
	if c.roster.foreign[name] {
		return
	}
	c.roster.foreign[name] = true
	c.foreignNew, c.foreignSize = true, c.foreignSize+len(name)
}

// watchForeign has the writes of foreign names marked, before any of them is
// read.
func (c *precopyCut) watchForeign() error {
	if !c.foreignNew {
		return nil
	}
	if c.foreignSize > foreignMost {
		return &trackingError{fmt.Sprintf("the index lists more than %d bytes of names outside %s:", foreignMost, c.req.Job.Root())}
	}
	c.foreignNew = false
	var names [][]byte
	for name := range c.roster.foreign {
		names = append(names, []byte(name))
	}
	c.f.watch.Extra(names)
	if c.settle != nil && !c.out.pushed {
		return c.settle()
	}
	return nil
}

// trackingError says why writes can't be told: nothing was lost of the state,
// and another way of cutting is right.
type trackingError struct{ why string }

func (e *trackingError) Error() string { return e.why }

// Is makes the error one of a state that changed meanwhile.
func (e *trackingError) Is(target error) bool { return target == statebackend.ErrChanged }

func isTracking(err error) bool {
	var t *trackingError
	return errors.As(err, &t)
}

// forget takes names that have left the index out of the plan.
func (p *planner) forget(gone []string) {
	if len(gone) == 0 {
		return
	}
	left := make(map[place]bool, len(gone))
	for _, name := range gone {
		left[place{statebackend.Classify(p.job, []byte(name)), name}] = true
	}
	p.work.patches = slices.DeleteFunc(p.work.patches, func(k dirtyKey) bool { return left[k.at] })
	p.work.wholes = slices.DeleteFunc(p.work.wholes, func(k keyInfo) bool { return left[place{k.section, string(k.name)}] })
	p.work.gone = append(p.work.gone, gone...)
}
