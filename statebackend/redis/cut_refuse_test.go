package redis

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// as opens the server as a user with these rules, on a database.
func as(t testing.TB, s *redistest.Server, db int, rules ...any) *Backend {
	t.Helper()
	s.Do(append([]any{"ACL", "SETUSER", "coordinator", "reset", "on", ">pass"}, rules...)...)
	u := url.URL{Scheme: "redis", User: url.UserPassword("coordinator", "pass"), Host: s.Addr, Path: fmt.Sprint(db)}
	b, err := Open(t.Context(), Config{URL: u.String(), Tracking: TrackOff})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// plainJob has names that fit into an ACL's patterns.
var plainJob = statebackend.Job{Prefix: "streaming:runtime", Name: "flights"}

func refused(t testing.TB, b *Backend, req statebackend.CutRequest) error {
	t.Helper()
	_, err := b.Cut(t.Context(), req, &snapshot.Recorder{})
	require.Error(t, err)
	return err
}

// TestFourReasonsForNothingAreFourAnswers (cases 6).
func TestFourReasonsForNothingAreFourAnswers(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	fillJob(t, c, testJob, "seed")

	wrong := refused(t, b, statebackend.CutRequest{Job: statebackend.Job{Prefix: "other prefix", Name: testJob.Name}})
	require.ErrorIs(t, wrong, statebackend.ErrNoState)
	require.ErrorContains(t, wrong, `none of them "other prefix:a:stateKeys"`)
	require.ErrorContains(t, wrong, "prefix")

	elsewhere := refused(t, as(t, s, 3, "allkeys", "allcommands"), statebackend.CutRequest{Job: testJob})
	require.ErrorIs(t, elsewhere, statebackend.ErrNoState)
	require.ErrorContains(t, elsewhere, "database 3 is empty; database 0 has 20 keys")

	denied := refused(t, as(t, s, 0, "~mine:*", "allcommands"), statebackend.CutRequest{Job: testJob})
	require.ErrorIs(t, denied, statebackend.ErrPermission)
	require.NotErrorIs(t, denied, statebackend.ErrNoState)
	require.ErrorContains(t, denied, "~"+testJob.Index())

	empty := statebackend.Job{Prefix: testJob.Prefix, Name: "empty"}
	_, err := b.Adopt(t.Context(), empty, "fresh", statebackend.Assignment{MaxParallelism: 8, Parallelism: 1, Hash: "java"})
	require.NoError(t, err)
	cut, keys := cutOf(t, b, statebackend.CutRequest{Job: empty, Incarnation: "fresh"})
	require.Equal(t, "fresh", cut.Record.Incarnation)
	require.Len(t, keys, 1, "the assignment")
	require.Equal(t, snapshot.SectionMeta, keys[0].Key.Section)
}

func TestMissingRightsAreNamedAndNobodyIsHeld(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	fillJob(t, c, testJob, "seed")
	for want, rules := range map[string][]any{
		"needs +client|pause +client|unpause: ": {"allkeys", "allcommands", "-client|pause", "-client|unpause"},
		"needs +client|pause: ":                 {"allkeys", "allcommands", "-client|pause"},
		"needs +client|unpause: ":               {"allkeys", "allcommands", "-client|unpause"},
		"needs +memory|usage +hscan +dump: ":    {"allkeys", "allcommands", "-memory", "-hscan", "-dump"},
		"needs +pexpiretime: ":                  {"allkeys", "allcommands", "-pexpiretime"},
		"+client|unpause":                       {"allkeys", "allcommands", "-multi", "-client|unpause"},
		"run the 'client|pause' command":        {"allkeys", "allcommands", "-multi", "-client|pause"},
		"needs +xpending: ":                     {"allkeys", "allcommands", "-xpending"},
	} {
		b := as(t, s, 0, rules...)
		err := refused(t, b, statebackend.CutRequest{Job: testJob, Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}})
		require.ErrorIs(t, err, statebackend.ErrPermission, want)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "pass")
		requireUnpaused(t, c)
	}
}

func TestACutDoesWithoutMultiAndWithoutTheCanary(t *testing.T) {
	s := redistest.Start(t)
	fillJob(t, s.Client(), plainJob, "seed")
	for _, rules := range [][]any{
		{"allkeys", "allcommands", "-multi"},
		{"allkeys", "allcommands", "-pfcount"},
		// All that the documentation asks for.
		{"~" + plainJob.Root() + ":*", "%R~stream:*", "%R~streaming:mq:*", "+multi", "+exec", "+discard", "+pfcount",
			"+client|setname", "+client|pause", "+client|unpause", "+time", "+info", "+type", "+exists", "+pexpiretime", "+memory|usage",
			"+get", "+strlen", "+getrange", "+hgetall", "+hlen", "+hscan", "+llen", "+lrange", "+smembers", "+scard", "+sscan",
			"+zcard", "+zrange", "+dump", "+xinfo|groups", "+xpending", "+ping"},
	} {
		b := as(t, s, 0, rules...)
		_, keys := cutOf(t, b, statebackend.CutRequest{Job: plainJob, Sources: []statebackend.SourceRef{{Topic: "rain", Group: "g"}}})
		require.Equal(t, 19, len(keys), "16 names and 3 meta keys")
	}
}

func TestAKeyThatIsDeniedFailsTheCutByName(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client()
	fillJob(t, c, plainJob, "seed")
	s.Do("SADD", plainJob.Index(), "another root:x")
	s.Do("HSET", "another root:x", "field", "value")
	b := as(t, s, 0, "~"+plainJob.Root()+":*", "allcommands")
	err := refused(t, b, statebackend.CutRequest{Job: plainJob})
	var key *statebackend.KeyError
	require.ErrorAs(t, err, &key)
	require.Equal(t, "another root:x", string(key.Key))
	require.ErrorIs(t, err, statebackend.ErrPermission)
	requireUnpaused(t, c)
}

func TestAnIndexOfAnotherTypeIsNamed(t *testing.T) {
	s := redistest.Start(t)
	s.Do("HSET", testJob.Index(), "not", "a set")
	err := refused(t, openTest(t, s), statebackend.CutRequest{Job: testJob})
	var key *statebackend.KeyError
	require.ErrorAs(t, err, &key)
	require.Equal(t, testJob.Index(), string(key.Key))
	require.ErrorIs(t, err, statebackend.ErrWrongType)
}

func TestAReplicaIsRefusedAndWarnedOf(t *testing.T) {
	master, replica := redistest.Start(t), redistest.Start(t)
	fillJob(t, master.Client(), testJob, "seed")
	host, port, _ := strings.Cut(master.Addr, ":")
	replica.Do("REPLICAOF", host, port)
	c := replica.Client()
	require.Eventually(t, func() bool { return c.Exists(t.Context(), testJob.Record()).Val() == 1 }, 10*time.Second, 5*time.Millisecond)
	b := openTest(t, replica)
	require.ErrorIs(t, refused(t, b, statebackend.CutRequest{Job: testJob}), statebackend.ErrReadOnly)
	g, err := b.Look(t.Context(), testJob)
	require.NoError(t, err)
	require.Len(t, g.Warnings, 1)
	require.Contains(t, g.Warnings[0], "role is slave")
	require.ErrorIs(t, b.Note(t.Context(), testJob, "inc-seed", statebackend.Notes{Attempt: 5}), statebackend.ErrReadOnly)
}

func TestRequestsThatCannotBeMet(t *testing.T) {
	s := redistest.Start(t)
	fillJob(t, s.Client(), testJob, "seed")
	b := openTest(t, s)
	for _, g := range []snapshot.Grade{snapshot.GradePrecopy, snapshot.GradeReplica, snapshot.GradeQuiet, snapshot.GradeFenced, snapshot.GradeSnapshot} {
		err := refused(t, b, statebackend.CutRequest{Job: testJob, Grade: g})
		require.ErrorIs(t, err, statebackend.ErrGrade)
		require.ErrorContains(t, err, string(g))
	}
	require.ErrorContains(t, refused(t, b, statebackend.CutRequest{Job: testJob, MaxPause: -time.Second}), "-1s")
	require.ErrorIs(t, refused(t, b, statebackend.CutRequest{Job: testJob, MaxPause: time.Microsecond}), statebackend.ErrPauseExpired)
	require.ErrorContains(t, refused(t, b, statebackend.CutRequest{}), "prefix")
	s.Kill()
	require.ErrorIs(t, refused(t, b, statebackend.CutRequest{Job: testJob}), statebackend.ErrUnreachable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Cut(ctx, statebackend.CutRequest{Job: testJob}, &snapshot.Recorder{})
	require.ErrorIs(t, err, context.Canceled)
}
