package rescale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/keygroups"
	"keyframe/snapshot"
)

// fakeKey is a key as a checkpoint holds it.
type fakeKey struct {
	key   snapshot.Key
	end   snapshot.KeyEnd
	elems []item
}

// fakeJob is a checkpoint's operator section in memory, in some order.
type fakeJob struct {
	registered []snapshot.OperatorState
	keys       []fakeKey
	piece      int // values come in pieces of at most that many bytes
	replays    int
}

// keyOf and parse are one another's inverse for names without "|".
func keyOf(s snapshot.OperatorState, subtask int) []byte {
	return []byte(s.Operator + "|" + s.Name + "|" + strconv.Itoa(subtask))
}

func (j *fakeJob) parse(key []byte) (snapshot.OperatorState, int, bool) {
	at := strings.Split(string(key), "|")
	if len(at) != 3 {
		return snapshot.OperatorState{}, 0, false
	}
	n, err := strconv.Atoi(at[2])
	s := snapshot.OperatorState{Operator: at[0], Name: at[1], Mode: snapshot.ModeList}
	return s, n, err == nil
}

func (j *fakeJob) add(s snapshot.OperatorState, subtask int, elems ...item) *fakeKey {
	j.keys = append(j.keys, fakeKey{
		key: snapshot.Key{Section: snapshot.SectionOperator, Name: keyOf(s, subtask),
			Type: typeOf(s.Mode), Count: uint64(len(elems))},
		elems: elems,
	})
	return &j.keys[len(j.keys)-1]
}

func (j *fakeJob) register(operator, name string, mode snapshot.OperatorMode) snapshot.OperatorState {
	s := snapshot.OperatorState{Operator: operator, Name: name, Mode: mode}
	j.registered = append(j.registered, s)
	return s
}

func (j *fakeJob) shuffle(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 77))
	r.Shuffle(len(j.keys), func(a, b int) { j.keys[a], j.keys[b] = j.keys[b], j.keys[a] })
}

// replay is an Execution's Replay.
func (j *fakeJob) replay(ctx context.Context, sink snapshot.Sink) error {
	j.replays++
	for _, k := range j.keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := j.push(k, sink); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	return nil
}

func (j *fakeJob) push(k fakeKey, sink snapshot.Sink) error {
	if err := sink.BeginKey(k.key); err != nil {
		return err
	}
	piece := j.piece
	if piece == 0 {
		piece = snapshot.MaxPart
	}
	for _, it := range k.elems {
		n := min(piece, len(it.value))
		if err := sink.Element(snapshot.Element{Field: it.field, Size: uint64(len(it.value)), Value: it.value[:n]}); err != nil {
			return err
		}
		for rest := it.value[n:]; len(rest) > 0; {
			n := min(piece, len(rest))
			if err := sink.Part(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return sink.EndKey(k.end)
}

func (j *fakeJob) collect(t require.TestingT) []State {
	c := NewCollector(j.registered, j.parse)
	require.NoError(t, j.replay(context.Background(), c))
	states, err := c.States()
	require.NoError(t, err)
	return states
}

// recorder is a Sink that keeps everything and checks the order of calls.
type recorder struct {
	keys   []fakeKey
	open   bool
	left   uint64
	failAt int // the call, from 1 on, that fails; 0 for none
	calls  int
	err    error // what failAt returns
}

func (r *recorder) call(ok bool, what string) error {
	if r.calls++; r.calls == r.failAt {
		return r.err
	}
	if !ok {
		return fmt.Errorf("%s at the wrong time", what)
	}
	return nil
}

func (r *recorder) BeginKey(k snapshot.Key) error {
	if err := r.call(!r.open, "BeginKey"); err != nil {
		return err
	}
	r.open = true
	k.Name = slices.Clone(k.Name)
	r.keys = append(r.keys, fakeKey{key: k})
	return nil
}

func (r *recorder) Element(e snapshot.Element) error {
	if err := r.call(r.open && r.left == 0 && len(e.Value) <= snapshot.MaxPart, "Element"); err != nil {
		return err
	}
	r.left = e.Size - uint64(len(e.Value))
	k := &r.keys[len(r.keys)-1]
	k.elems = append(k.elems, item{field: slices.Clone(e.Field), value: slices.Clone(e.Value)})
	return nil
}

func (r *recorder) Part(b []byte) error {
	if err := r.call(r.open && r.left >= uint64(len(b)) && len(b) <= snapshot.MaxPart, "Part"); err != nil {
		return err
	}
	r.left -= uint64(len(b))
	k := &r.keys[len(r.keys)-1]
	it := &k.elems[len(k.elems)-1]
	it.value = append(it.value, b...)
	return nil
}

func (r *recorder) EndKey(e snapshot.KeyEnd) error {
	if err := r.call(r.open && r.left == 0, "EndKey"); err != nil {
		return err
	}
	r.open = false
	r.keys[len(r.keys)-1].end = e
	return nil
}

func (j *fakeJob) execution(budget int) Execution {
	return Execution{Replay: j.replay, Parse: j.parse, KeyOf: keyOf, Epoch: 9, Budget: budget}
}

// rescaled runs the whole way: collect, compute, write. The outcome is a job
// like the one before.
func (j *fakeJob) rescaled(t require.TestingT, from, to int, split Split, budget int) *fakeJob {
	plan, err := Compute(Request{Rule: rule(), From: from, To: to, Split: split, States: j.collect(t)})
	require.NoError(t, err)
	var out recorder
	registered, err := j.execution(budget).Write(context.Background(), plan, &out)
	require.NoError(t, err)
	require.False(t, out.open)
	for _, k := range out.keys {
		require.Equal(t, snapshot.SectionOperator, k.key.Section)
		require.Equal(t, uint64(len(k.elems)), k.key.Count)
		require.NotEmpty(t, k.elems, "an empty part is no key")
	}
	return &fakeJob{registered: registered, keys: out.keys, piece: j.piece}
}

// part gives the values of one part as text, fields as field=value.
func (j *fakeJob) part(operator, name string, subtask int) []string {
	want := string(keyOf(snapshot.OperatorState{Operator: operator, Name: name}, subtask))
	all := []string{}
	for _, k := range j.keys {
		if string(k.key.Name) != want {
			continue
		}
		for _, it := range k.elems {
			text := string(it.value)
			if it.field != nil {
				text = string(it.field) + "=" + text
			}
			all = append(all, text)
		}
	}
	return all
}

func (j *fakeJob) parts(operator, name string, parallelism int) [][]string {
	all := make([][]string, parallelism)
	for i := range all {
		all[i] = j.part(operator, name, i)
	}
	return all
}

func rule() keygroups.Rule { return keygroups.Rule{MaxParallelism: 128}.WithDefaults() }

func items(values ...string) []item {
	var all []item
	for _, v := range values {
		all = append(all, item{value: []byte(v)})
	}
	return all
}

func field(name, value string) item { return item{field: []byte(name), value: []byte(value)} }

// letters is one list state "op"/"list" with these parts.
func letters(parts ...string) *fakeJob {
	j := &fakeJob{}
	s := j.register("op", "list", snapshot.ModeList)
	for i, p := range parts {
		if p != "" {
			j.add(s, i, items(strings.Split(p, "")...)...)
		}
	}
	return j
}

func joined(parts [][]string) []string {
	all := make([]string, len(parts))
	for i, p := range parts {
		all[i] = strings.Join(p, "")
	}
	return all
}

func requireSplit(t *testing.T, split Split, before, after []string) {
	t.Helper()
	out := letters(before...).rescaled(t, len(before), len(after), split, 0)
	require.Equal(t, after, joined(out.parts("op", "list", len(after))), "%s of %q", split, before)
}
