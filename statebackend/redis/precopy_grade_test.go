package redis

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// asTracked opens a store as a new user with those rules.
func asTracked(t testing.TB, s *redistest.Server, mode string, rules ...any) *Backend {
	t.Helper()
	name := fmt.Sprintf("user%d", time.Now().UnixNano())
	run(t, s.Client(), append([]any{"ACL", "SETUSER", name, "on", ">pw"}, rules...)...)
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	u.User = url.UserPassword(name, "pw")
	b, err := Open(context.Background(), Config{URL: u.String(), Tracking: mode})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// TestTheBestGradeThatIsPermitted: fields, keys, or stop and copy, by the
// user's rights; why not better is told with the remedy, and a grade that is
// asked for and isn't possible is refused.
func TestTheBestGradeThatIsPermitted(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	fillJob(t, c, testJob, "seed")
	for name, part := range map[string]struct {
		mode     string
		rules    []any
		grade    snapshot.Grade
		tracking string
		why      []string
	}{
		"all rights": {TrackAuto, []any{"allkeys", "allcommands"}, snapshot.GradePrecopy, TrackFields, nil},
		"no psync": {TrackAuto, []any{"allkeys", "allcommands", "-psync"}, snapshot.GradePrecopy, TrackKeys,
			[]string{"tracking by fields", "+psync +replconf"}},
		"no tracking": {TrackAuto, []any{"allkeys", "allcommands", "-psync", "-client|tracking"}, snapshot.GradePaused, "",
			[]string{"+psync +replconf", "+client|tracking"}},
		"off":        {TrackOff, []any{"allkeys", "allcommands"}, snapshot.GradePaused, "", []string{"redis.tracking"}},
		"keys only":  {TrackKeys, []any{"allkeys", "allcommands"}, snapshot.GradePrecopy, TrackKeys, nil},
		"no hmget":   {TrackFields, []any{"allkeys", "allcommands", "-hmget"}, snapshot.GradePaused, "", []string{"+hmget"}},
		"fields not": {TrackFields, []any{"allkeys", "allcommands", "-replconf"}, snapshot.GradePaused, "", []string{"+replconf"}},
	} {
		t.Run(name, func(t *testing.T) {
			setFor(t, &trackPatience, 10*time.Second)
			line := &series{b: asTracked(t, s, part.mode, part.rules...)}
			cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
			require.Equal(t, part.grade, cut.Grade)
			require.Equal(t, part.tracking, cut.Tracking)
			require.Equal(t, part.tracking != "", cut.Token != "")
			require.Empty(t, snapshot.DiffKeys(alive(recorded(t, readJob(t, line.b, testJob)), cut), alive(keys, cut)))
			requireReasons(t, line, cut, part.why)
		})
	}
}

// requireReasons holds why a cut is no better against what is due, and asks
// for grade precopy.
func requireReasons(t *testing.T, line *series, cut statebackend.Cut, why []string) {
	t.Helper()
	if why == nil {
		require.Empty(t, cut.GradeReason)
	}
	for _, w := range why {
		require.Contains(t, cut.GradeReason, w)
	}
	require.NotContains(t, cut.GradeReason, "pw")
	_, _, err := line.try(t, statebackend.CutRequest{Job: testJob, Grade: snapshot.GradePrecopy})
	if cut.Grade == snapshot.GradePrecopy {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, statebackend.ErrGrade)
	for _, w := range why {
		require.ErrorContains(t, err, w)
	}
}

func TestASinkWithoutLayersIsCutPaused(t *testing.T) {
	s := redistest.Start(t)
	b, c := tracked(t, s, TrackAuto), s.Client()
	fillJob(t, c, testJob, "seed")
	cut, err := b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Since: "x"}, &counter{})
	require.NoError(t, err)
	require.Equal(t, snapshot.GradePaused, cut.Grade)
	require.Contains(t, cut.GradeReason, "layers")
	require.Contains(t, cut.FullReason, "layers")
	_, err = b.Cut(t.Context(), statebackend.CutRequest{Job: testJob, Grade: snapshot.GradePrecopy}, &counter{})
	require.ErrorIs(t, err, statebackend.ErrGrade)
	_, err = Open(t.Context(), Config{URL: s.URL(), Tracking: "some"})
	require.ErrorContains(t, err, `"some"`)
}

// TestWhyACutIsFull: each reason is told.
func TestWhyACutIsFull(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fill := func() {
			fillJob(t, c, testJob, "seed")
			manyKeys(t, c, testJob, 300)
		}
		fill()
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		full := func(why string, req statebackend.CutRequest) {
			t.Helper()
			requireFull(t, line, p, why, req)
		}
		full("", statebackend.CutRequest{})
		full("no earlier cut is known", statebackend.CutRequest{Since: "never heard of"})
		b.Forget(testJob)
		full("no earlier cut is known", statebackend.CutRequest{})
		full("grade paused", statebackend.CutRequest{Grade: snapshot.GradePaused})
		manyKeys(t, c, testJob, 300)
		for _, key := range []string{"big", "long\xfflist", "set:s:k", "zset"} {
			run(t, c, "DEL", testJob.Root()+":cg:"+key)
		}
		if mode == TrackKeys {
			full("more than half", statebackend.CutRequest{})
		}
		full("everything is read to check", statebackend.CutRequest{Check: true})
		run(t, c, "FLUSHALL")
		fill()
		full("tracking was lost", statebackend.CutRequest{})
		s.RestartEmpty()
		fill()
		require.Eventually(t, func() bool {
			_, _, err := line.try(t, statebackend.CutRequest{Job: testJob, Since: "any"})
			return err == nil
		}, 20*time.Second, 20*time.Millisecond)
		cut, keys := line.take(t, statebackend.CutRequest{Job: testJob})
		require.False(t, cut.Incremental)
		require.NotEmpty(t, cut.FullReason)
		requireCopy(t, p, cut, keys)
	})
}

// requireFull makes a cut that is full for that reason, and one over it.
func requireFull(t *testing.T, line *series, p *inPause, why string, req statebackend.CutRequest) {
	t.Helper()
	req.Job = testJob
	cut, keys := line.take(t, req)
	require.False(t, cut.Incremental)
	require.Contains(t, cut.FullReason, why)
	requireCopy(t, p, cut, keys)
	again, keys := line.take(t, statebackend.CutRequest{Job: testJob})
	require.True(t, again.Incremental, again.FullReason)
	requireCopy(t, p, again, keys)
}

// TestACheckTellsWhatWasMarked: with Check everything is read, and what was
// written since the earlier cut is told.
func TestACheckTellsWhatWasMarked(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		fillJob(t, c, testJob, "seed")
		line := &series{b: b}
		line.take(t, statebackend.CutRequest{Job: testJob})
		root := testJob.Root() + ":cg:"
		run(t, c, "HSET", root+"big", "field-77", "x")
		line.take(t, statebackend.CutRequest{Job: testJob})
		run(t, c, "HSET", root+"big", "field-78", "x")
		// A cut that is never committed lies in between.
		line.cut(t, statebackend.CutRequest{Job: testJob})
		run(t, c, "SADD", root+"set:s:k", "more")
		run(t, c, "DEL", root+"list")
		cut, _ := line.cut(t, statebackend.CutRequest{Job: testJob, Check: true})
		require.True(t, cut.Marked.Known, cut.Marked.Reason)
		covers := func(key, field string) bool {
			m, ok := cut.Marked.Keys[root+key]
			_, has := m.Fields[field]
			return ok && (m.Whole || has)
		}
		require.True(t, covers("big", "field-78"))
		require.True(t, covers("set:s:k", "more"))
		require.True(t, covers("list", "anything"))
		require.Equal(t, mode == TrackKeys, covers("big", "field-77"), "that was before")
		require.False(t, covers("zset", "z-1"))
		cut, _ = line.cut(t, statebackend.CutRequest{Job: testJob, Check: true, Since: "another"})
		require.False(t, cut.Marked.Known)
		require.NotEmpty(t, cut.Marked.Reason)
	})
}
