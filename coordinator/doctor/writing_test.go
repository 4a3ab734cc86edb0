package doctor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

// follower is a store that follows the server's writes by fields.
func follower(t *testing.T, c clinic) *redis.Backend {
	b := storeOf(t, redis.Config{URL: c.srv.URL(), Tracking: redis.TrackFields})
	require.NoError(t, b.StartTracking())
	require.NoError(t, b.AwaitTracking(t.Context()))
	return b
}

// TestAKeyThatIsWrittenFarMoreThanOthersIsFound, though always the same field of
// it is written, by whatever way the server lets us see; where none is, that is
// told.
func TestAKeyThatIsWrittenFarMoreThanOthersIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	watch := func(r *Request) { r.Watch = 1100 * time.Millisecond }
	hot := func(p *patient) string { return p.job.StateKey(p.at(5), "mean") }
	write := func(p *patient, n int) func() {
		return func() {
			for i := range n {
				p.cmd(statebackend.OpHSet, hot(p), string(airport(5)), strconv.Itoa(i))
				if i%10 == 0 {
					key := p.job.KeyedKey(p.at(i/10%smallKeys), "to", string(airport(i/10%smallKeys)))
					p.cmd(statebackend.OpHSet, key, `"SFO"`, strconv.Itoa(i))
				}
			}
		}
	}
	for name, store := range map[string]Store{
		"the tracking of writes":     follower(t, c),
		"the server's announcements": storeOf(t, redis.Config{URL: c.srv.URL(), Tracking: redis.TrackKeys}),
	} {
		t.Run(name, func(t *testing.T) {
			p := admit(t, c.store, "hot")
			writing := &whileInspected{Store: store, do: write(p, 600)}
			r := p.by(writing, watch)
			f := only(t, r, CodeHotKey, Info)
			require.EqualValues(t, 1, f.Count)
			require.Regexp(t, `^`+hot(p)+` \(\d{3} (writes|announcements) in .*s, \d+/s, 9\d % of all of the job's state\)$`, f.Where[0])
			require.Contains(t, f.What, name)
			require.Empty(t, r.NotLooked)
			// A job that is written evenly has none.
			even := &whileInspected{Store: store, do: func() {
				for i := range 600 {
					p.cmd(statebackend.OpHSet, p.job.KeyedKey(p.at(i%smallKeys), "to", string(airport(i%smallKeys))), `"SFO"`, "1")
				}
			}}
			unhurt(t, p.by(even, watch))
		})
	}
	t.Run("where it can't be seen", func(t *testing.T) {
		p := admit(t, c.store, "unseen")
		r := p.by(&whileInspected{Store: c.store, do: write(p, 300)}, watch)
		unhurt(t, r)
		require.Contains(t, strings.Join(r.NotLooked, "\n"), "hot keys, by their writes: the job's own writes could not be watched: tracking is off")
		c.srv.Do("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "&*", "+@all", "-client|tracking")
		deaf := storeOf(t, redis.Config{URL: strings.Replace(c.srv.URL(), "redis://", "redis://deaf:secret@", 1), Tracking: redis.TrackKeys})
		r = p.by(&whileInspected{Store: deaf, do: write(p, 300)}, watch)
		unhurt(t, r)
		require.Contains(t, strings.Join(r.NotLooked, "\n"), "grant +hello +client|tracking")
		r = p.by(storeOf(t, redis.Config{URL: c.srv.URL(), Tracking: redis.TrackKeys}))
		unhurt(t, r)
		require.Contains(t, strings.Join(r.NotLooked, "\n"), "the writers were not watched")
	})
}

// TestAJobWithoutSourcesThatNobodyWritesIsFound while it is watched, with how
// long that was.
func TestAJobWithoutSourcesThatNobodyWritesIsFound(t *testing.T) {
	c := open(t, "appendonly yes")
	p := admit(t, c.store, "silent")
	stores := map[string]Store{
		"by the tracking of writes":  storeOf(t, redis.Config{URL: c.srv.URL(), Tracking: redis.TrackKeys}),
		"by the server's own count":  c.store,
		"by the tracking of writes ": follower(t, c),
	}
	watch := func(r *Request) { r.Watch, r.Limits.IdleWatch = 310*time.Millisecond, 300*time.Millisecond }
	for how, store := range stores {
		f := only(t, p.by(store, watch), CodeIdle, Info)
		require.Contains(t, f.What, "nobody wrote the job's state in the ")
		require.Contains(t, f.What, "that it was watched, "+strings.TrimSpace(how))
		require.Equal(t, []string{p.job.Root()}, f.Where)
		short := p.by(store, func(r *Request) { r.Watch, r.Limits.IdleWatch = time.Millisecond, time.Minute })
		unhurt(t, short)
		told := strings.Join(short.NotLooked, "\n")
		require.Contains(t, told, "whether the job is idle: it was watched for ")
		require.Contains(t, told, "give --watch 2m0s or more")
	}
	writing := &whileInspected{Store: stores["by the tracking of writes"], do: func() {
		p.cmd(statebackend.OpHSet, p.job.StateKey(p.at(5), "mean"), string(airport(5)), "1")
	}}
	unhurt(t, p.by(writing, watch))
	// Who else writes to the server is no sign of life, nor of death.
	other := &whileInspected{Store: c.store, do: func() { raw(t, c.srv.Client(), "SET", "somebody", "else") }}
	r := p.by(other, watch)
	unhurt(t, r)
	require.Contains(t, strings.Join(r.NotLooked, "\n"), "whether anybody writes the job: ")
}

// TestTheFewAreTheOddOnes: of sisters with and without an expiry the smaller
// side is named, with what to do about it.
func TestTheFewAreTheOddOnes(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	p := admit(t, c.store, "sisters")
	key := func(i int) string { return p.job.KeyedKey(p.at(i), "seen", string(airport(i))) }
	for i := range smallKeys {
		raw(t, client, "PEXPIRE", key(i), 3600_000)
	}
	raw(t, client, "PERSIST", key(7))
	f := only(t, p.examine(), CodeExpiry, Warning)
	require.Equal(t, []string{key(7)}, f.Where)
	require.EqualValues(t, 1, f.Count)
	require.Contains(t, f.What, fmt.Sprintf("1 keys of state delays:seen (group stats, topic flights) have no expiry, and %d expire", smallKeys-1))
	require.Equal(t, []string{adviseExpire, whyForever}, []string{f.Remedy, f.Why})
	for i := range 5 {
		raw(t, client, "PERSIST", key(i))
	}
	f = only(t, p.examine(), CodeExpiry, Warning) // six of each
	require.EqualValues(t, 6, f.Count)
	require.Equal(t, adviseUnclear, f.Remedy)
	for i := range smallKeys {
		raw(t, client, "PERSIST", key(i))
	}
	raw(t, client, "PEXPIRE", key(3), 3600_000)
	f = only(t, p.examine(), CodeExpiry, Warning)
	require.Equal(t, []string{key(3)}, f.Where)
	require.Equal(t, adviseForever, f.Remedy)
}

// TestBookkeepingOfAWrongTypeIsAFinding, and whatever else can be looked at is.
func TestBookkeepingOfAWrongTypeIsAFinding(t *testing.T) {
	c := open(t, "appendonly yes")
	client := c.srv.Client()
	p := admit(t, c.store, "wrong")
	raw(t, client, "HSET", p.job.OperatorStates(), "x\x01y", `{"mode":"list"}`)
	to := p.job.StateKey(p.wrong(3), "mean")
	p.cmd(statebackend.OpHSet, to, string(airport(3)), `"m"`) // found whatever else is wrong
	for _, x := range []struct{ key, what string }{
		{p.job.Index(), "the index of the job's state is a list and must be a set"},
		{p.job.Registry(), "the schema registry is a list and must be a hash"},
		{p.job.OperatorStates(), "the list of operator states is a list and must be a hash"},
		{p.job.Assignment(), "the assignment of key groups is a list and must be a string"},
		{p.job.Record(), "the coordinator's record is a list and must be a hash"},
		{p.job.Lease(), "the lease of the job's leader is a list and must be a hash"},
	} {
		t.Run(x.key, func(t *testing.T) {
			if raw(t, client, "EXISTS", x.key) == int64(1) {
				raw(t, client, "RENAME", x.key, "aside")
				defer raw(t, client, "RENAME", "aside", x.key)
			}
			raw(t, client, "RPUSH", x.key, "what is this")
			defer raw(t, client, "DEL", x.key)
			r := p.examine()
			f := finding(t, r, CodeBookkeeping)
			require.Equal(t, Error, f.Severity)
			require.Equal(t, x.what, f.What)
			require.Equal(t, []string{x.key}, f.Where)
			require.Contains(t, f.Remedy, x.key)
			finding(t, r, CodeKeyGroup)
			finding(t, r, CodeDuplicate)
			require.Len(t, r.Findings, 3, "nothing that only follows from it: %+v", r.Findings)
		})
	}
	t.Run("sources", func(t *testing.T) {
		raw(t, client, "SET", "stream:topic:flights:p:0", "no stream")
		raw(t, client, "SET", "streaming:mq:topic:planes:meta", "no hash")
		r := p.examine(func(r *Request) {
			r.Sources = []statebackend.SourceRef{{Topic: "flights", Group: "stats"}, {Topic: "planes", Group: "stats"}}
		})
		told := fmt.Sprint(r.Findings)
		require.Contains(t, told, "a key is no stream, as it must be")
		require.Contains(t, told, "stream:topic:flights:p:0")
		require.Contains(t, told, "a key is no hash, as it must be: the number of partitions of topic planes")
	})
}
