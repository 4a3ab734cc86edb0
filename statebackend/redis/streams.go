package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// idsAtOnce is how many entries are asked for in one go. Their content comes
// along, and is passed over.
const idsAtOnce = 128

// Streams tells what streams hold, as [statebackend.Records] says. It needs the
// rights +xinfo|stream and, when entries are asked for, +xrange.
func (b *Backend) Streams(ctx context.Context, asks []statebackend.StreamAsk) ([]statebackend.StreamNow, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // every reply was read, or the call failed
	defer conn.Bind(ctx)()
	all := make([]statebackend.StreamNow, 0, len(asks))
	for _, ask := range asks {
		now, err := streamNow(conn, ask)
		if err != nil {
			return nil, &statebackend.KeyError{Key: []byte(ask.Stream), Op: "look at", Err: b.mapError(err, "stream")}
		}
		all = append(all, now)
	}
	return all, nil
}

func streamNow(conn *resp.Conn, ask statebackend.StreamAsk) (statebackend.StreamNow, error) {
	now := statebackend.StreamNow{Added: -1}
	v, err := conn.Call(headLimit, "XINFO", "STREAM", ask.Stream)
	var reply *resp.Error
	if errors.As(err, &reply) && reply.Code == "ERR" && strings.Contains(reply.Message, "no such key") {
		now.Gone = uint64(len(ask.IDs))
		return now, nil
	}
	if err != nil {
		return now, err
	}
	if err := readStreamInfo(&now, v); err != nil {
		return now, err
	}
	for from := 0; from < len(ask.IDs); from += idsAtOnce {
		gone, err := goneEntries(conn, ask.Stream, ask.IDs[from:min(from+idsAtOnce, len(ask.IDs))])
		if err != nil {
			return now, err
		}
		now.Gone += gone
	}
	return now, nil
}

// readStreamInfo takes over the answer of XINFO STREAM.
func readStreamInfo(now *statebackend.StreamNow, v resp.Value) error {
	fields := make(map[string]resp.Value, len(v.Array)/2)
	for i := 0; i+1 < len(v.Array); i += 2 {
		fields[v.Array[i].String()] = v.Array[i+1]
	}
	now.Exists, now.Length = true, uint64(max(fields["length"].Int, 0))
	now.Last = fields["last-generated-id"].String()
	if first := fields["first-entry"]; now.Length > 0 && len(first.Array) > 0 {
		now.First = first.Array[0].String()
	}
	if added, ok := fields["entries-added"]; ok {
		now.Added = added.Int
	}
	for _, id := range []string{now.First, now.Last} {
		if _, _, ok := parseStreamID(id); !ok && id != "" {
			return fmt.Errorf("XINFO STREAM tells the id %.60q: want {ms}-{seq}", id)
		}
	}
	return nil
}

// goneEntries counts the ids that the stream doesn't have.
func goneEntries(conn *resp.Conn, stream string, ids []string) (gone uint64, err error) {
	for _, id := range ids {
		if err := conn.Command("XRANGE", stream, id, id, "COUNT", "1"); err != nil {
			return 0, err
		}
	}
	if err := conn.Flush(); err != nil {
		return 0, err
	}
	var refused error
	for range ids {
		h, err := conn.Next()
		switch {
		case err != nil:
			return 0, err
		case h.Err != nil:
			refused = h.Err
			continue
		case h.Kind != resp.Array:
			return 0, fmt.Errorf("%w: %s where entries were to come", resp.ErrProtocol, h.Kind)
		case h.Len <= 0:
			gone++
		}
		for range h.Len {
			if err := conn.SkipReply(); err != nil {
				return 0, err
			}
		}
	}
	return gone, refused
}
