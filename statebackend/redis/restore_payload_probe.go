package redis

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// probePayloads stages one payload of each kind, reads it back and removes it,
// all in one go: whether this server takes ours, and understands them as we
// mean them, is known before the first key goes that way. Where it doesn't, all
// keys go in plain commands, which is slower and needs no right to RESTORE.
func (s *staging) probePayloads() error {
	if s.plain {
		s.names.off = true
		return nil
	}
	all := probes()
	for i := range all {
		if err := s.sendProbe(&all[i]); err != nil {
			return err
		}
	}
	if err := s.pipe.conn.Flush(); err != nil {
		return s.pipe.lost(err)
	}
	for i := range all {
		why, err := s.readProbe(&all[i])
		if err != nil {
			return err
		}
		if why != nil && !s.plain {
			s.plain, s.names.off = true, true
			s.warning = fmt.Sprintf("keys were staged with plain commands, which is slower: the server doesn't take a %s as a payload: %v "+
				"(a user who may not do that needs +restore)", all[i].typ, why)
		}
	}
	return nil
}

// probed is a key of the probe.
type probed struct {
	typ      snapshot.KeyType
	elements []snapshot.Element
	want     summary
}

// probes are one key of each kind of payload, with each form of a length, and
// numbers and bytes of each kind.
func probes() []probed {
	text := func(s string) snapshot.Element { return snapshot.Element{Value: []byte(s), Size: uint64(len(s))} }
	texts := []string{"", "\x00\xff\r\n", "-7", "4711", "123456", "8000000", "2000000000", "9000000000000000000", "007",
		strings.Repeat("a", packValue-1), strings.Repeat("b", packValue), strings.Repeat("c", 1<<14-1), strings.Repeat("d", 1<<14)}
	list := probed{typ: snapshot.TypeList}
	set := probed{typ: snapshot.TypeSet}
	small, large := probed{typ: snapshot.TypeHash}, probed{typ: snapshot.TypeHash}
	zset := probed{typ: snapshot.TypeZSet}
	scores := []float64{math.Inf(-1), -1.5, -1, 0, 5e-324, 0.1, 3, 1 << 40, math.MaxFloat64, math.Inf(1)}
	for i, t := range texts {
		list.elements = append(list.elements, text(t), text(t))
		set.elements = append(set.elements, text(t))
		e := text(t)
		e.Score = scores[i%len(scores)]
		zset.elements = append(zset.elements, e)
		e = text(texts[len(texts)-1-i])
		e.Field = []byte(t)
		large.elements = append(large.elements, e)
		if e = text("value " + strconv.Itoa(i)); len(t) <= packValue {
			e.Field = []byte(t)
			small.elements = append(small.elements, e)
		}
	}
	return []probed{list, set, small, large, zset}
}

// sendProbe writes the commands of one key.
func (s *staging) sendProbe(k *probed) error {
	s.payload.begin(k.typ)
	for _, e := range k.elements {
		s.payload.element(k.typ == snapshot.TypeHash, e)
	}
	var err error
	if k.want, err = s.check.read(s.payload.body(), packs(s.version)); err != nil {
		return s.fail(fmt.Errorf("probe of a %s: %w", k.typ, err))
	}
	body := s.check.pack.payload()
	if body == nil {
		body = s.payload.seal()
	}
	name, conn := s.prefix+stageProbe, s.pipe.conn
	err = conn.Command("RESTORE", name, "0", string(body))
	if err == nil {
		err = s.pipe.reader.ask([]byte(name), k.typ)
	}
	if err == nil {
		err = conn.Command("UNLINK", name)
	}
	if err != nil {
		return s.pipe.lost(err)
	}
	return nil
}

// readProbe reads the replies of one key. why tells why the server won't have
// it; err is of the connection, or of a server that takes no key at all.
func (s *staging) readProbe(k *probed) (why, err error) {
	made := s.pipe.conn.SkipReply()
	got, read := summary{}, made
	if made == nil || isReply(made) {
		got, read = s.pipe.reader.answer(k.typ)
	}
	gone := read
	if read == nil || isReply(read) {
		gone = s.pipe.conn.SkipReply()
	}
	switch {
	case gone != nil && !isReply(gone):
		return nil, s.pipe.lost(gone)
	case gone != nil:
		return nil, s.fail(s.b.mapError(gone, "UNLINK"))
	case made != nil:
		return s.declined(made)
	case read != nil:
		return s.b.mapError(read, "read it back"), nil
	case got != k.want:
		return fmt.Errorf("it makes %d elements with digest %016x of %d with %016x", got.count, got.digest, k.want.count, k.want.digest), nil
	}
	return nil, nil
}

// declined tells a server that doesn't want payloads from one that takes no
// key now.
func (s *staging) declined(err error) (why, fatal error) {
	mapped := s.b.mapError(err, "RESTORE")
	if errors.Is(mapped, statebackend.ErrReadOnly) || errors.Is(mapped, statebackend.ErrUnreachable) {
		return nil, s.fail(mapped)
	}
	return mapped, nil
}
