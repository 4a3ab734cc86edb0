package statebackend

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type stats struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	Name  string  `json:"name"`
	None  *int    `json:"none"`
	List  []int   `json:"list"`
}

// vectorValue gives the Go value of a vector, and a function that reads JSON
// back into the same type.
func vectorValue(t *testing.T, javaType, text string) (any, func([]byte) (any, error)) {
	t.Helper()
	switch javaType {
	case "java.lang.String":
		return text, reader[string]()
	case "java.lang.Integer":
		n, err := strconv.ParseInt(text, 10, 32)
		require.NoError(t, err)
		return int32(n), reader[int32]()
	case "java.lang.Long":
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return n, reader[int64]()
	case "java.lang.Double":
		f, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		return f, reader[float64]()
	case "java.lang.Boolean":
		return text == "true", reader[bool]()
	case "java.util.LinkedHashMap":
		require.Equal(t, "{count:3,mean:1.5,name:<x>,none:null,list:[1,2]}", text)
		return stats{Count: 3, Mean: 1.5, Name: "<x>", List: []int{1, 2}}, reader[stats]()
	case "java.util.List":
		require.Equal(t, "[1, a, true, null]", text)
		return []any{json.Number("1"), "a", true, nil}, reader[[]any]()
	case "byte[]":
		require.Equal(t, "01 02 ff", text)
		return []byte{1, 2, 255}, reader[[]byte]()
	}
	t.Fatalf("vector of a Java type that the test doesn't know: %s", javaType)
	return nil, nil
}

func reader[T any]() func([]byte) (any, error) {
	return func(b []byte) (any, error) { return DecodeJSON[T](b) }
}

func TestJacksonVectors(t *testing.T) {
	var file struct {
		Vectors []struct{ JavaType, Value, JSON string }
	}
	raw, err := os.ReadFile("testdata/jackson.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &file))
	require.Greater(t, len(file.Vectors), 60)
	for _, v := range file.Vectors {
		value, read := vectorValue(t, v.JavaType, v.Value)
		got, err := EncodeJSON(value)
		require.NoError(t, err, v.Value)
		require.Equal(t, v.JSON, string(got), "%s %q", v.JavaType, v.Value)
		back, err := read(got)
		require.NoError(t, err, v.Value)
		if f, ok := value.(float64); ok && math.IsNaN(f) {
			require.True(t, math.IsNaN(back.(float64)))
			continue
		}
		require.Equal(t, value, back)
	}
}

// The files hold the bits of numbers with what Java 17's toString wrote.
func TestFloatsAsJava17(t *testing.T) {
	check := func(file string, bits int, from func(uint64) float64) {
		f, err := os.Open(file)
		require.NoError(t, err)
		defer f.Close()
		lines := 0
		for s := bufio.NewScanner(f); s.Scan(); lines++ {
			hex, want, _ := strings.Cut(s.Text(), " ")
			n, err := strconv.ParseUint(hex, 16, 64)
			require.NoError(t, err)
			require.Equal(t, want, string(appendJava(nil, from(n), bits)), hex)
		}
		require.Greater(t, lines, 200)
	}
	check("testdata/java17_doubles.txt", 64, math.Float64frombits)
	check("testdata/java17_floats.txt", 32, func(n uint64) float64 { return float64(math.Float32frombits(uint32(n))) })
}

func TestFloatForms(t *testing.T) {
	for want, f := range map[string]float64{
		"0.002": 2e-3, "0.001": 1e-3, "9.99E-4": 9.99e-4, "1.0E7": 1e7, "9999999.0": 9999999, "1234567.5": 1234567.5,
		"100.0": 100, "0.1": .1, "4.9E-324": 5e-324, "9.9E-324": 1e-323, "2.2250738585072014E-308": 0x1p-1022,
		"1.0E23": 1e23, "-0.0": math.Copysign(0, -1), "-1.5E-10": -1.5e-10, "9.999999999999999E22": 9.999999999999999e22,
	} {
		if want == "9.999999999999999E22" {
			want = "1.0E23" // the same double
		}
		require.Equal(t, want, string(AppendDouble(nil, f)))
	}
	b, err := EncodeJSON([]any{float32(0.1), 0.1, float32(1e10), float32(16777216), math.Inf(-1)})
	require.NoError(t, err)
	require.Equal(t, `[0.1,0.1,1.0E10,1.6777216E7,"-Infinity"]`, string(b))
}

func TestEveryDoubleReadsBackTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		if math.IsNaN(f) {
			return
		}
		b, err := EncodeJSON(f)
		require.NoError(t, err)
		back, err := DecodeJSON[float64](b)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(f), math.Float64bits(back), string(b))
		require.Regexp(t, `^-?([0-9]+\.[0-9]+(E-?[0-9]+)?)$|^"-?Infinity"$`, string(b))
	})
}

type inner struct {
	B int     `json:"b"`
	C float64 `json:",omitempty"`
	D string  `json:"-"`
	X string  `json:"x"`
}

type byPointer struct{ v string }

func (p *byPointer) MarshalJSON() ([]byte, error) { return []byte(`{"v": "` + p.v + `\u003c"}`), nil }

type word string

func (w word) MarshalText() ([]byte, error) { return []byte("w:" + string(w)), nil }
func (w *word) UnmarshalText(b []byte) error {
	*w = word(strings.TrimPrefix(string(b), "w:"))
	return nil
}

func TestStructs(t *testing.T) {
	type outer struct {
		Z string `json:"z"`
		inner
		X     int            `json:"x"` // hides inner's
		Empty []int          `json:"empty,omitempty"`
		Nil   []int          `json:"nil"`
		When  time.Time      `json:"when,omitzero"`
		Text  int            `json:"text,string"`
		Deep  map[string]any `json:"deep"`
		Raw   json.RawMessage
		P     byPointer
		W     map[word]word
		I     map[int8]float64
		hide  int
	}
	v := outer{Z: "<&>", inner: inner{B: 1, D: "no", X: "hidden"}, X: 2, Text: 7, hide: 1,
		Deep: map[string]any{"b": 1.0, "a": []byte{9}}, Raw: json.RawMessage(`[1.50, "é" ]`), P: byPointer{"q"},
		W: map[word]word{"k": "v"}, I: map[int8]float64{10: 1, -3: 2}}
	b, err := EncodeJSON(v)
	require.NoError(t, err)
	want := `{"z":"<&>","b":1,"x":2,"nil":null,"text":"7","deep":{"a":"CQ==","b":1.0},"Raw":[1.50,"é"],` +
		`"P":{"v":"q<"},"W":{"k":"w:v"},"I":{"-3":2.0,"10":1.0}}`
	require.Equal(t, want, string(b))
	again, err := EncodeJSON(&v)
	require.NoError(t, err)
	require.Equal(t, want, string(again), "a value's bytes don't depend on where it lies")

	at := time.Date(2025, 1, 2, 3, 4, 5, 600, time.UTC)
	b, err = EncodeJSON(at)
	require.NoError(t, err)
	require.Equal(t, `"2025-01-02T03:04:05.0000006Z"`, string(b))
}

// Our fields are encoding/json's: same names, same order, same omissions.
func TestFieldsAgreeWithEncodingJSON(t *testing.T) {
	type A struct{ One, Two int }
	type B struct {
		Two   int `json:"Two"`
		Three string
	}
	type C struct {
		A
		*B
		Four int `json:"Three,omitempty"`
		One  []int
	}
	type D struct {
		A
		Twin struct{ A }
		C    `json:"c"`
	}
	type both1 struct{ Same int }
	type both2 struct{ Same int }
	type E struct {
		both1
		both2
		Last bool
	}
	for _, v := range []any{C{}, C{B: &B{Three: "x"}, Four: 4}, D{}, E{}, &E{Last: true}, struct{}{}} {
		want, err := json.Marshal(v)
		require.NoError(t, err)
		got, err := EncodeJSON(v)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%T", v)
	}
}

func TestWhatCannotBeWritten(t *testing.T) {
	type loop struct{ Next *loop }
	self := &loop{}
	self.Next = self
	for name, v := range map[string]any{
		"not UTF-8":      "a\xff",
		"UTF-8 in a map": map[string]int{"\xc0": 1},
		"a channel":      make(chan int),
		"a function":     func() {},
		"complex":        1i,
		"float keys":     map[float64]int{1: 2},
		"a loop":         self,
		"a bad number":   json.Number("12 "),
		"bad raw JSON":   json.RawMessage(`{`),
		"raw not UTF-8":  json.RawMessage("\"\xff\""),
	} {
		_, err := EncodeJSON(v)
		require.Error(t, err, name)
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	for _, bad := range []string{"", " ", "{", "1 2", `"a"`, "1.5", `"NaN"`, "\xff", "[]", "true"} {
		_, err := DecodeJSON[int](([]byte)(bad))
		require.Error(t, err, bad)
	}
	_, err := DecodeJSON[int]([]byte(" null"))
	require.ErrorContains(t, err, "null")
	_, err = DecodeJSON[time.Time]([]byte("null"))
	require.ErrorContains(t, err, "null")
	p, err := DecodeJSON[*int]([]byte("null"))
	require.NoError(t, err)
	require.Nil(t, p)
	_, err = DecodeJSON[string]([]byte("\"\xff\""))
	require.ErrorContains(t, err, "UTF-8")
}

func TestNonFiniteFloatsAnywhere(t *testing.T) {
	type leaf struct {
		F float64
		S string
		M map[string]float32
		T time.Time
		Q int `json:",string"`
	}
	type tree struct {
		L  []leaf
		P  *float64
		A  [2]float64
		Up *tree
		B  []byte
	}
	inf := math.Inf(1)
	v := tree{L: []leaf{{F: math.Inf(-1), S: "Infinity", M: map[string]float32{"NaN": float32(inf)}, Q: 5,
		T: time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)}},
		P: &inf, A: [2]float64{1, inf}, Up: &tree{L: []leaf{}}, B: []byte("xyz")}
	b, err := EncodeJSON(v)
	require.NoError(t, err)
	back, err := DecodeJSON[tree](b)
	require.NoError(t, err)
	require.Equal(t, v, back)

	_, err = DecodeJSON[tree]([]byte(`{"P":"NaN","A":["NaN","none"]}`))
	require.Error(t, err)
}

func TestNumbersInInterfacesKeepTheirText(t *testing.T) {
	in := `{"a":9007199254740993,"b":[1.0,1,1.0E7]}`
	v, err := DecodeJSON[any]([]byte(in))
	require.NoError(t, err)
	out, err := EncodeJSON(v)
	require.NoError(t, err)
	require.Equal(t, in, string(out))
}

func TestRoundTrip(t *testing.T) {
	type record struct {
		S string            `json:"s"`
		N int64             `json:"n"`
		F []float64         `json:"f"`
		M map[string]*int32 `json:"m"`
		B []byte            `json:"b"`
		G float32           `json:"g"`
	}
	rapid.Check(t, func(t *rapid.T) {
		v := record{
			S: rapid.String().Draw(t, "s"), N: rapid.Int64().Draw(t, "n"),
			F: rapid.SliceOf(rapid.Float64()).Draw(t, "f"), G: rapid.Float32().Draw(t, "g"),
			M: rapid.MapOf(rapid.String(), rapid.Ptr(rapid.Int32(), true)).Draw(t, "m"),
			B: rapid.SliceOf(rapid.Byte()).Draw(t, "b"),
		}
		b, err := EncodeJSON(v)
		require.NoError(t, err)
		require.True(t, json.Valid(b))
		back, err := DecodeJSON[record](b)
		require.NoError(t, err)
		require.True(t, reflect.DeepEqual(v, back), "%+v\n%+v", v, back)
	})
}
