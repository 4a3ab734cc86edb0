package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/snapshot"
)

// TestAShrunkenCheckpointSaysSoWhenItIsTaken, with the numbers and the remedy.
func TestAShrunkenCheckpointSaysSoWhenItIsTaken(t *testing.T) {
	cp := snapshot.Checkpoint{ID: 4, Job: "flights", State: snapshot.StateCompleted, Kind: snapshot.KindCheckpoint, Keys: 120,
		Shrunk: &snapshot.Shrunk{Base: 3, KeysBefore: 130, KeysAfter: 120, ElementsBefore: 3000, ElementsAfter: 1100}}
	var out bytes.Buffer
	showTaken(&out, cp, false)
	require.Contains(t, out.String(), "\nSHRUNK: it is far smaller than the one before: 120 keys and 1100 elements, checkpoint 3 had 130 and 3000\n")
	require.Contains(t, out.String(), "`coordinator checkpoint accept flights 4`")
	accepted := *cp.Shrunk
	accepted.Accepted = true
	fine := cp
	fine.Shrunk = &accepted
	out.Reset()
	showTaken(&out, fine, false)
	require.NotContains(t, out.String(), "SHRUNK")

	j := api.Job{Last: &cp, Good: &cp, Recovers: 3, Head: 4}
	out.Reset()
	showLast(&out, j, noon)
	require.Contains(t, out.String(), "of lost state would restore checkpoint 3; checkpoint 4 is newer, but far smaller (120 keys and 1100 elements, checkpoint 3 had 130 and 3000) and not accepted\n")
	j = api.Job{Last: &fine, Good: &fine, Recovers: 4, Head: 4}
	out.Reset()
	showLast(&out, j, noon)
	require.Contains(t, out.String(), "of lost state would restore checkpoint 4\n")
}
