package bolt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"keyframe/snapshot"
)

// ErrNothing is wrapped by Salvage when a file holds nothing of a store.
var ErrNothing = errors.New("nothing of a store was found in it")

// Salvaged is what became of one checkpoint of a damaged file.
type Salvaged struct {
	Job      string        `json:"job"`
	ID       snapshot.ID   `json:"id"`
	Kind     snapshot.Kind `json:"kind,omitempty"`
	Name     string        `json:"name,omitempty"`
	Keys     uint64        `json:"keys"`
	Elements uint64        `json:"elements"`
	OK       bool          `json:"ok"` // it is in the new store, with every byte
	// Lost says why it is not.
	Lost string `json:"lost,omitempty"`
	// Missing are chunks that are not whole: the first of them, with section
	// and layer. Which keys were in them only they could tell.
	Missing []string `json:"missing,omitempty"`
	// Note says what is not as it was: marks that were lost with the record.
	Note string `json:"note,omitempty"`
}

// SalvageReport is what Salvage found and kept.
type SalvageReport struct {
	From        string     `json:"from"`
	To          string     `json:"to"`
	Bytes       int64      `json:"bytes"`       // of the damaged file
	Checkpoints []Salvaged `json:"checkpoints"` // by job and id
	Chunks      int        `json:"chunks"`      // whole ones that were found
	Written     int        `json:"written"`     // that the new store needs
	Failed      int        `json:"failed"`      // records of failed attempts
	Journal     int        `json:"journal"`     // records of the coordinator
	// Nothing says that nothing of a store was found, and that the new one is
	// empty: Replace alone makes such a one.
	Nothing bool `json:"nothing,omitempty"`
	// Problems are what was found wrong, the first of them.
	Problems []string `json:"problems"`
}

// Lost is how many checkpoints could not be salvaged.
func (r SalvageReport) Lost() (n int) {
	for _, c := range r.Checkpoints {
		if !c.OK {
			n++
		}
	}
	return n
}

// mostMissing is how many missing chunks of a checkpoint are named.
const mostMissing = 20

// saved is a checkpoint that is to be written: its manifest, its row, and
// where its chunks are.
type saved struct {
	at       place
	manifest span
	row      snapshot.Checkpoint
}

// rescue is a salvage under way.
type rescue struct {
	f      *os.File
	size   int64
	tree   *tree
	marks  *marks
	free   bitmap // nil when the list can't be read
	report SalvageReport
	keep   []saved
	last   map[string]snapshot.ID
}

// look reads the damaged file and decides what is kept. It only reads.
func (r *rescue) look(ctx context.Context, progress func(done, total int64)) error {
	r.tree = newTree(ctx, r.f)
	if err := r.tree.read(r.size); err != nil {
		return err
	}
	r.free = r.tree.freePages()
	var err error
	if r.marks, err = findMarks(ctx, r.f, r.size, progress); err != nil {
		return err
	}
	r.report.Problems = append([]string{}, r.tree.problems...)
	r.report.Chunks = len(r.marks.chunks)
	if r.marks.newer > 0 {
		r.report.Problems = append(r.report.Problems, fmt.Sprintf("%d chunks or manifests are of a newer version, and are left out: upgrade coordinator", r.marks.newer))
	}
	// Chunks alone are no checkpoint.
	if len(r.marks.manifests) == 0 && len(r.tree.rows)+len(r.tree.last)+len(r.tree.journal) == 0 {
		return ErrNothing
	}
	for _, p := range r.places() {
		if err := r.judge(ctx, p); err != nil {
			return err
		}
	}
	r.count()
	return nil
}

// places are all checkpoints that are, or may be, in the store: those of a
// readable history, and manifests that were found where the history of their
// job can't be read whole, or was not come by. One of these may have been
// deleted: better one too many, which says so, than one that is lost.
func (r *rescue) places() []place {
	all := map[place]bool{}
	for p, row := range r.tree.rows {
		if row.State == snapshot.StateCompleted {
			all[p] = true
		}
	}
	for p := range r.tree.manifests {
		if _, known := r.tree.rows[p]; !known {
			all[p] = true
		}
	}
	for p := range r.marks.manifests {
		_, known := r.tree.rows[p]
		unsure := r.tree.hurt[p.job] || !r.tree.met[p.job]
		if !known && unsure {
			all[p] = true
		}
	}
	var list []place
	for p := range all {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b place) int { return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.id, b.id)) })
	return list
}

// perhapsDeleted reports whether a manifest lies in a page that the free list
// names. The list has no checksum, so that is a hint and no more.
func (r *rescue) perhapsDeleted(s span) bool {
	page := uint64(0)
	if r.free != nil {
		page = uint64(s.at / r.tree.meta.pageSize)
	}
	return r.free != nil && page < r.tree.meta.high && r.free.has(page)
}

// judge decides on one checkpoint.
func (r *rescue) judge(ctx context.Context, p place) error {
	row, known := r.tree.rows[p]
	s := Salvaged{Job: p.job, ID: p.id, Kind: row.Kind, Name: row.Name, Keys: row.Keys, Elements: row.Elements, Lost: "its manifest is damaged or lost"}
	for _, at := range r.versions(p) {
		m, err := r.readManifest(p, at)
		if errors.As(err, new(ioError)) {
			return err
		}
		if err != nil {
			continue
		}
		c := m.Checkpoint
		s.Kind, s.Name, s.Keys, s.Elements = c.Kind, c.Name, c.Keys, c.Elements
		missing, n := r.missing(m)
		if n == 0 {
			k := saved{at: p, manifest: at, row: c}
			s.OK, s.Lost, s.Missing = true, "", nil
			s.Note = k.mark(row, known)
			if !known && r.perhapsDeleted(at) {
				s.Note += "; it may have been deleted before: delete it again then"
			}
			r.keep = append(r.keep, k)
			break
		}
		if s.Missing == nil {
			s.Missing, s.Lost = missing, fmt.Sprintf("%d of its %d chunks are damaged or lost", n, len(chunksOf(m)))
		}
	}
	if _, live := r.tree.manifests[p]; !s.OK && !known && !live {
		if r.free != nil && !slices.ContainsFunc(r.versions(p), func(at span) bool { return !r.perhapsDeleted(at) }) {
			return ctx.Err() // what a deletion has left
		}
		s.Lost += ", or it was deleted before"
	}
	r.report.Checkpoints = append(r.report.Checkpoints, s)
	return ctx.Err()
}

// versions are the places where a checkpoint's manifest was found: first that
// which the history leads to, then the newest ones in the file. All have the
// same content: a rewrite only puts other chunks under it.
func (r *rescue) versions(p place) []span {
	all := slices.Clone(r.marks.manifests[p])
	slices.Reverse(all)
	if live, ok := r.tree.manifests[p]; ok {
		all = append([]span{live}, slices.DeleteFunc(all, func(s span) bool { return s == live })...)
	}
	return all
}

func (r *rescue) readManifest(p place, at span) (*snapshot.Manifest, error) {
	if at.size > snapshot.MaxManifest || at.at+at.size > r.size {
		return nil, fmt.Errorf("a manifest of %d bytes at %d doesn't fit", at.size, at.at)
	}
	b := make([]byte, at.size)
	if _, err := r.f.ReadAt(b, at.at); err != nil {
		return nil, ioError{fmt.Errorf("read %d bytes at %d: %w", at.size, at.at, err)}
	}
	return readManifest(p, b)
}

// missing names the chunks of a manifest that were not found.
func (r *rescue) missing(m *snapshot.Manifest) (first []string, n int) {
	look := func(layer string, refs []snapshot.ChunkRef) {
		for _, ref := range refs {
			if _, ok := r.marks.chunks[ref.ID]; ok {
				continue
			}
			if n++; n <= mostMissing {
				first = append(first, fmt.Sprintf("%s (%s, %s, %d bytes)", ref.ID, ref.Section, layer, ref.Raw))
			}
		}
	}
	look("base", m.Chunks)
	for i, l := range m.Layers {
		look(fmt.Sprintf("layer %d", i+1), l.Chunks)
	}
	return first, n
}

// mark takes over the marks of the checkpoint's row. A row has no checksum of
// its own: one that doesn't fit the manifest says nothing. Without it nobody
// knows whether the checkpoint was pinned, so it is.
func (k *saved) mark(row snapshot.Checkpoint, known bool) (note string) {
	if known {
		plain := row
		plain.Pinned, plain.Bad, plain.Drill, plain.Shrunk = k.row.Pinned, k.row.Bad, nil, nil
		follow(&plain, k.row)
		plain.StoredBytes = k.row.StoredBytes
		if sameRow(plain, k.row) {
			k.row.Pinned, k.row.Bad, k.row.Drill, k.row.Shrunk = row.Pinned, row.Bad, row.Drill, row.Shrunk
			return ""
		}
	}
	k.row.Pinned = true
	return "its record was damaged or lost: its marks are not known, and it is pinned until somebody has looked"
}

// count finds the ids that each job must stay above (I10), and what else there
// is to keep. Stale pages count too: a job never had a lower id afterwards.
func (r *rescue) count() {
	r.last = map[string]snapshot.ID{}
	raise := func(job string, id snapshot.ID) { r.last[job] = max(r.last[job], id) }
	for job, id := range r.tree.last {
		raise(job, id)
	}
	for p, row := range r.tree.rows {
		raise(p.job, p.id)
		if row.State != snapshot.StateCompleted {
			r.report.Failed++
		}
	}
	for _, k := range r.keep {
		raise(k.at.job, k.at.id)
	}
	for _, s := range r.report.Checkpoints {
		raise(s.Job, s.ID)
	}
	for job, id := range r.marks.highest {
		if _, known := r.last[job]; known {
			raise(job, id)
		}
	}
	for key, value := range r.tree.journal {
		// What the coordinator can't read would keep it from starting.
		if len(value) > 0 && value[0] == '{' && !json.Valid(value) || checkRecord(key[0], key[1]) != nil {
			r.report.Problems = append(r.report.Problems, fmt.Sprintf("the coordinator's record %s of %q is damaged, and is left out", key[0], key[1]))
			delete(r.tree.journal, key)
		}
	}
	if r.tree.journalHurt || !r.tree.journalMet {
		r.report.Problems = append(r.report.Problems, "records of the coordinator are lost: jobs that were applied must be applied again, and a restore under way is ended by `coordinator job unmark`")
	}
	r.report.Journal = len(r.tree.journal)
}
