package crash

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/crashpoint"
)

// operation is something that a coordinator does, and dies in.
type operation struct {
	name    string
	prepare func(r *rig) // while the ordinary process runs
	between func(r *rig) // while none runs
	start   func(r *rig) // nil: the process dies by starting
	command []string     // the process that dies is this command's, beside the daemon
	child   bool         // a child of the process dies; the process ends with an error
	restart func(r *rig) // nil: wait until the ordinary process has settled
	after   func(r *rig) // what else must hold after the restart
	again   func(r *rig) // the operation once more, carried through

	restores, rescales bool // what it may do to the live state
}

// crashed is one case: an operation dies at a point. before is a death that
// comes first, so that the start after it has something to end.
type crashed struct {
	point  string // a name, or name:n
	op     operation
	before *crashed
}

func (c crashed) String() string {
	name := c.point + " in " + c.op.name
	if c.before != nil {
		name += " after " + c.before.point
	}
	return name
}

// TestADeathAtAnyPointLosesNothing goes through all cases, in groups side by
// side (I1, I3, I4, I6, I10).
func TestADeathAtAnyPointLosesNothing(t *testing.T) {
	all := os.Getenv("KEYFRAME_CRASH_ALL") != ""
	for name, g := range groups() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, g.copies)
			for _, c := range g.cases {
				if !all && c.op.name != first(name, c) {
					continue
				}
				ok := t.Run(c.String(), func(t *testing.T) { r.through(t, c) })
				require.True(t, ok, "the cases after it would stand on what it left")
			}
		})
	}
}

// first is the operation in which a point is gone through without
// KEYFRAME_CRASH_ALL.
func first(group string, c crashed) string {
	for _, other := range groups()[group].cases {
		if other.point == c.point {
			return other.op.name
		}
	}
	return ""
}

// TestEveryPointHasACase holds the cases to the table.
func TestEveryPointHasACase(t *testing.T) {
	met := map[crashpoint.Name]bool{}
	for _, g := range groups() {
		for _, c := range g.cases {
			name, _, _ := strings.Cut(c.point, ":")
			met[crashpoint.Name(name)] = true
		}
	}
	for _, p := range crashpoint.Points {
		require.True(t, met[p.Name], "no case dies at %s", p.Name)
		delete(met, p.Name)
	}
	require.Empty(t, met, "points that aren't in the table")
}

// through is one case from its preparation to the operation's repetition.
func (r *rig) through(t *testing.T, c crashed) {
	old := r.t
	r.t = t
	defer func() { r.t = old }()
	r.churn()
	if c.op.prepare != nil {
		c.op.prepare(r)
	}
	r.rest()
	r.note()
	if len(c.op.command) > 0 {
		r.commandDies(c)
	} else {
		r.kill()
		if c.before != nil {
			r.dies(*c.before)
		}
		r.dies(c)
		r.begin("")
	}
	if c.op.restart != nil {
		c.op.restart(r)
	} else {
		r.settle()
	}
	if c.op.after != nil {
		c.op.after(r)
	}
	r.check(c.op)
	r.was = readLive(t, r.c)
	c.op.again(r)
	r.rest()
	r.check(c.op)
}

// dies starts a process that dies in the operation at the point.
func (r *rig) dies(c crashed) {
	r.t.Helper()
	if c.op.between != nil {
		c.op.between(r)
	}
	r.begin(c.point)
	if c.op.start != nil {
		r.ready()
		c.op.start(r)
	}
	if c.op.child {
		r.ended()
		require.Contains(r.t, r.tail(1<<20), "crashpoint "+c.point+" reached\n")
		require.NotZero(r.t, r.cmd.ProcessState.ExitCode())
		r.buried()
		return
	}
	r.died(c.point)
}

// commandDies runs the operation's command, which dies, beside the daemon.
func (r *rig) commandDies(c crashed) {
	r.t.Helper()
	args := append([]string{}, c.op.command...)
	for i, a := range args {
		args[i] = strings.NewReplacer("FILE", r.file, "ID", r.target.String(), "STORE", r.store+".hurt").Replace(a)
	}
	state, out := r.command(dying, c.point, args...)
	require.Contains(r.t, out, "crashpoint "+c.point+" reached\n", "it has to come there")
	require.Equal(r.t, -1, state.ExitCode(), "it was killed")
}
