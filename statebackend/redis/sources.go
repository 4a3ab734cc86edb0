package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"keyframe/keygroups"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// The keys of a source (design §4).
func streamKey(topic string, partition int) string {
	return "stream:topic:" + topic + ":p:" + strconv.Itoa(partition)
}

func sourceMetaKey(topic string) string { return "streaming:mq:topic:" + topic + ":meta" }

// partitionCountField is the field of a source's meta hash.
const partitionCountField = "partitionCount"

// parsePartitionCount finds the partition count in a source's meta hash, whose
// names and values may be plain or quoted, as the codec of the Java side has
// them. 0 when the hash doesn't tell one.
func parsePartitionCount(fields map[string][]byte) (int, error) {
	value, ok := fields[partitionCountField]
	if !ok {
		value, ok = fields[strconv.Quote(partitionCountField)]
	}
	if !ok {
		return 0, nil
	}
	digits := value
	if len(digits) >= 2 && digits[0] == '"' && digits[len(digits)-1] == '"' {
		digits = digits[1 : len(digits)-1]
	}
	n, ok := parseDigits(digits)
	if !ok || n == 0 || n > keygroups.MaxMaxParallelism {
		return 0, fmt.Errorf("%s is %.80q: want a number from 1 to %d, plain or quoted",
			partitionCountField, value, keygroups.MaxMaxParallelism)
	}
	return int(n), nil
}

// Partitions gives the partition count that the source's meta hash tells; 0
// when there is none.
func (b *Backend) Partitions(ctx context.Context, topic string) (int, error) {
	key := sourceMetaKey(topic)
	fields, err := b.client.HGetAll(ctx, key).Result()
	if err != nil {
		return 0, &statebackend.KeyError{Key: []byte(key), Op: "read", Err: b.mapError(err, "partition count")}
	}
	raw := make(map[string][]byte, len(fields))
	for f, v := range fields {
		raw[f] = []byte(v)
	}
	n, err := parsePartitionCount(raw)
	if err != nil {
		return 0, &statebackend.KeyError{Key: []byte(key), Op: "read", Err: err}
	}
	return n, nil
}

// sources reads where each source stands, and pushes its pending entries and
// commit frontiers.
func (r *cutReader) sources(refs []statebackend.SourceRef) ([]snapshot.Position, error) {
	var all []snapshot.Position
	frontiers := make(map[string]bool) // pushed already; false: there is none
	err := r.eachSource(refs, func(positions []snapshot.Position) error {
		for i := range positions {
			if err := r.pushSource(&positions[i], frontiers); err != nil {
				return err
			}
		}
		all = append(all, positions...)
		return nil
	})
	return all, err
}

// eachSource reads the positions of each source once.
func (r *cutReader) eachSource(refs []statebackend.SourceRef, fn func([]snapshot.Position) error) error {
	done := make(map[statebackend.SourceRef]bool)
	for _, ref := range refs {
		if done[ref] {
			continue
		}
		done[ref] = true
		n, err := r.partitions(ref.Topic)
		if err != nil {
			return err
		}
		positions, err := r.positions(ref, n)
		if err != nil {
			return err
		}
		if err := fn(positions); err != nil {
			return err
		}
	}
	return nil
}

// partitions is how many partitions a source has: what its meta hash tells
// or, where there is none, how many streams there are from 0 upward.
func (r *cutReader) partitions(topic string) (int, error) {
	meta := &keyInfo{name: []byte(sourceMetaKey(topic)), typ: snapshot.TypeHash}
	v, err := r.call(meta, "HGETALL")
	if err != nil {
		return 0, r.keyFailed(meta, err)
	}
	fields, err := fieldMap(v)
	if err != nil {
		return 0, r.keyFailed(meta, err)
	}
	n, err := parsePartitionCount(fields)
	if err != nil || n > 0 {
		return n, r.keyFailed(meta, err)
	}
	for ; n < keygroups.MaxMaxParallelism; n++ {
		stream := &keyInfo{name: []byte(streamKey(topic, n)), typ: snapshot.TypeOpaque}
		v, err := r.call(stream, "EXISTS")
		if err != nil {
			return 0, r.keyFailed(stream, err)
		}
		if v.Int == 0 {
			break
		}
	}
	return n, r.check()
}

// call asks one question about a key and reads the answer whole.
func (r *cutReader) call(k *keyInfo, command string, args ...string) (resp.Value, error) {
	if err := sendKey(r.conn, k.name, command, args...); err != nil {
		return resp.Value{}, err
	}
	if err := r.conn.Flush(); err != nil {
		return resp.Value{}, err
	}
	return r.conn.Reply(headLimit)
}

// positionsAhead is how many partitions are asked about at once.
const positionsAhead = 256

// positions reads where the group stands in each of n partitions.
func (r *cutReader) positions(ref statebackend.SourceRef, n int) ([]snapshot.Position, error) {
	all := make([]snapshot.Position, 0, n)
	for from := 0; from < n; from += positionsAhead {
		to := min(from+positionsAhead, n)
		for p := from; p < to; p++ {
			err := r.conn.Command("XINFO", "GROUPS", streamKey(ref.Topic, p))
			if err != nil {
				return nil, err
			}
		}
		if err := r.conn.Flush(); err != nil {
			return nil, err
		}
		for p := from; p < to; p++ {
			pos := snapshot.Position{Topic: ref.Topic, Group: ref.Group, Partition: p, Stream: streamKey(ref.Topic, p), Read: -1}
			if err := r.position(&pos); err != nil {
				return nil, r.keyFailed(&keyInfo{name: []byte(pos.Stream), typ: snapshot.TypeOpaque}, err)
			}
			all = append(all, pos)
		}
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// position reads the answer of XINFO GROUPS. A stream that is not there has
// no groups.
func (r *cutReader) position(pos *snapshot.Position) error {
	v, err := r.conn.Reply(headLimit)
	var reply *resp.Error
	if errors.As(err, &reply) && reply.Code == "ERR" && bytes.Contains([]byte(reply.Message), []byte("no such key")) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, group := range v.Array {
		fields := make(map[string]resp.Value)
		for i := 0; i+1 < len(group.Array); i += 2 {
			fields[group.Array[i].String()] = group.Array[i+1]
		}
		if fields["name"].String() != pos.Group {
			continue
		}
		pos.LastID = fields["last-delivered-id"].String()
		if _, _, ok := parseStreamID(pos.LastID); !ok {
			return fmt.Errorf("last delivered id of group %q is %.60q: want {ms}-{seq}", pos.Group, pos.LastID)
		}
		pos.Pending = uint64(max(fields["pending"].Int, 0))
		// Known from Redis 7.0 on, and there not always.
		if read, ok := fields["entries-read"]; ok && read.Kind == resp.Integer {
			pos.Read = read.Int
		}
	}
	return nil
}

// pushSource pushes the pending entries and the frontier of one position.
func (r *cutReader) pushSource(pos *snapshot.Position, frontiers map[string]bool) error {
	if pos.Pending > 0 {
		k := &keyInfo{name: PendingKey(pos.Stream, pos.Group), section: snapshot.SectionSource, typ: snapshot.TypeList}
		if err := r.pending(k, pos); err != nil {
			return r.keyFailed(&keyInfo{name: []byte(pos.Stream), typ: snapshot.TypeOpaque}, err)
		}
	}
	name := frontierName(pos.Topic, pos.Partition)
	there, pushed := frontiers[name]
	if !pushed {
		var err error
		if there, err = r.single(snapshot.SectionSource, name); err != nil {
			return err
		}
		frontiers[name] = there
	}
	pos.Frontier = there
	return nil
}

// pendingPage is how many pending entries one question asks for.
const pendingPage = 1000

// pending pushes the entries that the group was given and has not
// acknowledged.
func (r *cutReader) pending(k *keyInfo, pos *snapshot.Position) error {
	count := int64(pos.Pending)
	if err := r.begin(k, count); err != nil {
		return err
	}
	got, from := int64(0), "-"
	for got < count {
		if err := r.check(); err != nil {
			return err
		}
		page, err := r.pendingPage(pos, from)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, p := range page {
			item, err := EncodePending(p)
			if err != nil {
				return err
			}
			if err := r.sink.Element(snapshot.Element{Size: uint64(len(item)), Value: item}); err != nil {
				return err
			}
		}
		got += int64(len(page))
		from = "(" + page[len(page)-1].ID
	}
	return r.end(k, count, got)
}

// pendingPage reads up to pendingPage entries. The server tells how long ago
// each was delivered, so the moment is known to about a millisecond.
func (r *cutReader) pendingPage(pos *snapshot.Position, from string) ([]Pending, error) {
	if err := r.conn.Command("TIME"); err != nil {
		return nil, err
	}
	err := r.conn.Command("XPENDING", pos.Stream, pos.Group, from, "+", strconv.Itoa(pendingPage))
	if err != nil {
		return nil, err
	}
	if err := r.conn.Flush(); err != nil {
		return nil, err
	}
	now, err := replyTime(r.conn)
	if err != nil {
		return nil, err
	}
	v, err := r.conn.Reply(headLimit)
	if err != nil {
		return nil, err
	}
	page := make([]Pending, 0, len(v.Array))
	for _, entry := range v.Array {
		if len(entry.Array) != 4 {
			return nil, fmt.Errorf("a pending entry of %d parts, not 4", len(entry.Array))
		}
		page = append(page, Pending{
			ID: entry.Array[0].String(), Consumer: entry.Array[1].String(),
			DeliveredAt: max(now.UnixMilli()-entry.Array[2].Int, 0), Deliveries: entry.Array[3].Int,
		})
	}
	return page, nil
}
