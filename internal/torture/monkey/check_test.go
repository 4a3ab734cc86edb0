package monkey

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"keyframe/internal/torture/witness"
)

// memoryBound is what a coordinator may have in memory with this job (I8).
const memoryBound = 256 << 20

// ledger is what is known from round to round.
type ledger struct {
	journal *witness.Journal
	floor   positions // of the newest good checkpoint: what can't be lost any more
	at      map[uint64]positions
	rows    map[uint64]bool // ids that were listed
	second  map[uint64]bool // ids that the second coordinator listed
	token   uint64
	newest  uint64 // greatest id of either coordinator
	before  uint64 // the same when the round began
	counted uint64 // greatest id whose end the tally has
}

func newLedger() *ledger {
	return &ledger{journal: witness.NewJournal(), at: map[uint64]positions{}, second: map[uint64]bool{}}
}

// deleted says that a checkpoint is about to be deleted by the monkey itself.
func (b *ledger) deleted(id uint64) { b.journal.Deleted(id) }

// look is everything that is there at the end of a round.
type look struct {
	seen   witness.Seen
	at     positions
	now    time.Time // by the server's clock
	rows   []witness.Checkpoint
	last   uint64
	states map[uint64]*witness.State
}

// check holds everything against the invariants, with the workers held and the
// job at rest. It gives what is broken.
func (r *rig) check(f *facts) (*look, []witness.Finding) {
	l, err := r.look()
	if err != nil {
		return nil, []witness.Finding{{Invariant: "I1", Text: err.Error()}}
	}
	var out []witness.Finding
	add := func(invariant string, texts ...string) {
		for _, t := range texts {
			out = append(out, witness.Finding{Invariant: invariant, Text: t})
		}
	}
	if f.anew {
		r.book = newLedger()
	}
	add("I5", r.model.broken("the live state", l.seen.State, l.at)...)
	add("I3", leftovers(l.seen.State)...)
	add("I9", witness.DiffForeign(r.foreign, l.seen.Foreign, l.now)...)
	add("I5", r.lostWrites(f, l)...)
	floor := r.floorOf(f)
	r.book.before = r.book.newest
	out = append(out, r.checkStore(f, l, floor)...)
	out = append(out, r.checkSecond(f)...)
	out = append(out, r.checkLeader(l)...)
	out = append(out, r.book.journal.Memory(max(r.a.memory(), r.b.memory()), memoryBound)...)
	r.tally.addN("checks", "invariants held against what was there", 10)
	return l, out
}

func (r *rig) look() (l *look, err error) {
	l = &look{}
	if l.seen.State, l.seen.Foreign, err = witness.Live(r.ctx, r.c, root); err != nil {
		return nil, err
	}
	if l.at, err = positionsOf(l.seen.State); err != nil {
		return nil, err
	}
	if l.now, err = r.c.Time(r.ctx).Result(); err != nil {
		return nil, err
	}
	l.rows, l.last, l.states, err = r.read(r.a.store)
	return l, err
}

// read reads all checkpoints of a store's file.
func (r *rig) read(file string) (rows []witness.Checkpoint, last uint64, states map[uint64]*witness.State, err error) {
	store, err := witness.OpenStore(file, r.t.TempDir())
	if err != nil {
		return nil, 0, nil, err
	}
	rows, err1 := store.Checkpoints(jobName)
	last, err2 := store.Last(jobName)
	states, findings, err3 := witness.CheckReadable(store, jobName, 0)
	for _, f := range findings {
		err3 = errors.Join(err3, errors.New(f.String()))
	}
	return rows, last, states, errors.Join(err1, err2, err3, store.Close())
}

// lostWrites judges what is live by what workers were told, and by what was
// safe in a checkpoint.
func (r *rig) lostWrites(f *facts, l *look) []string {
	last, most, _ := r.crew.acked()
	var out []string
	if text := l.at.behind(last); text != "" {
		out = append(out, "a write that was confirmed after everything was well again is gone: "+text)
	}
	if text := l.at.behind(most); text != "" && !f.lost && !f.rewound() {
		out = append(out, "a write that was confirmed is gone, and nobody took the state away: "+text)
	}
	if text := l.at.behind(r.floorOf(f)); text != "" {
		out = append(out, "what is live is older than the newest good checkpoint: "+text)
	}
	for q := range most {
		r.tally.addN("state", "records that workers wrote", uint64(max(0, l.at[q]-r.book.floor[q])))
	}
	return out
}

// floorOf is what the state can't be behind in this round: what was safe when it
// began, or what was asked to be put in place.
func (r *rig) floorOf(f *facts) positions {
	floor := r.book.floor
	if f.undone {
		for _, at := range r.book.at {
			floor = floor.least(at)
		}
	}
	// What is left of a damaged store, or what the second coordinator has, may be
	// older; that it was at one time whole is checked all the same.
	if f.restored || f.lost && (f.damaged || f.second) {
		floor = positions{}
	}
	for _, id := range f.targets {
		at, known := r.book.at[id]
		if !known { // taken in this round
			continue
		}
		floor = floor.least(at)
	}
	return floor
}

// checkStore judges the store's file: each completed checkpoint is whole, and
// is the state at one instant, not older than what was safe before.
func (r *rig) checkStore(f *facts, l *look, floor positions) []witness.Finding {
	r.expectGone(f, l)
	out := r.book.journal.Listed(l.rows, l.last)
	at := map[uint64]positions{}
	for _, c := range l.rows {
		state, readable := l.states[c.ID]
		if !readable {
			continue
		}
		p, err := positionsOf(state)
		out = append(out, witness.CheckContent(c.ID, state, func(s *witness.State) error {
			return errors.Join(err, asError(r.model.broken("its content", s, p)))
		})...)
		was, known := r.book.at[c.ID]
		switch {
		case known && was != p:
			out = append(out, witness.Finding{Invariant: "I1", Text: fmt.Sprintf("checkpoint %d was at %v and is at %v", c.ID, was, p)})
		case !known && f.damaged && c.ID <= r.book.newest: // removed before, and found again by the salvage
		case !known && p.behind(floor) != "" && c.Trigger != "import":
			out = append(out, witness.Finding{Invariant: "I5", Text: fmt.Sprintf("checkpoint %d is older than what was safe before: %s", c.ID, p.behind(floor))})
		}
		at[c.ID] = p
		r.tally.add("checks", "checkpoints read and compared with the model")
	}
	if len(l.rows) > 0 {
		r.book.newest = max(r.book.newest, l.rows[len(l.rows)-1].ID, l.last)
	}
	r.book.at = at
	if id := newestOf(l); id != 0 {
		r.book.floor = at[id].least(l.at)
	}
	return out
}

// expectGone tells the journal what may be missing from a store whose file was
// damaged or removed.
func (r *rig) expectGone(f *facts, l *look) {
	is := map[uint64]bool{}
	for _, c := range l.rows {
		is[c.ID] = true
	}
	if f.damaged {
		r.book.journal.Salvaged()
	}
	if f.damaged || f.removed {
		for id := range r.book.rows {
			if !is[id] {
				r.book.deleted(id)
			}
		}
	}
	r.book.rows = is
}

// checkSecond judges the store of the second coordinator, which has stopped.
func (r *rig) checkSecond(f *facts) []witness.Finding {
	if !f.second || f.anew {
		return nil
	}
	if f.misled { // it came when all was gone, and knew of nothing: its store is thrown away
		if err := os.RemoveAll(r.b.store); err != nil {
			return []witness.Finding{{Invariant: "I1", Text: err.Error()}}
		}
		return nil
	}
	rows, last, states, err := r.read(r.b.store)
	if err != nil {
		return []witness.Finding{{Invariant: "I1", Text: "the second coordinator's store: " + err.Error()}}
	}
	var out []witness.Finding
	for _, c := range rows {
		if !r.book.second[c.ID] && c.ID <= r.book.before {
			out = append(out, witness.Finding{Invariant: "I10", Text: fmt.Sprintf("the second coordinator gave id %d, and %d was there before", c.ID, r.book.before)})
		}
		r.book.second[c.ID] = true
		state, readable := states[c.ID]
		if !readable {
			continue
		}
		p, err := positionsOf(state)
		out = append(out, witness.CheckContent(c.ID, state, func(s *witness.State) error {
			return errors.Join(err, asError(r.model.broken("its content", s, p)))
		})...)
		r.tally.add("checks", "checkpoints of the second coordinator read and compared with the model")
	}
	r.book.newest = max(r.book.newest, last)
	return out
}

func asError(texts []string) error {
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// newestOf is the newest checkpoint that can be restored.
func newestOf(l *look) uint64 {
	id := uint64(0)
	for k := range l.states {
		id = max(id, k)
	}
	return id
}

// checkLeader judges epoch and token: neither ever falls (I7).
func (r *rig) checkLeader(l *look) []witness.Finding {
	epoch, err := l.seen.State.Epoch()
	if err != nil {
		return []witness.Finding{{Invariant: "I7", Text: err.Error()}}
	}
	out := r.book.journal.Epoch(epoch)
	lease, err := fieldsOf(l.seen.State, "coordinator:lease")
	if err != nil {
		return append(out, witness.Finding{Invariant: "I7", Text: err.Error()})
	}
	token := uint64(0)
	if _, err := fmt.Sscan(lease["token"], &token); err != nil {
		return append(out, witness.Finding{Invariant: "I7", Text: fmt.Sprintf("token %q of the lease: %v", lease["token"], err)})
	}
	if token < r.book.token {
		out = append(out, witness.Finding{Invariant: "I7", Text: fmt.Sprintf("the lease's token is %d and was %d", token, r.book.token)})
	}
	r.book.token = token
	return out
}

func fieldsOf(s *witness.State, tail string) (map[string]string, error) {
	text, ok := s.Others[tail]
	if !ok {
		return nil, fmt.Errorf("%s:%s is not there", root, tail)
	}
	e, err := witness.ParseEntry(text)
	if err != nil {
		return nil, err
	}
	return e.Fields()
}

// leftovers are what an ended restore must not leave.
func leftovers(s *witness.State) []string {
	var out []string
	for tail := range s.Others {
		if strings.HasPrefix(tail, "coordinator:stage:") {
			out = append(out, "staged key "+tail+" is left")
		}
	}
	record, err := fieldsOf(s, "coordinator")
	if err != nil {
		out = append(out, err.Error())
	}
	if mark, marked := record["restore"]; marked {
		out = append(out, "the mark of a restore is left: "+mark)
	}
	slices.Sort(out)
	return out
}
