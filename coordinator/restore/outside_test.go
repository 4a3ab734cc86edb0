package restore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// text reads a string key, "" when there is none.
func (w *world) text(t tb, key string) string {
	t.Helper()
	r, err := w.backend.Do(context.Background(), statebackend.Command(statebackend.OpGet, key))
	require.NoError(t, err)
	return string(r[0].Bytes)
}

func (w *world) indexNames(t tb) []string {
	t.Helper()
	var all []string
	require.NoError(t, w.backend.Index(context.Background(), w.job.Key(), func(name []byte) error {
		all = append(all, string(name))
		return nil
	}))
	slices.Sort(all)
	return all
}

func TestNamesOutsideTheRootAreLeftAsTheyAreI3(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	own := w.live(t)
	w.put(t, "elsewhere:k", "", cmd(statebackend.OpSet, "then"))
	w.put(t, "elsewhere:gone", "", cmd(statebackend.OpSet, "then"))
	index := w.job.Key().Index()
	w.do(t, statebackend.Command(statebackend.OpSAdd, index, index, w.job.Key().Record()))
	listed := w.indexNames(t)
	m := w.take(t)

	w.do(t, statebackend.Command(statebackend.OpSet, "elsewhere:k", "now"), statebackend.Command(statebackend.OpDel, "elsewhere:gone"),
		statebackend.Command(statebackend.OpSet, "elsewhere:later", "now"), statebackend.Command(statebackend.OpSAdd, index, "elsewhere:later"),
		statebackend.Command(statebackend.OpSRem, index, "elsewhere:k"))
	w.put(t, w.job.Key().StateKey(w.scope(1), "later"), "", cmd(statebackend.OpHSet, "f", "v"))
	plan, err := w.exec.Plan(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 5, plan.Foreign, "four of the checkpoint, one of the live index")
	require.EqualValues(t, 1, plan.Removed)
	require.Equal(t, m.Checkpoint.Keys-4, plan.Keys)
	require.Len(t, plan.Warnings, 1)
	require.Contains(t, plan.Warnings[0], "names outside the job's root are left as they are")
	require.Contains(t, plan.Warnings[0], " and 2 more;")

	res, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, plan.Warnings, res.Warnings)
	require.Equal(t, plan.Foreign, res.Foreign)
	require.Equal(t, plan.Keys, res.Keys)
	require.EqualValues(t, 1, res.Removed)
	require.Equal(t, []string{"now", "", "now"}, []string{w.text(t, "elsewhere:k"), w.text(t, "elsewhere:gone"), w.text(t, "elsewhere:later")})
	require.Equal(t, listed, w.indexNames(t), "the index is the checkpoint's")
	after := w.live(t)
	maps.DeleteFunc(after, func(name, _ string) bool { _, was := own[name]; return !was })
	requireState(t, own, after)
}

func TestAsKeepsForeignNamesForeign(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	target := testJob("fresh")
	mine := target.Key().StateKey(w.scope(2), "mine")
	w.put(t, "elsewhere:k", "", cmd(statebackend.OpSet, "then"))
	w.put(t, mine, "", cmd(statebackend.OpSet, "of the other job")) // listed by flights, under the root of fresh
	w.do(t, statebackend.Command(statebackend.OpSAdd, w.job.Key().Index(), w.job.Key().Registry()))
	m := w.take(t)
	w.do(t, statebackend.Command(statebackend.OpSet, "elsewhere:k", "now"), statebackend.Command(statebackend.OpSet, mine, "changed"))
	b := w.as(target)
	plan, err := b.exec.Plan(ctx, Request{Job: b.job, From: "flights", As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, plan.Foreign, "elsewhere, and the registry under the new root")
	require.Len(t, plan.Warnings, 2)
	require.Contains(t, plan.Warnings[1], fmt.Sprintf("%q", mine))
	res, err := b.exec.Run(ctx, Request{Job: b.job, From: "flights", As: true, Checkpoint: m.Checkpoint.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, plan.Warnings, res.Warnings)
	require.Equal(t, []string{"now", "changed"}, []string{w.text(t, "elsewhere:k"), w.text(t, mine)})
	names := b.indexNames(t)
	require.Contains(t, names, "elsewhere:k")
	require.Contains(t, names, target.Key().Registry())
	require.NotContains(t, names, mine)
	require.Len(t, names, len(w.indexNames(t))-1)
	b.noTraces(t)
}

// TestAForeignPayloadDoesNotHinderARestore: what isn't restored need not be
// readable by the live server.
func TestAForeignPayloadDoesNotHinderARestore(t *testing.T) {
	job := statebackend.Job{Prefix: "p", Name: "a"}
	for name, refused := range map[string]bool{"p:b:stream": false, "p:a:stream": true} {
		s := &scan{job: job, live: snapshot.ServerInfo{Version: "7.0.15"}, names: newNameSet(1), rows: newRows(job, &snapshot.Manifest{})}
		err := s.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name), Type: snapshot.TypeOpaque, Server: "8.0.1"})
		require.Equal(t, refused, err != nil, "%v", err)
	}
}
