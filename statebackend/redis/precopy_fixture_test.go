package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// series is a line of checkpoints of one job, kept in memory: what a cut
// pushes is encoded, stacked and merged by the real code.
type series struct {
	b        *Backend
	chunks   snapshot.MemChunks
	manifest *snapshot.Manifest // of the last checkpoint that was committed
	token    string
}

// cutSink encodes a cut in layers. The encoder is made with the first call,
// which tells whether the cut stands on an earlier one.
type cutSink struct {
	snapshot.LayerSink
	s       *series
	enc     *snapshot.Encoder
	over    bool
	loose   int // keys that were
	patches int
	layers  int
	each    func(k snapshot.Key)
}

func (c *cutSink) start(over bool) {
	if c.enc == nil {
		c.over = over
		c.enc = snapshot.NewEncoder(context.Background(), &c.s.chunks, snapshot.EncoderOptions{Over: over, ChunkTarget: 64 << 10})
		c.LayerSink = c.enc
	}
}

func (c *cutSink) BeginKey(k snapshot.Key) error {
	c.start(false)
	if k.Loose {
		c.loose++
	}
	if k.Op == snapshot.OpPatch {
		c.patches++
	}
	if c.each != nil {
		c.each(k)
	}
	return c.enc.BeginKey(k)
}

func (c *cutSink) NextLayer() error {
	if c.enc == nil {
		c.start(true)
		return nil
	}
	c.layers++
	return c.enc.NextLayer()
}

// cut makes a cut over the series' last one and doesn't commit it.
func (s *series) cut(t testing.TB, req statebackend.CutRequest) (statebackend.Cut, *cutSink) {
	t.Helper()
	cut, sink, err := s.try(t, req)
	require.NoError(t, err)
	return cut, sink
}

func (s *series) try(t testing.TB, req statebackend.CutRequest) (statebackend.Cut, *cutSink, error) {
	t.Helper()
	sink := &cutSink{s: s}
	if s.manifest != nil && req.Since == "" {
		req.Since = s.token
	}
	cut, err := s.b.Cut(t.Context(), req, sink)
	if err == nil {
		sink.start(false)
		require.Equal(t, sink.over, cut.Incremental)
	}
	return cut, sink, err
}

// commit makes the cut the series' last one.
func (s *series) commit(t testing.TB, cut statebackend.Cut, sink *cutSink) {
	t.Helper()
	s.manifest, s.token = s.stack(t, sink), cut.Token
}

func (s *series) stack(t testing.TB, sink *cutSink) *snapshot.Manifest {
	t.Helper()
	sum, err := sink.enc.Close()
	require.NoError(t, err)
	parent := s.manifest
	if !sink.over {
		parent = nil
	}
	m := &snapshot.Manifest{Format: snapshot.FormatVersion, Sorted: sum.Sorted}
	m.Checkpoint.ID = 1
	m.Chunks, m.Layers, err = snapshot.Stack(parent, sum.Layers)
	require.NoError(t, err)
	return m
}

// read merges a checkpoint's layers.
func (s *series) read(t testing.TB, m *snapshot.Manifest) []snapshot.RecordedKey {
	t.Helper()
	var all []snapshot.RecordedKey
	for _, part := range [][]snapshot.Section{{snapshot.SectionKeyed, snapshot.SectionMeta}, {snapshot.SectionOperator, snapshot.SectionSource}} {
		var rec snapshot.Recorder
		require.NoError(t, snapshot.Walk(context.Background(), &s.chunks, m, &rec, part...))
		all = append(all, rec.Keys...)
	}
	return all
}

// take makes a cut, commits it, and gives what the checkpoint holds.
func (s *series) take(t testing.TB, req statebackend.CutRequest) (statebackend.Cut, []snapshot.RecordedKey) {
	t.Helper()
	cut, sink := s.cut(t, req)
	s.commit(t, cut, sink)
	return cut, s.read(t, s.manifest)
}

// inPause keeps what a second connection reads inside the pause of each cut
// of the test's job, after the last read.
type inPause struct {
	keys []snapshot.RecordedKey
	n    int
}

func watchPauses(t testing.TB, b *Backend, job statebackend.Job) *inPause {
	p := &inPause{}
	setFor(t, &lookedAt, func(of statebackend.Job) {
		if of == job {
			copied := readJob(t, b, job)
			for i, k := range copied {
				if len(k.elements) == 0 { // expired while it was copied
					copied[i] = staged{key: snapshot.Key{Section: k.key.Section, Name: k.key.Name}}
				}
			}
			p.keys = recorded(t, copied)
			p.n++
		}
	})
	return p
}

// requireCopy holds a checkpoint against the copy that was taken in the same
// pause. A key whose expiry had passed is as good as missing.
func requireCopy(t testing.TB, p *inPause, cut statebackend.Cut, keys []snapshot.RecordedKey) {
	t.Helper()
	require.Empty(t, snapshot.DiffKeys(alive(p.keys, cut), alive(withoutSources(keys), cut)))
}

func withoutSources(keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	var all []snapshot.RecordedKey
	for _, k := range keys {
		if k.Key.Section != snapshot.SectionSource {
			all = append(all, k)
		}
	}
	return all
}

// grace is how long before a key's expiry the copy may already miss it, or
// still have it: it is read some time after the cut.
const expiryGrace = 2 * time.Second

func alive(keys []snapshot.RecordedKey, cut statebackend.Cut) []snapshot.RecordedKey {
	all := make([]snapshot.RecordedKey, 0, len(keys))
	for _, k := range keys {
		if k.Key.ExpireAt != 0 && k.Key.ExpireAt < cut.At.Add(expiryGrace).UnixMilli() {
			k = snapshot.RecordedKey{Key: snapshot.Key{Section: k.Key.Section, Name: k.Key.Name}}
		}
		k.Key.Loose = false
		if k.Key.Type == snapshot.TypeMissing {
			k.End.Digest = 0
		}
		all = append(all, k)
	}
	return all
}

// tracked opens a store that tracks in one way.
func tracked(t testing.TB, s *redistest.Server, mode string) *Backend {
	t.Helper()
	b, err := Open(context.Background(), Config{URL: s.URL(), CAFile: s.CAFile(), Tracking: mode})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// eachLevel runs a test with each tracker.
func eachLevel(t *testing.T, fn func(t *testing.T, mode string)) {
	setFor(t, &trackPatience, 10*time.Second)
	for _, mode := range []string{TrackFields, TrackKeys} {
		t.Run(mode, func(t *testing.T) { fn(t, mode) })
	}
}

func run(t testing.TB, c *goredis.Client, args ...any) {
	t.Helper()
	require.NoError(t, c.Do(context.Background(), args...).Err(), "%v", args)
}

// failingLayers is a sink whose disk is full at the first key.
type failingLayers struct{ *cutSink }

var errDisk = errors.New("the disk is full")

func (f *failingLayers) BeginKey(snapshot.Key) error { return errDisk }
