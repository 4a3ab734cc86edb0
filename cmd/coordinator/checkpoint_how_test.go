package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/api"
	"keyframe/keygroups"
	"keyframe/snapshot"
)

func TestShowSaysHowACheckpointWasRead(t *testing.T) {
	at := time.Date(2026, 4, 5, 6, 7, 8, 0, time.UTC)
	d := api.Detail{Checkpoint: snapshot.Checkpoint{
		ID: 41, Job: "flights", Kind: snapshot.KindCheckpoint, State: snapshot.StateCompleted, Grade: snapshot.GradePrecopy, StartedAt: at, CompletedAt: &at,
		StallMs: 61.5, Keys: 11, Elements: 222, Bytes: 3333, StoredBytes: 444, FullBytes: 5555, Parent: 40,
		Incremental: true, Tracking: "keys", GradeReason: "tracking by fields needs the right to PSYNC", Rounds: 3, Layers: 5, BytesEstimated: true,
		Hot: []snapshot.HotKey{{Key: "a\nb", Elements: 1234}, {Key: "c", Elements: 7}},
	}, CutAt: &at, Identity: &snapshot.Identity{Server: "redis://h/0"}, KeyGroups: &keygroups.Rule{Hash: keygroups.HashJava}, Chunks: 6, Format: 2}
	var b strings.Builder
	showDetail(&b, d, at)
	for _, line := range []string{
		"cut              grade precopy at ",
		"read             incremental: what had changed since checkpoint 40\n",
		"tracking         by keys, 3 rounds before the pause\n",
		"no better        tracking by fields needs the right to PSYNC\n",
		`hot keys         "a\nb" (1,234 elements), c (7 elements)` + "\n",
		"holds            11 keys, 222 elements, about 3.3 KiB; 0 ",
		"stored           444 B new, 5.4 KiB in 6 chunks in all, 5 layers, format 2\n",
	} {
		require.Contains(t, b.String(), line)
	}
	// The remedy stands at the end of a reason, however long that is.
	d.GradeReason = strings.Repeat("tracking by fields is denied; ", 20) + "grant +psync +replconf"
	d.Incremental, d.FullReason = false, "tracking was lost"
	b.Reset()
	showDetail(&b, d, at)
	require.Contains(t, b.String(), "read             all: tracking was lost\n")
	require.Contains(t, b.String(), "grant +psync +replconf\n")
}

func TestExtentAndVerdict(t *testing.T) {
	done := snapshot.Checkpoint{State: snapshot.StateCompleted, Parent: 7}
	require.Equal(t, "all", extent(done))
	checked := done
	checked.SelfChecked = true
	require.Equal(t, "all, checked", extent(checked))
	require.Contains(t, verdict(checked), "compared with checkpoint 7")
	done.FullReason = "grade paused reads everything"
	require.Equal(t, "not compared: grade paused reads everything", verdict(done))
	done.Incremental = true
	require.Equal(t, "changes", extent(done))
	require.Empty(t, extent(snapshot.Checkpoint{State: snapshot.StateFailed}))
	require.Equal(t, "1 layer", layers(0))
	require.Equal(t, "2 layers", layers(2))
}
