package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// askEntries is how many pending entries are asked about in one go.
const askEntries = 1024

// sources finds out what the positions of a checkpoint point at that the
// streams don't have any more. A stream is no state: a restore sets the
// position all the same, and says what is missing.
type sources struct {
	ctx       context.Context
	live      statebackend.Records
	positions []Position
	pending   map[string]int // name of the key of pending entries → position
	lost      []uint64       // of each position, pending entries whose record is gone
	unknown   error          // why it can't be told

	at  int // position of the key under way, -1 for none
	ids []string
}

func newSources(ctx context.Context, live statebackend.Records, positions []Position) *sources {
	s := &sources{ctx: ctx, live: live, positions: positions, pending: map[string]int{}, lost: make([]uint64, len(positions)), at: -1}
	for i, p := range positions {
		s.pending[pendingName(p)] = i
	}
	return s
}

// pendingName is the format's name for the key of a group's pending entries.
func pendingName(p Position) string {
	return fmt.Sprintf("pending\x00%d\x00%s%s", len(p.Stream), p.Stream, p.Group)
}

// begin looks whether a source key holds pending entries.
func (s *sources) begin(name []byte) {
	s.at = -1
	if i, ok := s.pending[string(name)]; ok {
		s.at = i
	}
}

// element takes a pending entry, whose item begins with its id and a space.
func (s *sources) element(e snapshot.Element) error {
	if s.at < 0 || s.unknown != nil {
		return nil
	}
	id, _, _ := bytes.Cut(e.Value[:min(len(e.Value), 64)], []byte{' '})
	s.ids = append(s.ids, string(id))
	if len(s.ids) < askEntries {
		return nil
	}
	return s.flush()
}

// flush asks for the entries that are gathered, at a key's end too.
func (s *sources) flush() error {
	if len(s.ids) == 0 {
		return nil
	}
	now, err := s.ask([]statebackend.StreamAsk{{Stream: s.positions[s.at].Stream, IDs: s.ids}})
	s.ids = s.ids[:0]
	if err != nil || now == nil {
		return err
	}
	s.lost[s.at] += now[0].Gone
	return nil
}

// ask gives nil when it can't be told.
func (s *sources) ask(asks []statebackend.StreamAsk) ([]statebackend.StreamNow, error) {
	now, err := s.live.Streams(s.ctx, asks)
	if errors.Is(err, statebackend.ErrPermission) || errors.Is(err, statebackend.ErrUnsupported) {
		s.unknown = err
		return nil, nil
	}
	if err == nil && len(now) != len(asks) {
		err = fmt.Errorf("%d answers about %d streams", len(now), len(asks))
	}
	return now, Fault(err, fault.Failed, "look at the streams of the sources")
}

// warnings are about the records behind the positions, and apart from them
// about the pending entries: of these the flip knows the exact numbers.
func (s *sources) warnings() (records, pending []string, err error) {
	if s == nil || len(s.positions) == 0 {
		return nil, nil, nil
	}
	asks := make([]statebackend.StreamAsk, len(s.positions))
	for i, p := range s.positions {
		asks[i].Stream = p.Stream
	}
	var now []statebackend.StreamNow
	if s.unknown == nil {
		if now, err = s.ask(asks); err != nil {
			return nil, nil, err
		}
	}
	if s.unknown != nil {
		return []string{"whether the streams still hold what the positions point at can't be told: " + s.unknown.Error()}, nil, nil
	}
	for i, p := range s.positions {
		if w := missingRecords(p, now[i]); w != "" {
			records = append(records, w)
		}
		if s.lost[i] > 0 {
			pending = append(pending, lostPending(p.Stream, p.Group, s.lost[i]))
		}
	}
	return records, pending, nil
}

func lostPending(stream, group string, n uint64) string {
	return fmt.Sprintf("stream %q, group %q: %d pending entries of the checkpoint can't be put back: the stream doesn't have them any more",
		stream, group, n)
}

// missingRecords says whether records that come after a position have left the
// stream, "" when none have: then the job would go on without them.
//
// The stream's first entry is behind the position when everything up to it was
// removed. Whether more was removed is known where the server counts: entries
// that ever were, less those read at the position, are those that should be
// there.
func missingRecords(p Position, now statebackend.StreamNow) string {
	at := fmt.Sprintf("stream %q, group %q: the checkpoint stands at %s", p.Stream, p.Group, p.LastID)
	read := p.Read
	if p.LastID == "0-0" {
		read = 0
	}
	switch {
	case p.LastID == "":
		return ""
	case !now.Exists && read == 0:
		return ""
	case !now.Exists:
		return at + ", and the stream is not there any more"
	case idBefore(now.Last, p.LastID):
		return fmt.Sprintf("%s, beyond the stream's end, %s: it was made anew, or lost its newest records", at, now.Last)
	case !idBefore(p.LastID, now.Last) || now.First != "" && !idBefore(p.LastID, now.First):
		return ""
	}
	has := "the stream is empty"
	if now.First != "" {
		has = "the stream begins at " + now.First
	}
	should := now.Added - read
	if now.Added < 0 || read < 0 || should < 0 {
		return fmt.Sprintf("%s, and %s: records in between may be missing", at, has)
	}
	if missing := should - int64(now.Length); missing > 0 {
		return fmt.Sprintf("%s, and %s: %d records in between are missing", at, has, missing)
	}
	return ""
}

// idBefore compares ids of stream entries, {ms}-{seq}. What isn't one is
// before nothing.
func idBefore(a, b string) bool {
	am, as, ok := parseID(a)
	bm, bs, ok2 := parseID(b)
	return ok && ok2 && (am < bm || am == bm && as < bs)
}

func parseID(id string) (ms, seq uint64, ok bool) {
	left, right, _ := strings.Cut(id, "-")
	ms, err := strconv.ParseUint(left, 10, 64)
	seq, err2 := strconv.ParseUint(right, 10, 64)
	return ms, seq, err == nil && err2 == nil
}
