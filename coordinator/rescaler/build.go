package rescaler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"keyframe/coordinator/fault"
	"keyframe/coordinator/restore"
	"keyframe/rescale"
	"keyframe/snapshot"
)

// built is the outcome of a rescale as a checkpoint.
type built struct {
	manifest *snapshot.Manifest
	states   []snapshot.OperatorState // as they are to be registered
	schemas  map[string]string        // registry entries of the new keys
	staged   *summaries               // the new keys
}

// build writes the new operator and meta chunks through w and makes the
// manifest over them and the base's keyed and source chunks. It verifies the
// outcome before it gives it, as far as memory allows; whole says whether that
// was all of it.
func (e *Executor) build(ctx context.Context, w snapshot.Writer, r *ready, started time.Time, p Progress) (b *built, whole bool, err error) {
	kept := &keep{next: w, src: e.Store, limit: keepBytes}
	enc := snapshot.NewEncoder(ctx, kept, snapshot.EncoderOptions{})
	names := newSummaries(r.ops.job)
	meter := (&restore.Meter{Next: snapshot.Tee(enc, names), Phase: PhaseWrite, Progress: p}).Begin()
	b = &built{staged: names}
	if b.states, err = r.writeOperators(ctx, e.Store, meter, names); err != nil {
		return nil, false, err
	}
	meter.End()
	b.schemas = r.newSchemas(names)
	meta, err := r.newMeta(b, enc)
	if err == nil {
		err = meta.write(ctx, e.Store, r.base)
	}
	if err != nil {
		return nil, false, err
	}
	sum, err := enc.Close()
	if err != nil {
		return nil, false, err
	}
	b.manifest = r.newManifest(w, b, names, sum, started, e.Now())
	if kept.over {
		return b, false, nil
	}
	return b, true, verify(ctx, kept, b.manifest)
}

// writeOperators writes every new part. A part without items is no key, but
// its name is written as missing: a worker registers a key once per process,
// so a name that left the index now would be missing from every later
// checkpoint.
func (r *ready) writeOperators(ctx context.Context, src snapshot.ChunkSource, out snapshot.Sink, names *summaries) ([]snapshot.OperatorState, error) {
	x := rescale.Execution{
		Replay: func(ctx context.Context, sink snapshot.Sink) error {
			return snapshot.Walk(ctx, src, r.base, sink, snapshot.SectionOperator)
		},
		Parse: r.ops.parse, KeyOf: r.ops.keyOf, Epoch: r.plan.Epoch,
	}
	states, err := x.Write(ctx, r.compute, out)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		if _, ok := r.ops.homes[rescale.Field(s)]; !ok {
			continue // no subtask ever had a part
		}
		for subtask := range r.plan.To {
			name := r.ops.keyOf(s, subtask)
			if _, ok := names.index[string(name)]; ok {
				continue
			}
			if err := out.BeginKey(snapshot.Key{Section: snapshot.SectionOperator, Name: name, Type: snapshot.TypeMissing}); err != nil {
				return nil, err
			}
			if err := out.EndKey(snapshot.KeyEnd{}); err != nil {
				return nil, err
			}
		}
	}
	return states, nil
}

// newSchemas gives each new key the registry entry that the old parts of its
// state have.
func (r *ready) newSchemas(names *summaries) map[string]string {
	all := map[string]string{}
	for _, k := range names.keys {
		s, _, ok := r.ops.locate(k.Name)
		if entry := r.ops.schemas[rescale.Field(s)]; ok && entry != "" {
			all[string(k.Name)] = entry
		}
	}
	return all
}

func (r *ready) newManifest(w snapshot.Writer, b *built, names *summaries, sum snapshot.Summary, started, ended time.Time) *snapshot.Manifest {
	m, old := *r.base, r.ops.keys
	m.Chunks, m.Layers = carry(r.base, sum)
	was := r.base.Checkpoint
	m.Format = snapshot.FormatVersion
	m.Checkpoint = snapshot.Checkpoint{
		Job: was.Job, ID: w.ID(), Kind: snapshot.KindCheckpoint, Trigger: snapshot.TriggerRescale,
		State: snapshot.StateCompleted, Grade: was.Grade, StartedAt: started, CompletedAt: &ended,
		DurationMs: max(0, ended.Sub(started).Milliseconds()),
		Keys:       was.Keys - old.exist + names.exist, Missing: was.Missing - old.missing + names.missing,
		Elements: was.Elements - old.elements + names.elements, Bytes: was.Bytes - min(was.Bytes, old.bytes) + names.bytes,
		StoredBytes: w.StoredBytes(), Parent: was.ID, Parallelism: r.plan.To, MaxParallelism: was.MaxParallelism,
		Epoch: r.plan.Epoch, Sources: was.Sources, Layers: 1 + len(m.Layers), BytesEstimated: was.BytesEstimated,
	}
	for ref := range m.AllChunks() {
		m.Checkpoint.FullBytes += ref.Stored
	}
	m.Ranges, m.OperatorStates, m.Sorted = r.compute.Ranges, b.states, false
	m.States = restate(r.base.States, old, names)
	if was.BytesEstimated {
		m.Checkpoint.Bytes = max(m.Checkpoint.Bytes, statedBytes(&m))
	}
	return &m
}

// carry gives the chunks of the new manifest: the base's keyed and source
// chunks, of all its layers, and the new ones of operator and meta, which stand
// below: nothing of these two sections is left in any layer.
func carry(base *snapshot.Manifest, sum snapshot.Summary) (chunks []snapshot.ChunkRef, layers []snapshot.Layer) {
	chunks = append(only(base.Chunks, snapshot.SectionKeyed), sum.Chunks...)
	chunks = append(chunks, only(base.Chunks, snapshot.SectionSource)...)
	for _, l := range base.Layers {
		l.Chunks = append(only(l.Chunks, snapshot.SectionKeyed), only(l.Chunks, snapshot.SectionSource)...)
		if len(l.Chunks) > 0 {
			layers = append(layers, l)
		}
	}
	return chunks, layers
}

func only(refs []snapshot.ChunkRef, s snapshot.Section) (out []snapshot.ChunkRef) {
	for _, ref := range refs {
		if ref.Section == s {
			out = append(out, ref)
		}
	}
	return out
}

// statedBytes is what the statistics make of estimated bytes.
func statedBytes(m *snapshot.Manifest) uint64 {
	var states, groups uint64
	for _, s := range m.States {
		states += s.Bytes
	}
	for _, g := range m.Groups {
		groups += g.Bytes
	}
	return max(states, groups)
}

// restate replaces the operator keys in the statistics.
func restate(base []snapshot.StateStats, old, names *summaries) []snapshot.StateStats {
	rows := map[stateRow]snapshot.StateStats{}
	for _, s := range base {
		rows[stateRow{s.Operator, s.State, s.Type}] = s
	}
	for row, s := range old.stats {
		have := rows[row]
		have.Keys -= min(have.Keys, s.Keys)
		have.Elements -= min(have.Elements, s.Elements)
		have.Bytes -= min(have.Bytes, s.Bytes)
		rows[row] = have
	}
	for row, s := range names.stats {
		have := rows[row]
		rows[row] = snapshot.StateStats{Operator: s.Operator, State: s.State, Type: s.Type,
			Keys: have.Keys + s.Keys, Elements: have.Elements + s.Elements, Bytes: have.Bytes + s.Bytes}
	}
	all := make([]snapshot.StateStats, 0, len(rows))
	for _, s := range rows {
		if s.Keys > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b snapshot.StateStats) int {
		return cmp.Or(cmp.Compare(a.Operator, b.Operator), cmp.Compare(a.State, b.State), cmp.Compare(a.Type, b.Type))
	})
	return all
}

// verify holds a checkpoint to what its manifest says.
func verify(ctx context.Context, src snapshot.ChunkSource, m *snapshot.Manifest) error {
	if err := m.Validate(); err != nil {
		return fault.Wrap(err, fault.Internal, "report it as a bug", "the rescaled checkpoint is not valid")
	}
	return restore.Fault(snapshot.Walk(ctx, src, m, nil), fault.Store, "verify the rescaled checkpoint")
}

// keepBytes bounds the new chunks that are kept in memory to be verified
// before the commit. A variable for tests.
var keepBytes = 32 << 20

// keep passes new chunks on and keeps a copy of them, up to a limit: until the
// commit the store may not give them yet.
type keep struct {
	next  snapshot.ChunkWriter
	src   snapshot.ChunkSource
	limit int
	over  bool // not all of them are kept
	mine  snapshot.MemChunks
}

var (
	_ snapshot.ChunkWriter = (*keep)(nil)
	_ snapshot.ChunkSource = (*keep)(nil)
)

// WriteChunk passes on.
func (k *keep) WriteChunk(ctx context.Context, c snapshot.Chunk) (bool, error) {
	if k.limit -= len(c.Data); k.limit < 0 {
		k.over, k.mine = true, snapshot.MemChunks{}
	} else if _, err := k.mine.WriteChunk(ctx, c); err != nil {
		return false, err
	}
	fresh, err := k.next.WriteChunk(ctx, c)
	if err != nil {
		return fresh, fmt.Errorf("store chunk %s: %w", c.Ref.ID, err)
	}
	return fresh, nil
}

// Chunk gives a kept chunk, or the store's.
func (k *keep) Chunk(ctx context.Context, id snapshot.ChunkID) ([]byte, error) {
	if data, err := k.mine.Chunk(ctx, id); err == nil {
		return data, nil
	}
	return k.src.Chunk(ctx, id)
}
