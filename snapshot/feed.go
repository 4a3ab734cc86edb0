package snapshot

import (
	"context"
	"fmt"
)

// placed is a chunk and where the manifest names it.
type placed struct {
	ref          ChunkRef
	layer, index int
	last         bool // of its section in its layer
}

// placedOf lists the chunks of a layer (0: the base) whose section is wanted.
func placedOf(m *Manifest, layer int, wants func(Section) bool) []placed {
	var all []placed
	for i, ref := range m.layer(layer) {
		if !wants(ref.Section) {
			continue
		}
		if n := len(all); n > 0 {
			all[n-1].last = all[n-1].ref.Section != ref.Section
		}
		all = append(all, placed{ref: ref, layer: layer, index: i, last: true})
	}
	return all
}

// fetched is a chunk that was got and opened ahead.
type fetched struct {
	opened
	err error
}

// feed gets and opens the chunks of a list in order, one ahead, from another
// goroutine. Whoever made it calls stop.
type feed struct {
	src   ChunkSource
	all   []placed
	n     int // of the next chunk
	ahead chan fetched
	raw   [2][]byte // one is read while the other is filled
}

// peek gives the next chunk, unless there is none.
func (f *feed) peek() (placed, bool) {
	if f.n == len(f.all) {
		return placed{}, false
	}
	return f.all[f.n], true
}

// start gets the first chunk.
func (f *feed) start(ctx context.Context) {
	if f.n < len(f.all) {
		f.fetch(ctx)
	}
}

// next waits for the next chunk, which must be there, and gets the one after.
// What it gives is valid until the next call.
func (f *feed) next(ctx context.Context) (placed, fetched) {
	p, got := f.all[f.n], <-f.ahead
	f.ahead = nil
	f.raw[f.n%2] = got.raw[:0]
	f.n++
	if ctx.Err() == nil {
		f.start(ctx)
	}
	return p, got
}

// stop waits until the source isn't called any more; the context of next must
// have ended.
func (f *feed) stop() {
	if f.ahead != nil {
		<-f.ahead
	}
}

func (f *feed) fetch(ctx context.Context) {
	ahead := make(chan fetched, 1)
	f.ahead = ahead
	ref, buf, src := f.all[f.n].ref, f.raw[f.n%2], f.src
	go func() {
		o, err := openRef(ctx, src, ref, buf)
		if err != nil {
			o.raw = buf
		}
		ahead <- fetched{opened: o, err: err}
	}()
}

// openRef gets a chunk and checks that it is the one that the manifest names.
// Its stored size may differ: another version may have compressed the same
// content first.
func openRef(ctx context.Context, src ChunkSource, ref ChunkRef, buf []byte) (opened, error) {
	data, err := src.Chunk(ctx, ref.ID)
	if err != nil {
		return opened{}, fmt.Errorf("read it: %w", err)
	}
	got, raw, err := OpenChunk(data, buf)
	switch {
	case err != nil:
		return opened{}, err
	case got.ID != ref.ID:
		return opened{}, fmt.Errorf("the store gave chunk %s instead: %w", got.ID, ErrCorrupt)
	case got.Section != ref.Section || got.Raw != ref.Raw:
		return opened{}, fmt.Errorf("is of %s with %d raw bytes, the manifest says %s with %d: %w",
			got.Section, got.Raw, ref.Section, ref.Raw, ErrCorrupt)
	}
	return opened{raw: raw, version: data[4]}, nil
}
