package statebackend

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func schemaOf[T any](t *testing.T, d Descriptor[T]) string {
	t.Helper()
	d.Name = "s"
	s, err := d.Schema()
	require.NoError(t, err)
	return s.String()
}

func TestTypeNamesAreJavas(t *testing.T) {
	type named string
	require.Equal(t, "java.lang.String|1", schemaOf(t, Descriptor[string]{}))
	require.Equal(t, "java.lang.String|1", schemaOf(t, Descriptor[named]{}))
	require.Equal(t, "java.lang.Integer|1", schemaOf(t, Descriptor[int]{Version: -4}))
	require.Equal(t, "java.lang.Integer|2", schemaOf(t, Descriptor[int32]{Version: 2}))
	require.Equal(t, "java.lang.Long|1", schemaOf(t, Descriptor[int64]{}))
	require.Equal(t, "java.lang.Double|1", schemaOf(t, Descriptor[float64]{}))
	require.Equal(t, "java.lang.Float|1", schemaOf(t, Descriptor[float32]{}))
	require.Equal(t, "java.lang.Boolean|7", schemaOf(t, Descriptor[bool]{Version: 7}))
	require.Equal(t, "[B|1", schemaOf(t, Descriptor[[]byte]{}))
	require.Equal(t, "x.Y|1", schemaOf(t, Descriptor[struct{}]{TypeName: "x.Y"}))
	require.Equal(t, "java.lang.Long|1", schemaOf(t, Descriptor[int]{TypeName: "java.lang.Long"}))
}

func refused[T any](t *testing.T, why string, d Descriptor[T]) {
	t.Helper()
	_, err := NewValueState(SoloSpace(noStore{}, Job{"p", "j"}), d)
	require.ErrorContains(t, err, why)
}

// noStore is a store that no test of this file may call.
type noStore struct{ Store }

func TestDescriptorsThatAreRefused(t *testing.T) {
	refused(t, "TypeName", Descriptor[struct{ A int }]{Name: "s"})
	refused(t, "TypeName", Descriptor[[]string]{Name: "s"})
	refused(t, "TypeName", Descriptor[time.Time]{Name: "s"})
	refused(t, "TypeName", Descriptor[json.Number]{Name: "s"})
	refused(t, "TypeName", Descriptor[uint64]{Name: "s"})
	refused(t, "TypeName", Descriptor[any]{Name: "s"})
	refused(t, "without a name", Descriptor[int]{})
	refused(t, "-1 shards", Descriptor[int]{Name: "s", Shards: -1})
	refused(t, "default of state", Descriptor[string]{Name: "s", Default: new("\xff")})

	space := SoloSpace(noStore{}, Job{"p", "j"})
	_, err := NewListState(space, Descriptor[int]{Name: "s", Default: new(1)})
	require.ErrorContains(t, err, "only value states")
	_, err = NewMapState[string](space, Descriptor[int]{Name: "s", Shards: 2})
	require.ErrorContains(t, err, "only value states")
	_, err = NewOperatorUnion(space, Descriptor[int]{})
	require.ErrorContains(t, err, "without a name")
	_, err = NewSetState(space, Descriptor[[]int]{Name: "s"})
	require.ErrorContains(t, err, "TypeName")
}

func TestSpacesThatAreRefused(t *testing.T) {
	good := SoloSpace(noStore{}, Job{"p", "j"})
	for why, change := range map[string]func(*Space){
		"without a store":   func(s *Space) { s.Store = nil },
		"job name":          func(s *Space) { s.Job.Name = "" },
		"job prefix":        func(s *Space) { s.Job.Prefix = "" },
		"must not be empty": func(s *Space) { s.Scope = Scope{} },
		"not negative":      func(s *Space) { s.Scope.Partition = -1 },
	} {
		s := good
		change(&s)
		_, err := NewValueState(s, Descriptor[int]{Name: "n"})
		require.ErrorContains(t, err, why)
	}
}

func TestParseSchema(t *testing.T) {
	s, err := ParseSchema("com.x|y.Z|12")
	require.NoError(t, err)
	require.Equal(t, Schema{"com.x|y.Z", 12}, s)
	for _, bad := range []string{"", "x", "|1", "x|", "x|0", "x|-1", "x|1.0", "x|one"} {
		_, err := ParseSchema(bad)
		require.Error(t, err, bad)
	}
	rapid.Check(t, func(t *rapid.T) {
		want := Schema{rapid.StringN(1, 20, -1).Draw(t, "type"), rapid.IntRange(1, 1<<30).Draw(t, "version")}
		got, err := ParseSchema(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func TestTypedKeys(t *testing.T) {
	require.Equal(t, Key("s:a:b"), StringKey("a:b"))
	require.Equal(t, Key("n:-5"), NumberKey(-5))
	require.Equal(t, Key("n:1.0E7"), DoubleKey(1e7))
	require.Equal(t, Key("t:x"), TextKey("x"))
	k, err := JSONKey(struct {
		B float64 `json:"b"`
		A string
	}{1, "<"})
	require.NoError(t, err)
	require.Equal(t, Key(`j:{"b":1.0,"A":"<"}`), k)
	_, err = JSONKey(make(chan int))
	require.Error(t, err)

	space := SoloSpace(noStore{}, Job{"p", "j"})
	for _, bad := range []Key{"", "s", "x:1", "solo", ":s"} {
		_, err := space.at(bad)
		require.ErrorContains(t, err, "typed key")
	}
}
