package main

import (
	"fmt"
	"io"
	"strings"

	"keyframe/snapshot"
)

// showHow says how a completed checkpoint was read: what of the state, by which
// tracking, and why no better.
func showHow(w io.Writer, c snapshot.Checkpoint) {
	switch {
	case c.Incremental:
		line(w, "read", "incremental: what had changed since checkpoint %d", c.Parent)
	case c.FullReason != "":
		line(w, "read", "all: %s", sentence(c.FullReason))
	default:
		line(w, "read", "all")
	}
	if c.Tracking != "" {
		rounds := ""
		if c.Rounds > 0 {
			rounds = ", " + number(c.Rounds, "round") + " before the pause"
		}
		line(w, "tracking", "by %s%s", c.Tracking, rounds)
	}
	if c.GradeReason != "" {
		line(w, "no better", "%s", sentence(c.GradeReason))
	}
	if len(c.Hot) > 0 {
		line(w, "hot keys", "%s", hot(c.Hot))
	}
}

// hot names the keys that were read inside the pause, the hottest first.
func hot(keys []snapshot.HotKey) string {
	var all []string
	for _, k := range keys {
		all = append(all, fmt.Sprintf("%s (%s elements)", quoted(k.Key), count(k.Elements)))
	}
	return strings.Join(all, ", ")
}

// verdict says what a comparison with what tracking believed came to. One that
// found a difference has failed the checkpoint.
func verdict(c snapshot.Checkpoint) string {
	if c.SelfChecked {
		return fmt.Sprintf("compared with checkpoint %d: what tracking believed was right for every key", c.Parent)
	}
	return "not compared: " + sentence(c.FullReason)
}

// extent is what a completed checkpoint read, for a table.
func extent(c snapshot.Checkpoint) string {
	switch {
	case c.State != snapshot.StateCompleted:
		return ""
	case c.Incremental:
		return "changes"
	case c.SelfChecked:
		return "all, checked"
	}
	return "all"
}

// about stands before a size that is estimated.
func about(c snapshot.Checkpoint) string {
	if c.BytesEstimated {
		return "about "
	}
	return ""
}

// layers is how many layers a restore reads.
func layers(n int) string {
	if n <= 1 {
		return "1 layer"
	}
	return fmt.Sprintf("%d layers", n)
}
