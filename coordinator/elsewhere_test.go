package coordinator

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/config"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// overtaken makes b own checkpoint 2 and a the newer 3, and kills a.
func overtaken(t *testing.T, a *world, l *leases, copiesOfA string) (config.Job, *world) {
	job := testJob("flights")
	b := a.another(owned("b", "/b", nil), func(o *Options) {
		if copiesOfA != "" {
			o.Copies = []string{copiesOfA}
		}
	})
	a.write(job, 130, "one")
	b.apply(job)
	b.checkpoint("flights")
	require.Equal(t, snapshot.ID(2), b.checkpoint("flights").ID)
	a.apply(job)
	require.Equal(t, HealthStandby, a.job("flights").Health.State)
	b.close()
	a.pass(2 * DefaultPoll)
	require.True(t, a.job("flights").Leader.Me)
	b.open()
	b.pass(DefaultPoll)
	a.write(job, 130, "two")
	require.Equal(t, snapshot.ID(3), a.checkpoint("flights").ID)
	b.pass(2 * DefaultPoll)
	require.Equal(t, HealthStandby, b.job("flights").Health.State)
	require.Zero(t, b.job("flights").Recovers, "who stands by recovers nothing")
	l.killed.Store(true)
	a.close()
	return job, b
}

// TestI5AStandbyThatKnowsOfANewerCheckpointLeavesLostStateAlone: it says where
// that is, also after a restart of its own, and who has it recovers the state.
func TestI5AStandbyThatKnowsOfANewerCheckpointLeavesLostStateAlone(t *testing.T) {
	for _, when := range []string{"before it leads", "while it leads", "after a restart"} {
		t.Run(when, func(t *testing.T) {
			l := &leases{}
			inBubble(t, func(t *testing.T, a *world) {
				job, b := overtaken(t, a, l, "")
				if when != "before it leads" {
					b.pass(DefaultLeaseTTL + 2*DefaultPoll)
					require.Equal(t, HealthOK, b.job("flights").Health.State)
				}
				if when == "after a restart" {
					b.close()
					b.store.Lose()
					b.open()
				} else {
					b.store.Lose()
				}
				b.pass(DefaultLeaseTTL + 2*DefaultPoll)
				s := b.job("flights")
				require.Equal(t, HealthLost, s.Health.State)
				require.Zero(t, s.Recovers)
				for _, part := range []string{"checkpoint 3", "epoch 1", "/a", "host-a", "127.0.0.1:a", "restore is 2, ", " old", "start that coordinator again", "restore flights --checkpoint 2", "--from FILE"} {
					require.Contains(t, s.Health.Message, part)
				}
				require.Empty(t, b.seen(EventRecoveryAttempt))
				require.Contains(t, last(b.seen(EventStateLost)).Message, "checkpoint 3")
				require.Contains(t, last(b.seen(EventRecoveryFailed)).Message, "checkpoint 3")
				require.Len(t, b.seen(EventRecoveryFailed), 1, "told once")
				_, err := b.c.Restore(t.Context(), "flights", RestoreRequest{})
				require.Equal(t, fault.Refused, fault.CodeOf(err))
				require.ErrorContains(t, err, "checkpoint 3")

				l.killed.Store(false)
				a.open()
				a.pass(2 * DefaultPoll)
				require.Equal(t, `"two-7"`, a.read(job, 3, 7))
				require.Equal(t, HealthOK, a.job("flights").Health.State)
				b.pass(2 * DefaultPoll)
				require.Equal(t, HealthStandby, b.job("flights").Health.State)
				require.Nil(t, b.job("flights").Recovery)
				b.close()
			}, owned("a", "/a", l))
		})
	}
}

// TestAnOlderCheckpointThatAPersonAcceptsIsGoneOnWith: the next loss is
// recovered again.
func TestAnOlderCheckpointThatAPersonAcceptsIsGoneOnWith(t *testing.T) {
	l := &leases{}
	inBubble(t, func(t *testing.T, a *world) {
		job, b := overtaken(t, a, l, "")
		b.store.Lose()
		b.pass(DefaultLeaseTTL + 2*DefaultPoll)
		require.Equal(t, HealthLost, b.job("flights").Health.State)
		plan, err := b.c.PlanRestore(t.Context(), "flights", RestoreRequest{Checkpoint: "2"})
		require.NoError(t, err)
		require.Contains(t, last(plan.Warnings), "checkpoint 3")
		b.done(b.c.Restore(t.Context(), "flights", RestoreRequest{Checkpoint: "2"}))
		for range 2 {
			b.pass(2 * DefaultPoll)
			require.Equal(t, HealthOK, b.job("flights").Health.State, b.job("flights").Health.Message)
			require.True(t, b.job("flights").Leader.Me)
			require.Equal(t, `"one-7"`, b.read(job, 3, 7))
			b.store.Lose()
		}
		b.pass(2 * DefaultPoll)
		require.NotEmpty(t, b.seen(EventRecovered))
		b.close()
		l.killed.Store(false)
		a.open()
	}, owned("a", "/a", l))
}

// TestACopyOfTheNewerCheckpointIsNamed: with the command that restores it.
func TestACopyOfTheNewerCheckpointIsNamed(t *testing.T) {
	l, dir := &leases{}, t.TempDir()
	inBubble(t, func(t *testing.T, a *world) {
		_, b := overtaken(t, a, l, dir)
		b.pass(DefaultLeaseTTL)
		b.store.Lose()
		b.pass(DefaultLeaseTTL + 2*DefaultPoll)
		require.Regexp(t, "restore flights --from "+filepath.Join(dir, "flights-")+"[0-9a-f]+/0000000003-[0-9a-f]+", b.job("flights").Health.Message)
		b.close()
		l.killed.Store(false)
		a.open()
	}, owned("a", "/a", l), func(o *Options) { o.Copies = []string{dir} })
}

func last[T any](all []T) T {
	if len(all) == 0 {
		var none T
		return none
	}
	return all[len(all)-1]
}
