package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"keyframe/snapshot"
)

// chunksGroup measures encoding into chunks and decoding, without any store.
func chunksGroup(ctx context.Context, o Options, r *Report) error {
	fmt.Fprintln(o.verbose, "chunks")
	hash := newBigHash(200_000 / o.Scale)
	kept := &snapshot.MemChunks{}
	sum, err := hash.encode(ctx, kept)
	if err != nil {
		return err
	}
	m := &snapshot.Manifest{Format: snapshot.FormatVersion, Chunks: sum.Chunks, Checkpoint: snapshot.Checkpoint{
		Keys: sum.Keys, Elements: sum.Elements, Bytes: sum.Bytes, StoredBytes: sum.Fresh, FullBytes: sum.Stored}}
	for _, what := range []struct {
		name string
		run  func() error
	}{
		{"chunk encoding", func() error { _, err := hash.encode(ctx, discard{}); return err }},
		{"chunk decoding", func() error { return snapshot.Walk(ctx, kept, m, &counting{}) }},
	} {
		var speeds, allocs []float64
		for range o.Pairs {
			took, mallocs, err := repeat(time.Second/time.Duration(o.Scale), what.run)
			if err != nil {
				return fmt.Errorf("%s: %w", what.name, err)
			}
			speeds = append(speeds, float64(sum.Bytes)/1e6/took.Seconds())
			allocs = append(allocs, mallocs/float64(hash.fields())*1000)
		}
		note := fmt.Sprintf("one hash of %d fields; logical bytes", hash.fields())
		r.add("chunks", Figure{Name: what.name, Unit: "MB/s", Note: note}.measured(speeds, limits{}))
		r.add("chunks", Figure{Name: what.name + ", allocations per 1,000 elements", Note: note}.measured(allocs, limits{}))
	}
	return nil
}

// repeat runs fn for that time at least, and gives the mean time and the mean
// number of allocations of one call.
func repeat(least time.Duration, fn func() error) (took time.Duration, allocs float64, err error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began, n := time.Now(), 0
	for n == 0 || time.Since(began) < least {
		if err := fn(); err != nil {
			return 0, 0, err
		}
		n++
	}
	took = time.Since(began) / time.Duration(n)
	runtime.ReadMemStats(&after)
	return took, float64(after.Mallocs-before.Mallocs) / float64(n), nil
}

// bigHash is a hash in memory, so that making its bytes isn't measured.
type bigHash struct{ names, values [][]byte }

func newBigHash(fields int) *bigHash {
	h := &bigHash{}
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range fields {
		h.names, h.values = append(h.names, field(nil, i)), append(h.values, value(nil, rnd))
	}
	return h
}

func (h *bigHash) fields() int { return len(h.names) }

func (h *bigHash) encode(ctx context.Context, w snapshot.ChunkWriter) (snapshot.Summary, error) {
	enc := snapshot.NewEncoder(ctx, w, snapshot.EncoderOptions{})
	k := snapshot.Key{Section: snapshot.SectionKeyed, Type: snapshot.TypeHash, Name: []byte("big"), Count: uint64(h.fields())}
	if err := enc.BeginKey(k); err != nil {
		return snapshot.Summary{}, err
	}
	for i, name := range h.names {
		v := h.values[i]
		if err := enc.Element(snapshot.Element{Field: name, Size: uint64(len(v)), Value: v}); err != nil {
			return snapshot.Summary{}, err
		}
	}
	if err := enc.EndKey(snapshot.KeyEnd{}); err != nil {
		return snapshot.Summary{}, err
	}
	return enc.Close()
}

// discard takes chunks and keeps none.
type discard struct{}

func (discard) WriteChunk(context.Context, snapshot.Chunk) (bool, error) { return true, nil }

// counting is a sink that only counts.
type counting struct{ keys, elements, bytes int }

var (
	_ snapshot.LayerSink = (*counting)(nil)
	_ snapshot.RunSink   = (*counting)(nil)
)

func (c *counting) BeginKey(snapshot.Key) error { c.keys++; return nil }
func (c *counting) Element(e snapshot.Element) error {
	c.elements++
	c.bytes += len(e.Field) + len(e.Value)
	return nil
}
func (c *counting) Elements(run []snapshot.Element) error {
	for i := range run {
		_ = c.Element(run[i]) // it never fails
	}
	return nil
}
func (c *counting) NextLayer() error             { return nil }
func (c *counting) Part(b []byte) error          { c.bytes += len(b); return nil }
func (c *counting) EndKey(snapshot.KeyEnd) error { return nil }
