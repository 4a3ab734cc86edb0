package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// TestAChainOfIncrementsEqualsAFullCopy: random commands between cuts, and a
// chain of thirty that is never begun anew.
func TestAChainOfIncrementsEqualsAFullCopy(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		manyKeys(t, c, testJob, 600)
		p := watchPauses(t, b, testJob)
		w := &scribbler{job: testJob, rng: rand.New(rand.NewPCG(seed, 1)), keys: 30}
		require.NoError(t, scribble(c, w))
		line := &series{b: b}
		for i := range 31 {
			for range w.rng.IntN(6) {
				require.NoError(t, scribble(c, w))
			}
			cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
			requireCopy(t, p, cut, keys)
			require.Equal(t, i > 0, cut.Incremental, cut.FullReason)
		}
	})
}

// TestALargeRegistryIsPatched: the schema registry has an entry for each key.
func TestALargeRegistryIsPatched(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		bulkWrite(t, c, "HSET", testJob.Registry(), 30_000, func(i int) []any {
			return []any{testJob.Root() + ":cg:" + strconv.Itoa(i), "java.lang.Integer|" + strconv.Itoa(i%3)}
		})
		fillJob(t, c, testJob, "seed")
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		run(t, c, "HSET", testJob.Registry(), testJob.Root()+":cg:7", "java.lang.Double|9", testJob.Root()+":cg:new", "x|1")
		run(t, c, "HDEL", testJob.Registry(), testJob.Root()+":cg:8")
		run(t, c, "DEL", testJob.Assignment())
		elements := 0
		sink := &cutSink{s: line}
		counted := &countingLayers{cutSink: sink, elements: &elements}
		cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Since: line.token}, counted)
		require.NoError(t, err)
		require.True(t, cut.Incremental, cut.FullReason)
		line.commit(t, cut, sink)
		requireCopy(t, p, cut, line.read(t, line.manifest))
		if mode == TrackFields {
			require.Less(t, elements, 10)
		}
		run(t, c, "DEL", testJob.Registry())
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
		run(t, c, "HSET", testJob.Registry(), "again", "there|1")
		cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
		require.True(t, cut.Incremental, cut.FullReason)
	})
}

// countingLayers counts elements.
type countingLayers struct {
	*cutSink
	elements *int
}

func (c *countingLayers) Element(e snapshot.Element) error {
	*c.elements++
	return c.cutSink.Element(e)
}

// TestForeignNamesAreFollowed: names of the index outside the job's root, also
// such as begin another, are tracked as the job's own.
func TestForeignNamesAreFollowed(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		foreign := []string{"elsewhere", "elsewhere:too", testJob.Root(), "", "\xff\x00"}
		for _, name := range foreign {
			run(t, c, "SADD", testJob.Index(), name)
			run(t, c, "HSET", name, "field", "of "+name)
		}
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		requireCopy(t, p, cut, keys)
		for round := range 3 {
			for i, name := range foreign {
				run(t, c, "HSET", name, "field", fmt.Sprintf("round %d of %q", round, name), "f"+strconv.Itoa(i), "v")
			}
			fresh := fmt.Sprintf("new foreigner %d", round)
			run(t, c, "SADD", testJob.Index(), fresh)
			cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
			requireCopy(t, p, cut, keys)
			run(t, c, "SET", fresh, "a value")
			foreign = append(foreign[:0:0], foreign...)
			if round == 1 {
				run(t, c, "SREM", testJob.Index(), "elsewhere")
			}
			cut, keys = line.take(t, statebackend.CutRequest{Job: testJob})
			requireCopy(t, p, cut, keys)
		}
		require.True(t, cut.Incremental, cut.FullReason)
	})
}

// TestSourcesAreWholeInTheLastLayer: positions, pending entries and frontiers
// are those of the pause, in full and in incremental cuts, as a cut of grade
// paused has them.
func TestSourcesAreWholeInTheLastLayer(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		plain := tracked(t, s, TrackOff)
		fillJob(t, c, testJob, "seed")
		addSource(t, c)
		refs := []statebackend.SourceRef{{Topic: "rain", Group: "g"}, {Topic: "no such", Group: "g"}, {Topic: "rain", Group: "g"}}
		for i := range 40 {
			run(t, c, "XADD", streamKey("rain", i), strconv.Itoa(i+1)+"-1", "f", "v")
			run(t, c, "XGROUP", "CREATE", streamKey("rain", i), "g", "0")
			run(t, c, "HSET", frontierName("rain", i), "g", strconv.Itoa(i))
		}
		run(t, c, "HSET", sourceMetaKey("rain"), partitionCountField, "40")
		line := &series{b: b}
		for i := range 3 {
			readGroups(t, c, "reader "+strconv.Itoa(i), i)
			run(t, c, "HSET", frontierName("rain", i), "g", "moved "+strconv.Itoa(i))
			cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, Sources: refs})
			want, paused := cutOf(t, plain, statebackend.CutRequest{Job: testJob, Sources: refs})
			require.Equal(t, i > 0, cut.Incremental, cut.FullReason)
			require.Equal(t, want.Positions, cut.Positions)
			require.Empty(t, snapshot.DiffKeys(withoutTimes(paused), withoutTimes(keys)))
		}
		setFor(t, &pendingMost, 3)
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob, Sources: refs})
		require.Equal(t, snapshot.GradePaused, cut.Grade)
		require.Contains(t, cut.GradeReason, "pending entries")
		require.NotEmpty(t, keys)
	})
}

// readGroups reads one entry of some partitions.
func readGroups(t testing.TB, c *goredis.Client, consumer string, from int) {
	for i := from * 5; i < from*5+5; i++ {
		run(t, c, "XREADGROUP", "GROUP", "g", consumer, "COUNT", "1", "STREAMS", streamKey("rain", i), ">")
	}
}

// withoutTimes leaves out of pending entries when they were delivered, which
// the server tells as how long ago that was.
func withoutTimes(keys []snapshot.RecordedKey) []snapshot.RecordedKey {
	all := make([]snapshot.RecordedKey, len(keys))
	for i, k := range keys {
		k.Key.Loose = false
		if _, _, ok := ParsePendingKey(k.Key.Name); ok {
			k.End.Digest = 0
			k.Elements = append([]snapshot.RecordedElement{}, k.Elements...)
			for j := range k.Elements {
				p, err := DecodePending(k.Elements[j].Value)
				if err == nil {
					k.Elements[j].Value, k.Elements[j].Size = []byte(p.ID+" "+p.Consumer), 0
				}
			}
		}
		all[i] = k
	}
	return all
}

// TestTwoJobsAreCutSideBySide: each follows its own writes, and pauses take
// turns.
func TestTwoJobsAreCutSideBySide(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		jobs := []statebackend.Job{{Prefix: "p", Name: "x"}, {Prefix: "p", Name: "y"}}
		errs := make(chan error, len(jobs))
		for _, job := range jobs {
			manyKeys(t, c, job, 1500)
			stop := scribbling(t, s, job, 1, 30, 3, 0)
			defer stop()
			go func() {
				line := &series{b: b}
				for range 6 {
					sink := &cutSink{s: line}
					cut, err := b.Cut(context.Background(), statebackend.CutRequest{Job: job, Since: line.token, MaxStall: time.Second}, sink)
					if err != nil {
						errs <- err
						return
					}
					line.token = cut.Token
				}
				errs <- nil
			}()
		}
		for range jobs {
			require.NoError(t, <-errs)
		}
	})
}

// TestGroupsOfStreamsAmongTheState: what consumer groups do is part of a
// stream, though the server doesn't announce all of it.
func TestGroupsOfStreamsAmongTheState(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		stream := testJob.Root() + ":cg:stream"
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		for _, cmd := range [][]any{
			{"XREADGROUP", "GROUP", "g", "one", "COUNT", "2", "STREAMS", stream, ">"}, {"XACK", stream, "g", "3-0"},
			{"XGROUP", "CREATE", stream, "h", "1-0"}, {"XGROUP", "SETID", stream, "g", "5-0"}, {"XADD", stream, "9-0", "f", "v"}, {"DEL", stream},
		} {
			run(t, c, cmd...)
			cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
			require.True(t, cut.Incremental, cut.FullReason)
			requireCopy(t, p, cut, keys)
		}
	})
}
