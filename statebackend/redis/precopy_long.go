package redis

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// long reads very many fields of one key straight into a layer, when no reply
// is outstanding. Count and expiry are asked for first, since they stand before
// the elements: while writers run they may be of another moment than the
// fields, and the key is marked again then.
func (p *patchReader) long(k *dirtyKey, to *layerOut) error {
	return p.failed(k, p.longPatch(k, to))
}

func (p *patchReader) longPatch(k *dirtyKey, to *layerOut) error {
	name := []byte(k.at.name)
	if err := sendKey(p.conn, name, patchCommands[k.typ][1]); err != nil {
		return err
	}
	if err := p.askExpiry(name); err != nil {
		return err
	}
	if err := p.conn.Flush(); err != nil {
		return err
	}
	info := keyInfo{name: name, section: k.at.section, typ: k.typ}
	count, err := p.number()
	wrong := isReplyCode(err, "WRONGTYPE")
	if err != nil && !wrong {
		return err
	}
	if err := p.takeExpiry(&info); err != nil {
		return err
	}
	if wrong || count == 0 || info.expireAt == goneAlready || p.unfit(k) {
		return p.keys(&keyList{left: []keyInfo{{name: name, section: k.at.section}}})
	}
	err = to.BeginKey(snapshot.Key{
		Section: k.at.section, Op: snapshot.OpPatch, Name: name, Type: k.typ, ExpireAt: info.expireAt, Count: uint64(count),
	})
	if err != nil {
		return err
	}
	if err := p.longFields(k, to); err != nil {
		return err
	}
	gone, err := p.goneMeanwhile(info)
	if err != nil {
		return err
	}
	return to.EndKey(snapshot.KeyEnd{Expired: gone})
}

// goneMeanwhile reports whether a key expired while its fields were read inside
// a pause: then all of them may have come as removed.
func (p *patchReader) goneMeanwhile(k keyInfo) (bool, error) {
	if p.loose || k.expireAt == 0 {
		return false, nil
	}
	there, err := p.count(k.name, "EXISTS")
	return there == 0, err
}

// unfit reports whether a member is longer than a patch may have.
func (p *patchReader) unfit(k *dirtyKey) bool {
	if k.typ == snapshot.TypeHash {
		return false
	}
	for _, f := range k.fields {
		if len(f) > patchMember {
			return true
		}
	}
	return false
}

// longFields reads the fields, a command ahead. A value is passed on as it
// comes, however long it is.
func (p *patchReader) longFields(k *dirtyKey, to *layerOut) error {
	fields := k.fields
	var asked queue[[]string]
	for len(fields) > 0 || asked.len() > 0 {
		for asked.len() < pagesAhead && len(fields) > 0 {
			batch := fields[:min(patchFields, len(fields))]
			fields = fields[len(batch):]
			asked.push(batch)
			if err := sendKey(p.conn, []byte(k.at.name), patchCommands[k.typ][0], batch...); err != nil {
				return err
			}
		}
		if err := p.conn.Flush(); err != nil {
			return err
		}
		batch := asked.pop()
		n, err := p.array()
		if p.changed(err) {
			p.odd(&keyInfo{name: []byte(k.at.name), section: k.at.section, typ: k.typ})
			continue // it is another key by now, and comes again
		}
		if err == nil && n != int64(len(batch)) {
			err = fmt.Errorf("%w: %d answers for %d fields", resp.ErrProtocol, n, len(batch))
		}
		for i := 0; i < len(batch) && err == nil; i++ {
			err = p.longField(k.typ, batch[i], to)
		}
		if err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

func (p *patchReader) longField(t snapshot.KeyType, name string, to *layerOut) error {
	h, err := p.conn.Next()
	if err != nil {
		return err
	}
	el := snapshot.Element{Field: []byte(name)}
	if t != snapshot.TypeHash {
		el = snapshot.Element{Value: []byte(name), Size: uint64(len(name))}
	}
	switch {
	case h.Err != nil:
		return h.Err
	case t == snapshot.TypeSet && h.Kind == resp.Integer:
		el.Removed = h.Int == 0
	case t == snapshot.TypeSet || h.Kind != resp.Bulk:
		return fmt.Errorf("%w: %s where a field is due", resp.ErrProtocol, h.Kind)
	case h.Nil():
		el.Removed = true
	case t == snapshot.TypeHash:
		p.stream.sink = to
		return p.value(el.Field, 0, h)
	default:
		score, err := p.scoreBody(h)
		if err != nil {
			return err
		}
		el.Score = score.score
	}
	return to.Element(el)
}
