// Package backendtest is the conformance suite of state stores: every
// implementation of [statebackend.Backend] passes it.
package backendtest

import (
	"context"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Harness is a store to test, empty, with what a test can't do through the
// interface. Functions fail the test themselves.
type Harness struct {
	Backend statebackend.Backend
	// Grade is what GradeAuto gives, Refused one that the store can't make.
	Grade   snapshot.Grade
	Refused snapshot.Grade
	// Lose drops all keys, as a crash without persistence or a FLUSHALL does.
	Lose func(t testing.TB)
	// Keys lists all keys of the store.
	Keys func(t testing.TB) []string
	// Now reads the clock that keys expire by; Pass lets it reach an instant
	// (and is told only of instants that are less than four seconds away).
	Now  func(t testing.TB) time.Time
	Pass func(t testing.TB, until time.Time)
	// Opaque makes a key of a type without elements that Keyframe knows (a
	// stream); nil when the store has none.
	Opaque func(t testing.TB, key string)
}

// Open gives a harness on an empty store, whose end is bound to t. The suite
// may close the backend itself.
type Open func(t *testing.T) Harness

// Run runs the whole suite, each part on a store of its own. Parts run beside
// each other: they mostly wait.
func Run(t *testing.T, open Open) {
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.run(t, open(t))
		})
	}
}

var parts = []struct {
	name string
	run  func(*testing.T, Harness)
}{
	{"commands", testCommands},
	{"wrong type", testWrongType},
	{"each", testEach},
	{"atomic", testAtomic},
	{"closed", testClosed},
	{"value state", testValueState},
	{"sharded and partitioned values", testPlacement},
	{"map state", testMapState},
	{"list state", testListState},
	{"list replaced at once", testListIsNeverHalf},
	{"set state", testSetState},
	{"operator state", testOperatorState},
	{"operator modes", testOperatorModes},
	{"handles together", testConcurrentHandles},
	{"registration survives a loss", testRegistrationSurvivesLoss},
	{"schema mismatch", testSchemaMismatch},
	{"schema change behind the cache", testSchemaChange},
	{"batch", testBatch},
	{"batch keeps state and position together", testBatchUnderCuts},
	{"look", testLook},
	{"damaged bookkeeping", testDamaged},
	{"adopt", testAdopt},
	{"note", testNote},
	{"index, schemas, partitions", testSmallReads},
	{"inspect", testInspect},
	{"inspect ends", testInspectEnds},
	{"inspect holds", testHolds},
	{"cut content", testCutContent},
	{"cut expired", testCutExpired},
	{"cut is one instant", testCutIsOneInstant},
	{"cut writes nothing", testCutWritesNothing},
	{"cut marks the record", testCutMarks},
	{"cut refusals", testCutRefusals},
	{"cut sink error", testCutSinkError},
	{"cut opaque", testOpaque},
	{"restore round trip", testRoundTrip},
	{"restore after loss", testRestoreAfterLoss},
	{"restore expiry", testRestoreExpiry},
	{"restore equals", testRestoreMakesEqual},
	{"restore leaves what isn't the job's", testForeignNames},
	{"restore refuses", testStageRefusals},
	{"flip fenced", testFlipFenced},
	{"flip without its stage", testFlipNeedsItsStage},
	{"abort", testAbort},
	{"prove", testProve},
	{"resolve", testResolve},
	{"operator scope", testOperatorScope},
	{"operator scope changed", testOperatorScopeChanged},
	{"jobs side by side", testJobsSideBySide},
	{"lease", testLease},
	{"lease runs out", testLeaseRunsOut},
	{"lease of the same store", testLeaseOfTheSameStore},
	{"tokens only grow", testTokensOnlyGrow},
	{"fence", testFence},
	{"late flip", testLateFlip},
	{"cut of a deposed leader", testCutOfADeposed},
	{"resolve while it could flip", testResolveWhileItCouldFlip},
	{"history of leases", testLeaseHistory},
}

// job is the suite's usual job; its names hold what keys may hold.
var job = statebackend.Job{Prefix: "streaming:runtime", Name: "flights*\x00"}

// grace is how long after its expiry a key may still be there: Redis expires it
// once its clock, in ms and read once per command, is past that instant.
const grace = 5 * time.Millisecond

func ctxOf(t testing.TB) context.Context { return t.Context() }

// do runs commands that must succeed.
func do(t testing.TB, h Harness, cmds ...statebackend.Cmd) []statebackend.Reply {
	t.Helper()
	replies, err := h.Backend.Do(ctxOf(t), cmds...)
	require.NoError(t, err)
	require.Len(t, replies, len(cmds))
	return replies
}

// cmd is a command of text arguments.
func cmd(op statebackend.Op, key string, args ...string) statebackend.Cmd {
	return statebackend.Command(op, key, args...)
}

// members reads a set as sorted text.
func members(t testing.TB, h Harness, key string) []string {
	t.Helper()
	var all []string
	require.NoError(t, h.Backend.Each(ctxOf(t), key, snapshot.TypeSet, func(e snapshot.Element) error {
		all = append(all, string(e.Value))
		return nil
	}))
	sort.Strings(all)
	return all
}

// fields reads a hash as text.
func fields(t testing.TB, h Harness, key string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, h.Backend.Each(ctxOf(t), key, snapshot.TypeHash, func(e snapshot.Element) error {
		all[string(e.Field)] = string(e.Value)
		return nil
	}))
	return all
}

var types = map[string]snapshot.KeyType{
	"string": snapshot.TypeString, "hash": snapshot.TypeHash, "list": snapshot.TypeList,
	"set": snapshot.TypeSet, "zset": snapshot.TypeZSet,
}

// dump is the whole store: for each key (but those under skip) its type and
// the digest of its elements.
func dump(t testing.TB, h Harness, skip ...string) map[string]statebackend.KeySummary {
	t.Helper()
	all := map[string]statebackend.KeySummary{}
	keys := slices.DeleteFunc(h.Keys(t), func(key string) bool {
		return slices.ContainsFunc(skip, func(p string) bool { return strings.HasPrefix(key, p) })
	})
	if len(keys) == 0 {
		return all
	}
	var asks []statebackend.Cmd
	for _, key := range keys {
		asks = append(asks, cmd(statebackend.OpType, key))
	}
	for i, name := range do(t, h, asks...) {
		key := keys[i]
		s := statebackend.KeySummary{Name: []byte(key), Type: types[string(name.Bytes)]}
		if s.Type != snapshot.TypeMissing {
			var d snapshot.Digester
			d.Reset(s.Type)
			require.NoError(t, h.Backend.Each(ctxOf(t), key, s.Type, func(e snapshot.Element) error {
				d.Element(e)
				return nil
			}))
			s.Count, s.Digest = d.Count(), d.Sum()
		}
		all[key] = s
	}
	return all
}

// cutOf cuts a job as GradeAuto does.
func cutOf(t testing.TB, h Harness, j statebackend.Job) (statebackend.Cut, []snapshot.RecordedKey) {
	t.Helper()
	var r snapshot.Recorder
	cut, err := h.Backend.Cut(ctxOf(t), statebackend.CutRequest{Job: j, Grade: snapshot.GradeAuto}, &r)
	require.NoError(t, err)
	return cut, r.Keys
}

// find gives a key of a cut.
func find(t testing.TB, keys []snapshot.RecordedKey, s snapshot.Section, name string) *snapshot.RecordedKey {
	t.Helper()
	r := snapshot.Recorder{Keys: keys}
	k := r.Find(s, name)
	require.NotNil(t, k, "%s key %q is not in the cut", s, name)
	return k
}

// without leaves keys out by name.
func without(keys []snapshot.RecordedKey, names ...string) []snapshot.RecordedKey {
	return slices.DeleteFunc(slices.Clone(keys), func(k snapshot.RecordedKey) bool {
		return slices.Contains(names, string(k.Key.Name))
	})
}
