package rescale

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// The modes as the vectors name them.
var vectorModes = map[string]snapshot.OperatorMode{
	"SPLIT_DISTRIBUTE": snapshot.ModeList,
	"UNION":            snapshot.ModeUnion,
	"BROADCAST":        snapshot.ModeBroadcast,
}

type repartition struct {
	Name           string            `json:"name"`
	Mode           string            `json:"mode"`
	OldParallelism int               `json:"oldParallelism"`
	NewParallelism int               `json:"newParallelism"`
	Old            []json.RawMessage `json:"old"` // null: a subtask without a report
	New            []json.RawMessage `json:"new"`
}

type repartitionMulti struct {
	Name           string                         `json:"name"`
	OldParallelism int                            `json:"oldParallelism"`
	NewParallelism int                            `json:"newParallelism"`
	Old            []map[string][]json.RawMessage `json:"old"` // name → [mode, content]
	New            []map[string]json.RawMessage   `json:"new"`
	NextStart      int                            `json:"nextStart"`
}

type vectors struct {
	Repartition      []repartition      `json:"repartition"`
	RepartitionMulti []repartitionMulti `json:"repartitionMulti"`
}

func loadVectors(t *testing.T) vectors {
	t.Helper()
	b, err := os.ReadFile("testdata/flink.json")
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(b, &v))
	require.Len(t, v.Repartition, 16)
	require.Len(t, v.RepartitionMulti, 5)
	return v
}

// content reads a list, a hash, or the text that stands for a hash.
func content(t *testing.T, raw json.RawMessage) []item {
	t.Helper()
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return items(list...)
	}
	var hash map[string]string
	if json.Unmarshal(raw, &hash) == nil {
		var all []item
		for _, k := range slices.Sorted(maps.Keys(hash)) {
			all = append(all, field(k, hash[k]))
		}
		return all
	}
	var text string
	require.NoError(t, json.Unmarshal(raw, &text))
	return []item{field("content", text)}
}

func texts(t *testing.T, raw json.RawMessage) []string {
	t.Helper()
	all := []string{}
	for _, it := range content(t, raw) {
		text := string(it.value)
		if it.field != nil {
			text = string(it.field) + "=" + text
		}
		all = append(all, text)
	}
	return all
}

func (v repartition) job(t *testing.T) *fakeJob {
	t.Helper()
	j := &fakeJob{}
	s := j.register("op", "x", vectorModes[v.Mode])
	for i, raw := range v.Old {
		if elems := content(t, raw); string(raw) != "null" && len(elems) > 0 {
			j.add(s, i, elems...)
		}
	}
	return j
}

func TestFlinkRepartition(t *testing.T) {
	disagreeing := 0
	for _, v := range loadVectors(t).Repartition {
		t.Run(v.Name, func(t *testing.T) {
			require.Contains(t, vectorModes, v.Mode)
			require.Len(t, v.Old, v.OldParallelism)
			require.Len(t, v.New, v.NewParallelism)
			j := v.job(t)
			if disagrees(j) {
				disagreeing++
				requireDisagree(t, j, v)
				return
			}
			out := j.rescaled(t, v.OldParallelism, v.NewParallelism, SplitEven, 0)
			for i, want := range v.New {
				require.Equal(t, texts(t, want), out.part("op", "x", i), "subtask %d", i)
			}
		})
	}
	require.Equal(t, 2, disagreeing)
}

func disagrees(j *fakeJob) bool {
	return j.registered[0].Mode == snapshot.ModeBroadcast &&
		slices.ContainsFunc(j.keys, func(k fakeKey) bool { return string(k.elems[0].value) != string(j.keys[0].elems[0].value) })
}

// requireDisagree: where Flink keeps copies that differ, one each, ours needs
// a choice and then gives everybody the same.
func requireDisagree(t *testing.T, j *fakeJob, v repartition) {
	t.Helper()
	req := Request{Rule: rule(), From: v.OldParallelism, To: v.NewParallelism, Split: SplitEven, States: j.collect(t)}
	_, err := Compute(req)
	require.ErrorIs(t, err, ErrDisagree)
	for chosen, raw := range v.Old {
		req.Broadcast = map[string]int{Field(j.registered[0]): chosen}
		plan, err := Compute(req)
		require.NoError(t, err)
		var out recorder
		_, err = j.execution(0).Write(t.Context(), plan, &out)
		require.NoError(t, err)
		got := &fakeJob{keys: out.keys}
		for i := range v.New {
			require.Equal(t, texts(t, raw), got.part("op", "x", i))
		}
	}
	// Copies that agree give what Flink gives.
	for i := range j.keys {
		j.keys[i].elems = content(t, v.Old[0])
	}
	out := j.rescaled(t, v.OldParallelism, v.NewParallelism, SplitEven, 0)
	for i := range v.New {
		require.Equal(t, texts(t, v.New[0]), out.part("op", "x", i))
	}
}

func TestFlinkRepartitionOfManyStates(t *testing.T) {
	for _, v := range loadVectors(t).RepartitionMulti {
		t.Run(v.Name, func(t *testing.T) {
			j := &fakeJob{}
			known := map[string]snapshot.OperatorState{}
			choose := map[string]int{}
			for i, parts := range v.Old {
				for name, part := range parts {
					var mode string
					require.NoError(t, json.Unmarshal(part[0], &mode))
					if _, ok := known[name]; !ok {
						known[name] = j.register("op", name, vectorModes[mode])
					}
					if known[name].Mode == snapshot.ModeBroadcast {
						choose[Field(known[name])] = 0
					}
					j.add(known[name], i, content(t, part[1])...)
				}
			}
			// The remainder of one more state goes to where the ring stands.
			j.add(j.register("op", "zz", snapshot.ModeList), 0, items("next")...)
			j.shuffle(5)

			plan, err := Compute(Request{Rule: rule(), From: v.OldParallelism, To: v.NewParallelism,
				Split: SplitEven, States: j.collect(t), Broadcast: choose})
			require.NoError(t, err)
			var rec recorder
			_, err = j.execution(0).Write(t.Context(), plan, &rec)
			require.NoError(t, err)
			out := &fakeJob{keys: rec.keys}
			for i, want := range v.New {
				for name, s := range known {
					content := want[name]
					if s.Mode == snapshot.ModeBroadcast {
						content = v.New[0][name] // the chosen copy, everywhere
					}
					if content == nil {
						content = json.RawMessage("[]")
					}
					require.Equal(t, texts(t, content), out.part("op", name, i), "%s of subtask %d", name, i)
				}
			}
			if v.OldParallelism != v.NewParallelism {
				require.Equal(t, []string{"next"}, out.part("op", "zz", v.NextStart))
			}
		})
	}
}
