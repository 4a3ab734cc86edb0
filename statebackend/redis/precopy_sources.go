package redis

import (
	"errors"
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// sourcesAhead is how many sources' keys are asked about in one packet.
const sourcesAhead = 128

// sortedSources reads where each source stands, its pending entries and its
// commit frontiers, with few turns to the server whatever the number of
// partitions: it is done while writers are held. The reader's sink is a
// collector, which brings the keys into their order.
func (r *cutReader) sortedSources(refs []statebackend.SourceRef) ([]snapshot.Position, error) {
	var all []snapshot.Position
	err := r.eachSource(refs, func(positions []snapshot.Position) error {
		all = append(all, positions...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := r.pushPending(&all[i]); err != nil {
			return nil, err
		}
	}
	return all, r.frontiers(all)
}

func (r *cutReader) pushPending(pos *snapshot.Position) error {
	if pos.Pending == 0 {
		return nil
	}
	k := &keyInfo{name: PendingKey(pos.Stream, pos.Group), section: snapshot.SectionSource, typ: snapshot.TypeList}
	if err := r.pending(k, pos); err != nil {
		return r.keyFailed(&keyInfo{name: []byte(pos.Stream), typ: snapshot.TypeOpaque}, err)
	}
	return nil
}

// frontiers reads the commit frontiers of the positions, each once.
func (r *cutReader) frontiers(all []snapshot.Position) error {
	var keys []keyInfo
	there := make(map[string]bool)
	for _, pos := range all {
		name := frontierName(pos.Topic, pos.Partition)
		if _, ok := there[name]; !ok {
			there[name] = false
			keys = append(keys, keyInfo{name: []byte(name), section: snapshot.SectionSource, typ: snapshot.TypeHash})
		}
	}
	for len(keys) > 0 {
		batch := keys[:min(len(keys), sourcesAhead)]
		keys = keys[len(batch):]
		odd, err := r.frontierBatch(batch, there)
		if err != nil {
			return err
		}
		// What is no small hash is asked for by itself.
		for _, name := range odd {
			if there[name], err = r.single(snapshot.SectionSource, name); err != nil {
				return err
			}
		}
	}
	for i := range all {
		all[i].Frontier = there[frontierName(all[i].Topic, all[i].Partition)]
	}
	return nil
}

// frontierBatch asks for keys that are most likely small hashes in one packet.
func (r *cutReader) frontierBatch(batch []keyInfo, there map[string]bool) (odd []string, err error) {
	for i := range batch {
		if err := r.askInfo(&batch[i]); err != nil {
			return nil, r.keyFailed(&batch[i], err)
		}
	}
	if err := r.conn.Flush(); err != nil {
		return nil, r.keyFailed(&batch[0], err)
	}
	var hashes []*keyInfo
	for i := range batch {
		k := &batch[i]
		if err := r.takeInfo(k); err != nil {
			return nil, r.keyFailed(k, err)
		}
		switch {
		case k.typ == snapshot.TypeMissing || k.expireAt == goneAlready:
		case k.typ == snapshot.TypeHash && k.size <= wholeLimit:
			hashes = append(hashes, k)
		default:
			odd = append(odd, string(k.name))
		}
	}
	for _, k := range hashes {
		if err := r.askWhole(k); err != nil {
			return nil, r.keyFailed(k, err)
		}
	}
	err = r.conn.Flush()
	for _, k := range hashes {
		there[string(k.name)] = true
		if err = errors.Join(err, r.takeWhole(k)); err != nil {
			return nil, r.keyFailed(k, err)
		}
	}
	return odd, err
}

// pendingMost is up to how many pending entries the sources' groups may have
// in all for grade precopy, which keeps them in memory while writers are held:
// some 100 bytes each. A variable for tests.
var pendingMost uint64 = 200_000

// fewPending refuses sources whose pending entries are too many.
func (c *precopyCut) fewPending() error {
	var pending uint64
	for _, ref := range c.req.Sources {
		n, err := c.reader.partitions(ref.Topic)
		if err != nil {
			return err
		}
		positions, err := c.reader.positions(ref, n)
		if err != nil {
			return err
		}
		for _, p := range positions {
			pending += p.Pending
		}
	}
	if pending > pendingMost {
		return &trackingError{fmt.Sprintf("the sources' groups have %d pending entries, and up to %d are read while writers are held for a moment: acknowledge them", pending, pendingMost)}
	}
	return nil
}
