package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// Open gives an empty store, and a function that ends the one that is open as
// a kill would (nothing but what is durable survives, no attempt is aborted)
// and opens the same store anew. The store is closed by a t.Cleanup of Open.
type Open func(t testing.TB) (store snapshot.Store, reopen func() snapshot.Store)

// contract is what a store must keep to, by name.
var contract = []struct {
	name string
	run  func(*testing.T, *subject)
}{
	{"IDsOnlyGrow", idsOnlyGrow},
	{"IDsStartAfterWhatTheJobRemembers", idsAdopt},
	{"NothingIsListedBeforeCommit", commitPoint},
	{"ACommittedCheckpointIsGivenAsItWas", committedWhole},
	{"KilledBetweenAnyTwoCalls", killedBetweenCalls},
	{"CommitRefusesWhatIsNotWhole", commitRefuses},
	{"AFailedCommitCanStillFail", commitThenFail},
	{"AnEndedWriterTakesNothing", endedWriter},
	{"AbortAfterCommitDoesNothing", abortAfterCommit},
	{"FailuresStayWithTheirReason", failuresStay},
	{"ListIsInTheOrderOfIDs", listOrder},
	{"WhatIsNotThereIsSaidByItsSentinel", notThere},
	{"ASharedChunkGoesWithTheLastCheckpoint", sharedChunks},
	{"AnAttemptKeepsTheChunksItCountsOn", attemptKeepsChunks},
	{"OneAttemptsFailureLeavesAnothersChunks", twinAttempts},
	{"AHeldCheckpointStays", holds},
	{"AnAttemptInProgressStays", inProgressStays},
	{"DeletionGoesOnInTheBackground", deletedInTheBackground},
	{"LayersStandWhileAnyoneNeedsThem", layers},
	{"ARewriteReplacesTheChunks", rewrites},
	{"ARewriteKeepsTheContent", rewriteRefuses},
	{"ARewriteThatIsOpenKeepsTheCheckpoint", rewriteKeeps},
	{"WhoReadsGoesOnReadingAfterARewrite", rewriteUnderReaders},
	{"ARewriteKilledBetweenAnyTwoCalls", rewriteKilled},
	{"MarksAreEditedAlone", edits},
	{"JobsDoNotTouchEachOther", jobNames},
	{"ACallersBytesAreItsOwn", ownBytes},
	{"AnEndedContextEndsCalls", contexts},
	{"StatsCount", stats},
	{"ManyAtOnce", manyAtOnce},
	{"AnyOrderOfCalls", anyOrder},
}

// Run holds a store against its contract.
func Run(t *testing.T, open Open) {
	for _, test := range contract {
		t.Run(test.name, func(t *testing.T) {
			s := newSubject(t, open)
			test.run(t, s)
			MustBeClean(t, s.store)
			MustBeClean(t, s.reopen())
		})
	}
}

// subject is the store under test, which changes with every reopening.
type subject struct {
	t     testing.TB
	store snapshot.Store
	again func() snapshot.Store
}

func newSubject(t testing.TB, open Open) *subject {
	store, again := open(t)
	return &subject{t: t, store: store, again: again}
}

// reopen kills the store and opens it anew.
func (s *subject) reopen() snapshot.Store {
	s.store = s.again()
	return s.store
}

func (s *subject) begin(a snapshot.Attempt) snapshot.Writer {
	s.t.Helper()
	w, err := s.store.Begin(context.Background(), a)
	require.NoError(s.t, err)
	return w
}

// encode writes keys and gives the manifest to commit.
func (s *subject) encode(w snapshot.Writer, a snapshot.Attempt, keys []snapshot.RecordedKey) *snapshot.Manifest {
	s.t.Helper()
	sum, err := Encode(context.Background(), w, keys)
	require.NoError(s.t, err)
	return ManifestOf(a, w.ID(), sum)
}

func (s *subject) list(job string) []snapshot.Checkpoint {
	s.t.Helper()
	all, err := s.store.List(context.Background(), job)
	require.NoError(s.t, err)
	return all
}

// states gives a history as one word per attempt.
func (s *subject) states(job string) map[snapshot.ID]snapshot.State {
	s.t.Helper()
	all := map[snapshot.ID]snapshot.State{}
	for _, c := range s.list(job) {
		all[c.ID] = c.State
	}
	return all
}

func (s *subject) stats() snapshot.StoreStats {
	s.t.Helper()
	st, err := s.store.Stats(context.Background())
	require.NoError(s.t, err)
	return st
}

// swept waits until nothing is left to be removed.
func (s *subject) swept() {
	s.t.Helper()
	MustBeSwept(s.t, s.store)
}

func (s *subject) delete(job string, id snapshot.ID) {
	s.t.Helper()
	require.NoError(s.t, s.store.Delete(context.Background(), job, id))
}
