package restore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/memory"
)

// choosy is a state store that refuses payloads, when it has been given some:
// at the proof, where a pipelined refusal comes at the latest.
type choosy struct {
	statebackend.Backend
	always   bool // also what comes in plain commands
	requests []statebackend.RestoreRequest
}

func (b *choosy) Stage(ctx context.Context, req statebackend.RestoreRequest) (statebackend.Staging, error) {
	b.requests = append(b.requests, req)
	s, err := b.Backend.Stage(ctx, req)
	return &choosyStage{s, !req.Plain || b.always}, err
}

type choosyStage struct {
	statebackend.Staging
	refuses bool
}

func (s *choosyStage) Prove(ctx context.Context) error {
	if s.refuses {
		return fmt.Errorf("%w: too long for the proxy", statebackend.ErrPayloadRefused)
	}
	return s.Staging.Prove(ctx)
}

func TestKeysThatAreRefusedAsPayloadsAreStagedAgainPlainly(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	m := w.take(t)
	want := w.live(t)
	w.dirty(t)
	b := &choosy{Backend: w.backend}
	exec := w.executor(w.store, w.store.Journal(), b)
	var phases []string
	res, err := exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true},
		func(phase string, _, _, _ uint64) { phases = append(phases, phase) })
	require.NoError(t, err, "never a failed restore")
	require.Equal(t, m.Checkpoint.Keys, res.Keys)
	require.Equal(t, m.Checkpoint.Elements, res.Elements, "counted once")
	require.Equal(t, uint64(1), res.Removed)
	told := 0
	for _, warning := range res.Warnings {
		if require.NotContains(t, warning, "journal"); len(warning) > 0 {
			told++
			require.Contains(t, warning, "plain commands")
			require.Contains(t, warning, "too long for the proxy")
		}
	}
	require.Equal(t, 1, told, "told once")
	require.Len(t, b.requests, 2)
	require.Equal(t, b.requests[0].ID, b.requests[1].ID)
	require.False(t, b.requests[0].Plain)
	require.True(t, b.requests[1].Plain)
	require.Equal(t, []string{PhaseVerify, PhaseStage, PhaseProve, PhaseStage, PhaseProve, PhaseFlip, PhaseClean}, slices.Compact(phases))
	requireState(t, want, w.live(t))
	w.noTraces(t)

	// A store that goes on refusing isn't asked for ever.
	w.dirty(t)
	before := w.live(t)
	b.always, b.requests = true, nil
	_, err = exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, AcceptSchema: true}, nil)
	require.ErrorIs(t, err, statebackend.ErrPayloadRefused)
	require.ErrorContains(t, err, "nothing was changed")
	require.Len(t, b.requests, 2)
	requireState(t, before, w.live(t))
	w.noTraces(t)
}

// The manifest counts keys that have expired since: where there is no room for
// all of them, a whole pass tells what is really needed.
func TestRoomIsAskedForWhatHasNotExpired(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.seed(t)
	short := w.job.Key().StateKey(w.scope(2), "short")
	for i := range 400 {
		w.put(t, short, "", cmd(statebackend.OpHSet, fmt.Sprintf("s:%d", i), fmt.Sprintf(`"a value of some length %d"`, i)))
	}
	w.expire(t, short, start.Add(time.Minute))
	m := w.take(t)
	for _, c := range []struct {
		limit uint64
		fits  bool
	}{{m.Checkpoint.Bytes + 10_000, true}, {m.Checkpoint.Bytes / 2, true}, {m.Checkpoint.Bytes / 8, false}} {
		tight := assemble(w.store, memory.New(memory.Options{Name: "main", Now: w.now.Now, Limit: c.limit}), w.now, w.job)
		w.now.at.Store(start.Add(2 * time.Minute).UnixMilli())
		res, err := tight.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Recovery: true}, nil)
		if !c.fits {
			require.ErrorIs(t, err, statebackend.ErrNoRoom)
			require.Equal(t, fault.Refused, fault.CodeOf(err))
			continue
		}
		require.NoError(t, err)
		require.Equal(t, uint64(1), res.Expired)
		require.Equal(t, m.Checkpoint.Keys-1, res.Keys)
	}
}

// counting tells how often each chunk is read.
type counting struct {
	snapshot.Store
	mu     sync.Mutex // chunks are fetched from another goroutine
	chunks map[snapshot.ChunkID]int
}

func (r *counting) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chunks[id]++
	return r.Store.Chunk(ctx, id)
}

// A restore reads the state once: the pass that stages it verifies it.
func TestARestoreReadsTheStateOnce(t *testing.T) {
	ctx := context.Background()
	for _, recovery := range []bool{false, true} {
		w := newWorld(t)
		w.seed(t)
		m := w.take(t)
		r := &counting{Store: w.store, chunks: map[snapshot.ChunkID]int{}}
		exec := w.executor(r, w.store.Journal(), w.backend)
		_, err := exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID, Recovery: recovery}, nil)
		require.NoError(t, err)
		for _, ref := range m.Chunks {
			want := 1
			if ref.Section == snapshot.SectionMeta && !recovery {
				want = 2 // the schemas are compared before anything is staged
			}
			require.Equal(t, want, r.chunks[ref.ID], "%s, recovery %t", ref.Section, recovery)
		}
	}
}

// What a restore is about to change is written down before the flip: a crash
// right after it has nobody else to ask.
func TestTheEntryHasTheNumbersBeforeTheFlip(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	m, _, _ := small(t, w)
	var entry *Entry
	_, err := w.exec.Run(ctx, Request{Job: w.job, Checkpoint: m.Checkpoint.ID}, func(phase string, _, _, _ uint64) {
		if phase == PhaseFlip {
			var err error
			entry, err = GetEntry(ctx, w.store.Journal(), w.job.Name)
			require.NoError(t, err)
		}
	})
	require.NoError(t, err)
	require.NotNil(t, entry)
	require.Equal(t, PhaseFlip, entry.Phase)
	require.Equal(t, m.Checkpoint.Keys, entry.Keys)
	require.Equal(t, m.Checkpoint.Elements, entry.Elements)
	require.Equal(t, uint64(1), entry.Removed)
}
