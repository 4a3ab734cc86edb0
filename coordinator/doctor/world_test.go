package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/internal/redistest"
	"keyframe/keygroups"
	"keyframe/statebackend"
	"keyframe/statebackend/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rule has three key groups, so that each hash has more than 128 fields and a
// key can lie in two wrong places.
var rule = keygroups.Rule{MaxParallelism: 3}.WithDefaults()

const (
	valueKeys  = 450 // fields of the value state, in all groups
	shardCount = 4
	smallKeys  = 12 // keys of map, list and set states each
)

// clinic is a server with a store on it.
type clinic struct {
	srv   *redistest.Server
	store *redis.Backend
}

func open(t testing.TB, settings ...string) clinic {
	opts := make([]redistest.Option, 0, len(settings))
	for _, s := range settings {
		opts = append(opts, redistest.Setting(s))
	}
	srv := redistest.Start(t, opts...)
	return clinic{srv, storeOf(t, redis.Config{URL: srv.URL(), Tracking: redis.TrackOff})}
}

func storeOf(t testing.TB, c redis.Config) *redis.Backend {
	b, err := redis.Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// patient is a job that is healthy until a test harms it.
type patient struct {
	t     testing.TB
	store statebackend.Backend
	job   statebackend.Job
	scope statebackend.Scope
	keys  int // of the value, sharded and window states
}

// admit makes a healthy job with state of every kind.
func admit(t testing.TB, store statebackend.Backend, name string) *patient {
	return admitOf(t, store, name, valueKeys)
}

func admitOf(t testing.TB, store statebackend.Backend, name string, keys int) *patient {
	p := &patient{t, store, statebackend.Job{Prefix: "streaming:runtime", Name: name},
		statebackend.Scope{Group: "stats", Topic: "flights", Operator: "delays"}, keys}
	space := statebackend.Space{Store: store, Job: p.job, Scope: p.scope, Partition: statebackend.ByKeyGroup(rule)}
	batch := statebackend.NewBatch(store)
	ctx := statebackend.WithBatch(t.Context(), batch)
	p.fillValues(ctx, space)
	p.fillSmall(ctx, space)
	p.fillOperator(ctx, space)
	require.NoError(t, batch.Commit(t.Context()))
	p.fillWindows()
	ranges, err := rule.Assign(1)
	require.NoError(t, err)
	_, err = store.Adopt(t.Context(), p.job, "incarnation", statebackend.Assignment{MaxParallelism: 3, Parallelism: 1, Hash: rule.Hash, Ranges: ranges})
	require.NoError(t, err)
	return p
}

func (p *patient) fillValues(ctx context.Context, space statebackend.Space) {
	plain, err := statebackend.NewValueState[string](space, statebackend.Descriptor[string]{Name: "mean"})
	require.NoError(p.t, err)
	spread, err := statebackend.NewValueState[int64](space, statebackend.Descriptor[int64]{Name: "count", Shards: shardCount})
	require.NoError(p.t, err)
	for i := range p.keys {
		require.NoError(p.t, plain.Update(ctx, airport(i), fmt.Sprint("mean of ", i)))
		require.NoError(p.t, spread.Update(ctx, airport(i), int64(i)))
	}
	alone, err := statebackend.NewValueState[string](statebackend.SoloSpace(space.Store, p.job), statebackend.Descriptor[string]{Name: "total"})
	require.NoError(p.t, err)
	require.NoError(p.t, alone.Update(ctx, statebackend.SoloKey, "all"))
}

func (p *patient) fillSmall(ctx context.Context, space statebackend.Space) {
	m, err := statebackend.NewMapState[string, int32](space, statebackend.Descriptor[int32]{Name: "to"})
	require.NoError(p.t, err)
	l, err := statebackend.NewListState[float64](space, statebackend.Descriptor[float64]{Name: "last"})
	require.NoError(p.t, err)
	s, err := statebackend.NewSetState[string](space, statebackend.Descriptor[string]{Name: "seen"})
	require.NoError(p.t, err)
	for i := range smallKeys {
		require.NoError(p.t, m.Put(ctx, airport(i), "SFO", int32(i)))
		require.NoError(p.t, l.Add(ctx, airport(i), float64(i)))
		_, err := s.Add(ctx, airport(i), "OAK")
		require.NoError(p.t, err)
	}
}

func (p *patient) fillOperator(ctx context.Context, space statebackend.Space) {
	for subtask := range 2 {
		space.Scope.Partition = subtask
		l, err := statebackend.NewOperatorList[int](space, statebackend.Descriptor[int]{Name: "positions"})
		require.NoError(p.t, err)
		require.NoError(p.t, l.Add(ctx, subtask))
		b, err := statebackend.NewOperatorBroadcast[string, int](space, statebackend.Descriptor[int]{Name: "limits"})
		require.NoError(p.t, err)
		require.NoError(p.t, b.Put(ctx, "late", 15))
	}
}

// fillWindows writes a window state, of which Keyframe has no handle.
func (p *patient) fillWindows() {
	var cmds []statebackend.Cmd
	for i := range p.keys {
		at, field := p.at(i), string(airport(i))+"\x011000\x012000"
		hash, due := p.job.StateKey(at, "window"), p.job.WindowDueKey(at, "window")
		cmds = append(cmds, statebackend.Command(statebackend.OpSAdd, p.job.Index(), hash, due),
			statebackend.Command(statebackend.OpHSetNX, p.job.Registry(), hash, "java.lang.Long|1"),
			statebackend.Command(statebackend.OpHSetNX, p.job.Registry(), due, "java.lang.Long|1"),
			statebackend.Command(statebackend.OpHSet, hash, field, "7"),
			statebackend.Command(statebackend.OpZAdd, due, "2000", field))
	}
	p.do(cmds...)
}

func airport(i int) statebackend.Key { return statebackend.StringKey(fmt.Sprintf("airport-%d", i)) }

// groupOf is the key group of the i-th key.
func groupOf(i int) int {
	_, group, err := rule.GroupOfKey(string(airport(i)))
	if err != nil {
		panic(err)
	}
	return group
}

func (p *patient) in(group int) statebackend.Scope {
	s := p.scope
	s.Partition = group
	return s
}

// at is where the i-th key belongs, wrong a group that it doesn't belong to.
func (p *patient) at(i int) statebackend.Scope    { return p.in(groupOf(i)) }
func (p *patient) wrong(i int) statebackend.Scope { return p.in((groupOf(i) + 1) % 3) }

func (p *patient) do(cmds ...statebackend.Cmd) []statebackend.Reply {
	p.t.Helper()
	replies, err := p.store.Do(context.Background(), cmds...)
	require.NoError(p.t, err)
	return replies
}

// cmd runs one command.
func (p *patient) cmd(op statebackend.Op, key string, args ...string) {
	p.t.Helper()
	p.do(statebackend.Command(op, key, args...))
}

// register puts a name into index and registry.
func (p *patient) register(name string) {
	p.t.Helper()
	p.cmd(statebackend.OpSAdd, p.job.Index(), name)
	p.cmd(statebackend.OpHSet, p.job.Registry(), name, "java.lang.String|1")
}

// examine runs the doctor without a wait.
func (p *patient) examine(change ...func(*Request)) Report {
	p.t.Helper()
	return p.by(p.store.(Store), change...)
}

func (p *patient) by(store Store, change ...func(*Request)) Report {
	p.t.Helper()
	req := Request{Job: p.job, Rule: rule}
	for _, c := range change {
		c(&req)
	}
	r, err := Examine(context.Background(), store, req)
	require.NoError(p.t, err)
	errors, warnings := 0, 0
	for _, f := range r.Findings {
		require.NotEmpty(p.t, f.What, f.Code)
		require.NotEmpty(p.t, f.Why, f.Code)
		require.NotEmpty(p.t, f.Remedy, f.Code)
		require.NotContains(p.t, f.Remedy, "{root}")
		require.NotZero(p.t, f.Count, f.Code)
		require.LessOrEqual(p.t, uint64(len(f.Where)), f.Count, f.Code)
		switch f.Severity {
		case Error:
			errors++
		case Warning:
			warnings++
		}
	}
	require.Equal(p.t, []int{errors, warnings}, []int{r.Errors, r.Warnings})
	require.Equal(p.t, errors+warnings == 0, r.OK())
	return r
}

// places are the findings of a report as code → places, whatever their
// severity.
func found(r Report) map[Code][]string {
	all := map[Code][]string{}
	for _, f := range r.Findings {
		all[f.Code] = append(all[f.Code], f.Where...)
		slices.Sort(all[f.Code])
	}
	return all
}

// unhurt requires that nothing at all is found.
func unhurt(t testing.TB, r Report) {
	t.Helper()
	require.Empty(t, r.Findings)
	require.True(t, r.OK())
}

// altered is a store whose server says something else of itself.
type altered struct {
	Store
	change func(*statebackend.Inspection)
}

func (a altered) Inspect(ctx context.Context, req statebackend.InspectRequest, to statebackend.InspectSink) (statebackend.Inspection, error) {
	in, err := a.Store.Inspect(ctx, req, to)
	a.change(&in)
	return in, err
}

// raw runs any command of Redis.
func raw(t testing.TB, c *goredis.Client, args ...any) any {
	t.Helper()
	v, err := c.Do(context.Background(), args...).Result()
	require.NoError(t, err, "%v", args)
	return v
}

// infoOf is one field of INFO.
func infoOf(t testing.TB, c *goredis.Client, section, field string) string {
	t.Helper()
	for line := range strings.SplitSeq(raw(t, c, "INFO", section).(string), "\r\n") {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return v
		}
	}
	t.Fatalf("INFO %s has no %s", section, field)
	return ""
}
