package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/snapshot"
)

// model is what a store must hold after some calls.
type model struct {
	last map[string]snapshot.ID
	rows map[string]map[snapshot.ID]modelRow
}

type modelRow struct {
	state  snapshot.State
	reason snapshot.FailureReason
	seed   string
	pinned bool
}

// running is an attempt that the model has open.
type running struct {
	w    snapshot.Writer
	a    snapshot.Attempt
	seed string
	m    *snapshot.Manifest
}

// anyOrder makes random calls, kills between them included, and holds the
// store against the model after each kill and at the end. It goes on in one
// store from run to run, so a failing run is replayed by its seed only up to
// what came before; every run therefore works with jobs of its own.
func anyOrder(t *testing.T, s *subject) { inAnyOrder(t, s, nil) }

// inAnyOrder is anyOrder with more calls to draw from, which must not change
// what the store holds.
func inAnyOrder(t *testing.T, s *subject, more map[string]func(*machine)) {
	calls := append([]string{"begin", "begin", "commit", "commit", "fail", "delete", "edit", "rewrite", "kill"},
		slices.Sorted(maps.Keys(more))...)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &machine{s: s, rt: rt, calls: calls, more: more, jobs: []string{fmt.Sprintf("a-%d", run), fmt.Sprintf("b-%d", run)}}
		m.want = model{map[string]snapshot.ID{}, map[string]map[snapshot.ID]modelRow{}}
		for _, job := range m.jobs {
			m.want.rows[job] = map[snapshot.ID]modelRow{}
		}
		defer m.close()
		for range rapid.IntRange(3, 14).Draw(rt, "calls") {
			m.step()
		}
		m.compare()
	})
}

type machine struct {
	s     *subject
	rt    *rapid.T
	calls []string
	more  map[string]func(*machine)
	jobs  []string
	want  model
	open  []running
}

func (m *machine) job() string { return rapid.SampledFrom(m.jobs).Draw(m.rt, "job") }

func (m *machine) step() {
	switch call := rapid.SampledFrom(m.calls).Draw(m.rt, "call"); call {
	case "begin":
		m.begin()
	case "commit":
		m.end(func(r running) modelRow {
			require.NoError(m.rt, r.w.Commit(context.Background(), r.m))
			return modelRow{state: snapshot.StateCompleted, seed: r.seed}
		})
	case "fail":
		m.end(func(r running) modelRow {
			f := snapshot.Failure{Reason: snapshot.FailTimeout, Message: "too slow"}
			require.NoError(m.rt, r.w.Fail(context.Background(), f))
			return modelRow{state: snapshot.StateFailed, reason: f.Reason}
		})
	case "delete":
		m.delete()
	case "edit":
		m.edit()
	case "rewrite":
		m.rewrite()
	case "kill":
		m.kill()
	default:
		m.more[call](m)
	}
}

func (m *machine) begin() {
	a := Attempt(m.job())
	a.After = snapshot.ID(rapid.IntRange(0, 6).Draw(m.rt, "after"))
	// Few seeds, so that chunks are shared.
	r := running{a: a, seed: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(m.rt, "seed")}
	r.w = m.s.begin(a)
	id := max(m.want.last[a.Job], a.After) + 1
	require.Equal(m.rt, id, r.w.ID())
	m.want.last[a.Job] = id
	m.want.rows[a.Job][id] = modelRow{state: snapshot.StateInProgress}
	r.m = m.s.encode(r.w, a, Keys(r.seed, 90))
	m.open = append(m.open, r)
}

func (m *machine) end(how func(running) modelRow) {
	if len(m.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(m.rt, "attempt")
	r := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	m.want.rows[r.a.Job][r.w.ID()] = how(r)
}

// pick draws a row.
func (m *machine) pick() (job string, id snapshot.ID, ok bool) {
	job = m.job()
	ids := slices.Sorted(maps.Keys(m.want.rows[job]))
	if len(ids) == 0 {
		return job, 0, false
	}
	return job, rapid.SampledFrom(ids).Draw(m.rt, "id"), true
}

func (m *machine) delete() {
	job, id, ok := m.pick()
	if !ok {
		return
	}
	err := m.s.store.Delete(context.Background(), job, id)
	if m.want.rows[job][id].state == snapshot.StateInProgress {
		require.ErrorIs(m.rt, err, snapshot.ErrInUse)
		return
	}
	require.NoError(m.rt, err)
	delete(m.want.rows[job], id)
}

func (m *machine) edit() {
	job, id, ok := m.pick()
	if !ok {
		return
	}
	row := m.want.rows[job][id]
	pinned := !row.pinned
	_, err := m.s.store.Edit(context.Background(), job, id, snapshot.Change{Pinned: &pinned})
	if row.state != snapshot.StateCompleted {
		require.ErrorIs(m.rt, err, snapshot.ErrNoCheckpoint)
		return
	}
	require.NoError(m.rt, err)
	row.pinned = pinned
	m.want.rows[job][id] = row
}

func (m *machine) rewrite() {
	job, id, ok := m.pick()
	if !ok {
		return
	}
	target := rapid.IntRange(1, 4).Draw(m.rt, "target") * ChunkTarget / 2
	_, err := Rewrite(context.Background(), m.s.store, job, id, target)
	if m.want.rows[job][id].state != snapshot.StateCompleted {
		require.ErrorIs(m.rt, err, snapshot.ErrNoCheckpoint)
		return
	}
	require.NoError(m.rt, err)
}

func (m *machine) kill() {
	m.s.reopen()
	m.want, m.open = m.interrupted(), nil
	m.compare()
}

func (m *machine) compare() { m.compareWith(m.s) }

// compareWith holds a store, which may be a copy, against the model.
func (m *machine) compareWith(s *subject) {
	for _, job := range m.jobs {
		got := map[snapshot.ID]modelRow{}
		for _, c := range s.list(job) {
			row := modelRow{state: c.State, pinned: c.Pinned, seed: m.want.rows[job][c.ID].seed}
			if c.Failure != nil {
				row.reason = c.Failure.Reason
			}
			got[c.ID] = row
			if c.State == snapshot.StateCompleted {
				MustHold(s.t, s.store, job, c.ID, Keys(row.seed, 90))
			}
		}
		require.Equal(m.rt, m.want.rows[job], got, "job %s", job)
	}
	MustBeClean(s.t, s.store)
}

// close leaves nothing of this run behind.
func (m *machine) close() {
	for _, r := range m.open {
		r.w.Abort()
	}
	for _, job := range m.jobs {
		for _, c := range m.s.list(job) {
			m.s.delete(job, c.ID)
		}
	}
}

// interrupted is the model after a kill.
func (m *machine) interrupted() model {
	rows := map[string]map[snapshot.ID]modelRow{}
	for job, all := range m.want.rows {
		rows[job] = maps.Clone(all)
	}
	for _, r := range m.open {
		rows[r.a.Job][r.w.ID()] = modelRow{state: snapshot.StateFailed, reason: snapshot.FailInterrupted}
	}
	return model{m.want.last, rows}
}
