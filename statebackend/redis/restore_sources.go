package redis

import (
	"errors"
	"fmt"
	"strconv"

	"keyframe/snapshot"
)

// frontierName is the hash of a partition's commit frontier.
func frontierName(topic string, partition int) string {
	return "streaming:mq:commit:" + topic + ":p:" + strconv.Itoa(partition)
}

func checkPositions(positions []snapshot.Position) error {
	for _, p := range positions {
		if p.Stream == "" || p.Group == "" {
			return fmt.Errorf("position of topic %q, partition %d: stream %q and group %q must not be empty", p.Topic, p.Partition, p.Stream, p.Group)
		}
		if _, _, ok := parseStreamID(p.LastID); !ok && p.LastID != "" {
			return fmt.Errorf("position of group %q in stream %q: last delivered id %q: want {ms}-{seq}", p.Group, p.Stream, p.LastID)
		}
		if p.Read < -1 {
			return fmt.Errorf("position of group %q in stream %q: %d entries read", p.Group, p.Stream, p.Read)
		}
	}
	return nil
}

// checkSourceKey accepts what the request has a position for: the pending
// entries of its group and the commit frontier of its partition.
func (s *staging) checkSourceKey(k snapshot.Key) error {
	if len(s.req.Positions) == 0 || k.Type == snapshot.TypeMissing {
		return nil
	}
	stream, group, pending := ParsePendingKey(k.Name)
	for _, p := range s.req.Positions {
		switch {
		case pending && p.Stream == stream && p.Group == group:
			if k.Type != snapshot.TypeList {
				return fmt.Errorf("pending entries as a %s: want a list", k.Type)
			}
			if p.LastID == "" {
				return errors.New("pending entries of a group that doesn't exist in the checkpoint")
			}
			return nil
		case !pending && string(k.Name) == frontierName(p.Topic, p.Partition):
			return nil
		}
	}
	return errors.New("a source key that belongs to no position of the checkpoint")
}

// checkPendingItem makes sure that the flip's script can read an item.
func checkPendingItem(k snapshot.Key, e snapshot.Element) error {
	if k.Section != snapshot.SectionSource {
		return nil
	}
	if _, _, ok := ParsePendingKey(k.Name); !ok {
		return nil
	}
	if e.Size != uint64(len(e.Value)) {
		return fmt.Errorf("pending entry of %d bytes", e.Size)
	}
	_, err := DecodePending(e.Value)
	return err
}

// positionWords are the flip's arguments for one position: stream, group, last
// id ("" for none), entries read ("" when the server wouldn't take it), the
// staged list of pending entries and the frontier to remove ("" for none).
func (s *staging) positionWords() []string {
	var words []string
	for _, p := range s.req.Positions {
		read, pending, frontier := "", "", ""
		if p.Read >= 0 && versionAtLeast(s.version, 7) {
			read = strconv.FormatInt(p.Read, 10)
		}
		if n, ok := s.sources[string(PendingKey(p.Stream, p.Group))]; ok {
			pending = string(numbered(s.prefix+stageKeys, n))
		}
		if name := frontierName(p.Topic, p.Partition); s.notStaged(name) {
			frontier = name
		}
		words = append(words, p.Stream, p.Group, p.LastID, read, pending, frontier)
	}
	return words
}

func (s *staging) notStaged(name string) bool {
	_, ok := s.sources[name]
	return !ok
}
