package keygroups

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyVector is one key of testdata/flink.json: its Java type, its value (longs,
// floats and doubles as text), and what Flink makes of it.
type keyVector struct {
	Type     string          `json:"type"`
	Value    json.RawMessage `json:"value"`
	HashCode int32           `json:"hashCode"`
	Murmur   int32           `json:"murmur"`
	KeyGroup map[string]int  `json:"keyGroup"`
	Subtask  map[string]int  `json:"subtask"` // "maxParallelism/parallelism"
}

type rangeVector struct {
	MaxParallelism int      `json:"maxParallelism"`
	Parallelism    int      `json:"parallelism"`
	Ranges         [][2]int `json:"ranges"`
	Sizes          []int    `json:"sizes"`
	First          *[2]int  `json:"first"`
	Last           *[2]int  `json:"last"`
}

type flinkVectors struct {
	Murmur []struct {
		Code   int32 `json:"code"`
		Murmur int32 `json:"murmur"`
	} `json:"murmur"`
	Keys       []keyVector   `json:"keys"`
	Ranges     []rangeVector `json:"ranges"`
	RangeSpots []struct {
		MaxParallelism int `json:"maxParallelism"`
		Parallelism    int `json:"parallelism"`
		Index          int `json:"index"`
		Start          int `json:"start"`
		End            int `json:"end"`
	} `json:"rangeSpots"`
	OperatorIndex []struct {
		MaxParallelism  int            `json:"maxParallelism"`
		Parallelism     int            `json:"parallelism"`
		KeyGroupToIndex map[string]int `json:"keyGroupToIndex"`
	} `json:"operatorIndex"`
	KeyGroupMoves []struct {
		MaxParallelism        int `json:"maxParallelism"`
		From                  int `json:"from"`
		To                    int `json:"to"`
		GroupsChangingSubtask int `json:"groupsChangingSubtask"`
		Assignment            []struct {
			New   int    `json:"new"`
			Range [2]int `json:"range"`
			Parts []struct {
				FromOld int    `json:"fromOld"`
				Range   [2]int `json:"range"`
			} `json:"parts"`
		} `json:"assignment"`
	} `json:"keyGroupMoves"`
	DefaultMaxParallelism []struct {
		Parallelism           int `json:"parallelism"`
		DefaultMaxParallelism int `json:"defaultMaxParallelism"`
	} `json:"defaultMaxParallelism"`
	RestoreChecks []struct {
		Saved struct {
			MaxParallelism int `json:"maxParallelism"`
			Parallelism    int `json:"parallelism"`
		} `json:"saved"`
		New struct {
			Parallelism    int  `json:"parallelism"`
			MaxParallelism *int `json:"maxParallelism"`
		} `json:"new"`
		OK           bool   `json:"ok"`
		Error        string `json:"error"`
		EffectiveMax int    `json:"effectiveMax"`
	} `json:"restoreChecks"`
}

type documentVectors struct {
	Keys []struct {
		Key      string         `json:"key"`
		HashCode int32          `json:"hashCode"`
		Group    map[string]int `json:"group"`
	} `json:"keys"`
	Ranges []rangeVector `json:"ranges"`
}

func load(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

func flink(t *testing.T) flinkVectors {
	t.Helper()
	var v flinkVectors
	load(t, "flink.json", &v)
	return v
}

func document(t *testing.T) documentVectors {
	t.Helper()
	var v documentVectors
	load(t, "document.json", &v)
	return v
}

func documentRule(g int) Rule { return Rule{MaxParallelism: g}.WithDefaults() }

func flinkRule(g int) Rule {
	return Rule{Hash: HashFlink, KeyType: KeyString, Ranges: RangesFlink, MaxParallelism: g}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}
