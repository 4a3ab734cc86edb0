package snapshot

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// hanging answers from the k-th chunk on only when its context ends.
type hanging struct {
	*saved
	left    int
	waiting chan struct{}
}

func (h *hanging) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	if h.left--; h.left < 0 {
		close(h.waiting)
		<-ctx.Done()
		return nil, fmt.Errorf("chunk %s: %w", id, ctx.Err())
	}
	return h.saved.Chunk(ctx, id)
}

func TestAWalkDoesNotOutliveItsContextOrItsSink(t *testing.T) {
	s := smallOnes(t)
	for k := range len(s.m.Chunks) {
		c, cancel := context.WithCancel(ctx)
		h := &hanging{saved: s, left: k, waiting: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- Walk(c, h, s.m, nil) }()
		<-h.waiting
		cancel()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ErrCorrupt)
	}
	// The chunk ahead hangs when the sink gives up: the walk takes it back.
	h := &hanging{saved: s, left: 1, waiting: make(chan struct{})}
	bad := errors.New("no room")
	require.Equal(t, bad, Walk(ctx, h, s.m, sinkFunc(func() error { return bad })))
}

// aheadSource notes in which order chunks are asked for.
type aheadSource struct {
	*saved
	asked []ChunkID
}

func (a *aheadSource) Chunk(ctx context.Context, id ChunkID) ([]byte, error) {
	a.asked = append(a.asked, id)
	return a.saved.Chunk(ctx, id)
}

func TestAWalkReadsOnlyTheSectionsThatAreNamed(t *testing.T) {
	s := smallOnes(t)
	a := &aheadSource{saved: s}
	var r Recorder
	require.NoError(t, Walk(ctx, a, s.m, &r, SectionSource, SectionOperator))
	var want []ChunkID
	for _, ref := range s.m.Chunks {
		if ref.Section == SectionOperator || ref.Section == SectionSource {
			want = append(want, ref.ID)
		}
	}
	require.Equal(t, want, a.asked, "each once, in the manifest's order")
	require.Len(t, r.Keys, 2)
	require.Equal(t, SectionOperator, r.Keys[0].Key.Section)

	// What isn't read isn't missed, and the totals aren't compared.
	for _, ref := range s.m.Chunks {
		if ref.Section == SectionKeyed {
			s.Remove(ref.ID)
		}
	}
	require.NoError(t, Walk(ctx, s, s.m, nil, SectionOperator, SectionMeta, SectionSource))
	require.ErrorIs(t, Walk(ctx, s, s.m, nil, SectionKeyed), ErrNoChunk)
}

func TestManyWalksAtOnce(t *testing.T) {
	s := encode(t, 2000, goldenKeys())
	want := bySection(t, goldenKeys())
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			var r Recorder
			if err := Walk(ctx, s, s.m, &r); err != nil {
				t.Error(err)
			}
			if diff := DiffKeys(want, r.Keys); len(diff) > 0 {
				t.Error(diff)
			}
		})
	}
	wg.Wait()
	verified(t, s)
}

// The sink may overwrite what it gets, and what it gets is gone afterwards:
// neither harms the walk.
func TestASinkThatScribblesHarmsNobody(t *testing.T) {
	s := encode(t, 300, oddKeys())
	scribble := func(b []byte) {
		for i := range b {
			b[i] = '!'
		}
	}
	var r Recorder
	require.NoError(t, Walk(ctx, s, s.m, Tee(&r, scribbler(scribble))))
	same(t, bySection(t, oddKeys()), r.Keys)
	verified(t, s)
}

type scribbler func([]byte)

func (f scribbler) BeginKey(k Key) error { f(k.Name); return nil }
func (f scribbler) Element(e Element) error {
	f(e.Field)
	f(e.Value)
	return nil
}
func (f scribbler) Part(b []byte) error { f(b); return nil }
func (scribbler) EndKey(KeyEnd) error   { return nil }

func TestErrorsNameChunkKeyAndOffset(t *testing.T) {
	raw := rawItem(rawKey(TypeList, "job:l\xff", 5), "x")
	at := len(raw)
	s := forge(t, append(raw, 99))
	err := Walk(ctx, s, s.m, nil)
	var c *ChunkError
	require.ErrorAs(t, err, &c)
	require.Equal(t, "job:l\xff", string(c.Key))
	require.Equal(t, at, c.Offset)
	require.ErrorContains(t, err, s.m.Chunks[0].ID.String())
	require.ErrorContains(t, err, fmt.Sprintf(`(keyed, %s): in key "job:l\xff": at byte %d: corrupt: unknown frame kind 99`, c.ID, at))
}

func TestAWalkRefusesAListOfChunksThatCannotBe(t *testing.T) {
	s := smallOnes(t)
	for text, change := range map[string]func(m *Manifest){
		"unknown section(0)":    func(m *Manifest) { m.Chunks[0].Section = 0 },
		"unknown section(200)":  func(m *Manifest) { m.Chunks[len(m.Chunks)-1].Section = 200 },
		"keyed after operator":  func(m *Manifest) { m.Chunks[0].Section = SectionOperator },
		"raw bytes: want":       func(m *Manifest) { m.Chunks[0].Raw = 1 << 60 },
		"the manifest says key": func(m *Manifest) { m.Chunks[0].Raw++ },
	} {
		m := *s.m
		m.Chunks = append([]ChunkRef(nil), s.m.Chunks...)
		change(&m)
		err := Walk(ctx, s, &m, nil)
		require.ErrorIs(t, err, ErrCorrupt, text)
		require.ErrorContains(t, err, text)
		problems, err := Verify(ctx, s, &m)
		require.NoError(t, err)
		require.Contains(t, lines(problems), text)
	}
	verified(t, s)
}
