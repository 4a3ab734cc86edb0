package backendtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// owned leaves out the state keys that aren't the job's.
func owned(j statebackend.Job, keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k snapshot.RecordedKey) bool {
		return indexedKey(k) && !j.Owns(k.Key.Name)
	})
}

// names are the state keys' names in their order.
func names(keys []snapshot.RecordedKey) []string {
	var all []string
	for _, k := range keys {
		if indexedKey(k) {
			all = append(all, string(k.Key.Name))
		}
	}
	slices.Sort(all)
	return all
}

func indexedKey(k snapshot.RecordedKey) bool {
	return k.Key.Section == snapshot.SectionKeyed || k.Key.Section == snapshot.SectionOperator
}

// notOurs are names that a job's index may list and that aren't its state.
func notOurs(j statebackend.Job) []string {
	return []string{j.Record(), j.Index(), j.Registry(), j.OperatorStates(), j.Assignment(),
		j.Staging("r1") + "index", j.Staging("gone") + "k0.0", j.Root(), j.Root() + "2:cg:x", j.Prefix + ":cg:x", "x" + j.Root() + ":cg:x", "", "elsewhere"}
}

// list puts a name into the job's index.
func list(name string) statebackend.Cmd { return cmd(statebackend.OpSAdd, job.Index(), name) }

// listForeign puts names into the index that aren't the job's, some of them of
// keys that exist, and gives them back.
func listForeign(t *testing.T, h Harness) (listed []string) {
	t.Helper()
	at := strconv.FormatInt(h.Now(t).Add(time.Hour).UnixMilli(), 10)
	listed = notOurs(job)
	for _, name := range listed {
		do(t, h, list(name))
	}
	do(t, h, cmd(statebackend.OpSet, "elsewhere", "then"), list("gone since"), cmd(statebackend.OpRPush, "gone since", "a", "b"),
		list("expiring"), cmd(statebackend.OpSet, "expiring", "then"), cmd(statebackend.OpPExpireAt, "expiring", at),
		list("written since"), list("another type"), cmd(statebackend.OpZAdd, "another type", "1.5", "m"))
	return append(listed, "gone since", "expiring", "written since", "another type")
}

// testForeignNames (I3): nothing outside the job changes, whatever its index
// lists.
func testForeignNames(t *testing.T, h Harness) {
	fill(t, h, job, "foreign")
	listed := listForeign(t, h)
	_, keys := cutOf(t, h, job)
	require.Equal(t, "then", string(find(t, keys, snapshot.SectionKeyed, "elsewhere").Elements[0].Value), "a checkpoint carries what the index says")

	spoil(t, h)
	do(t, h, cmd(statebackend.OpSet, "elsewhere", "now"), cmd(statebackend.OpDel, "gone since"), cmd(statebackend.OpSet, "expiring", "without"),
		cmd(statebackend.OpHSet, "written since", "f", "v"), cmd(statebackend.OpDel, "another type"), cmd(statebackend.OpSAdd, "another type", "m"),
		list("live only"), cmd(statebackend.OpSet, "live only", "stays"), list("live, missing"), list(job.Staging("live")+"x"),
		cmd(statebackend.OpSRem, job.Index(), "elsewhere", job.Record()))
	outside := dump(t, h, job.Root()+":")
	require.Contains(t, slices.Collect(maps.Keys(outside)), "live only")
	req := request(t, h, job, "r1")
	res := restoreKeys(t, h, req, keys)
	require.EqualValues(t, fixtureKeys, res.Keys)
	require.EqualValues(t, 2, res.Removed, "as in the round trip")
	checkRestored(t, h, req, keys)
	require.Equal(t, outside, dump(t, h, job.Root()+":"), "no byte outside the job")
	require.False(t, do(t, h, cmd(statebackend.OpGet, "expiring"))[0].Nil)
	require.Subset(t, members(t, h, job.Index()), listed)
	for _, gone := range []string{"live only", "live, missing", job.Staging("live") + "x"} {
		require.NotContains(t, members(t, h, job.Index()), gone)
	}

	// Into nothing: the names come back, and no key under them.
	h.Lose(t)
	req = request(t, h, job, "r2")
	req.NewEpoch = 40
	restoreKeys(t, h, req, keys)
	require.Empty(t, dump(t, h, job.Root()+":"))
	require.Subset(t, members(t, h, job.Index()), listed)
	checkOwns(t)
}

// checkOwns holds the predicate to what it says.
func checkOwns(t testing.TB) {
	t.Helper()
	for _, name := range notOurs(job) {
		require.False(t, job.Owns([]byte(name)), "%q", name)
	}
	for i, rest := range []string{"", "cg:x", "stateKeys2", "coordinator:", "coordinator:stage", "coordinator:stages:", "x", "\xff"} {
		require.True(t, job.Owns(fmt.Appendf(nil, "%s:%s", job.Root(), rest)), "%d: %q", i, rest)
	}
}
