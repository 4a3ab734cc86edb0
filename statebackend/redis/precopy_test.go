package redis

import (
	"strconv"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

func TestAPrecopyHasAllThatIsThereAndChangesNothingI9(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		for _, name := range uglyNames {
			fillJob(t, c, statebackend.Job{Prefix: testJob.Prefix, Name: name}, "other")
		}
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		digest, expiries := allDigest(t, c), digests(t, c)
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, Incarnation: "inc-seed"})
		require.Equal(t, 1, p.n)
		requireCopy(t, p, cut, keys)
		require.Equal(t, digest, allDigest(t, c))
		requireSame(t, expiries, digests(t, c), "after the cut")

		require.Equal(t, snapshot.GradePrecopy, cut.Grade)
		require.Equal(t, mode, cut.Tracking)
		require.False(t, cut.Incremental)
		require.Empty(t, cut.FullReason)
		require.NotEmpty(t, cut.Token)
		require.Positive(t, cut.Stall)
		require.Equal(t, "inc-seed", cut.Record.Incarnation)
		require.Equal(t, 2, cut.Assigned.Parallelism)
		require.Len(t, cut.Operators, 1)
		requireUnpaused(t, c)
	})
}

// changeSome changes some keys of fillJob in every way.
func changeSome(t *testing.T, c *goredis.Client) {
	root := testJob.Root() + ":cg:"
	run(t, c, "HSET", root+"big", "field-7", "changed", "new", "field")
	run(t, c, "HDEL", root+"big", "field-8", "field-9")
	run(t, c, "SREM", root+"set:s:k", "member-3")
	run(t, c, "SADD", root+"set:s:k", "a new one")
	run(t, c, "ZADD", root+"zset", "-5.5", "z-17", "4", "z new")
	run(t, c, "ZREM", root+"zset", "z-18")
	run(t, c, "RPUSH", root+"list", "pushed")
	run(t, c, "PEXPIRE", root+"small", "7200000")
	run(t, c, "PERSIST", root+"expiring")
	run(t, c, "DEL", root+"ints")
	run(t, c, "SADD", testJob.Index(), root+"a new name")
	run(t, c, "SET", root+"a new name", "its value")
	run(t, c, "SREM", testJob.Index(), root+"string")
	run(t, c, "HSET", testJob.Registry(), root+"a new name", "java.lang.String|1")
	run(t, c, "SET", root+"nobody lists this", "x")
}

func TestAnIncrementalCutBringsOnlyWhatChanged(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 500)
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})

		changeSome(t, c)
		var pushed []string
		sink := &cutSink{s: line, each: func(k snapshot.Key) { pushed = append(pushed, string(k.Name)) }}
		cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Since: line.token}, sink)
		require.NoError(t, err)
		require.True(t, cut.Incremental, cut.FullReason)
		require.LessOrEqual(t, len(pushed), 12)
		line.commit(t, cut, sink)
		requireCopy(t, p, cut, line.read(t, line.manifest))
		if mode == TrackFields {
			require.Positive(t, sink.patches)
		}

		cut, sink = line.cut(t, statebackend.CutRequest{Job: testJob})
		require.True(t, cut.Incremental)
		line.commit(t, cut, sink)
		requireCopy(t, p, cut, line.read(t, line.manifest))
		// But for streams, of which a tracker of keys isn't told everything.
		require.Equal(t, map[string]int{TrackFields: 0, TrackKeys: 1}[mode], sink.layers, "nothing has changed")
	})
}

// A cut whose checkpoint was never committed, or that failed, loses no marks.
func TestCutsThatWereNotCommittedLoseNothing(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 300)
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		key := func(i int) string {
			return testJob.Root() + ":cg:g:topic:t:p:" + strconv.Itoa(i) + ":state:o:m:s:" + strconv.Itoa(i)
		}
		for i := range 4 {
			run(t, c, "HSET", key(i), "field", "uncommitted")
			cut, _ := line.cut(t, statebackend.CutRequest{Job: testJob})
			require.True(t, cut.Incremental, cut.FullReason)
			run(t, c, "HSET", key(10+i), "field", "failed")
			failing := &failingLayers{cutSink: &cutSink{s: line}}
			_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Since: line.token}, failing)
			require.ErrorIs(t, err, errDisk)
		}
		run(t, c, "DEL", key(2))
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		require.True(t, cut.Incremental, cut.FullReason)
		requireCopy(t, p, cut, keys)

		// A full one in between, which whoever asks doesn't know of.
		run(t, c, "HSET", key(20), "field", "before")
		_, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob}, &cutSink{s: line})
		require.NoError(t, err)
		run(t, c, "HSET", key(21), "field", "after")
		cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
		require.True(t, cut.Incremental, cut.FullReason)
		requireCopy(t, p, cut, keys)
	})
}

// A key that was emptied and filled again as another type is marked by its
// members only, when a cut that was not committed lies between.
func TestAKeyThatChangesItsTypeByItsMembers(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		manyKeys(t, c, testJob, 100)
		key := testJob.Root() + ":cg:g:topic:t:p:7:state:o:m:s:7"
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		run(t, c, "HDEL", key, "field")
		line.cut(t, statebackend.CutRequest{Job: testJob})
		run(t, c, "SADD", key, "member", "another")
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		require.True(t, cut.Incremental, cut.FullReason)
		requireCopy(t, p, cut, keys)
		run(t, c, "SREM", key, "member", "another")
		cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
		run(t, c, "ZADD", key, "1", "field")
		cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
	})
}
