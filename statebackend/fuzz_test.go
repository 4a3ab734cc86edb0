package statebackend

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// FuzzDecodeRecord: what is in the hash is read, and comes back as it was read,
// or is an error that names the field.
func FuzzDecodeRecord(f *testing.F) {
	full, err := EncodeRecord(fullRecord())
	require.NoError(f, err)
	f.Add("b1946ac92492d234", "7", "41", "2025-03-04T05:06:07.008Z", full[FieldRestore])
	f.Add("", "18446744073709551616", "-1", "0000-01-01T00:00:00+23:59", []byte(`{"id":1}`))
	f.Add("\xff", "07", "", "9999-12-31T23:59:59-23:59", []byte(`{"startedAt":"0000-01-01T00:00:00+01:00"}`))
	f.Fuzz(func(t *testing.T, incarnation, epoch, attempt, at string, mark []byte) {
		fields := map[string][]byte{FieldIncarnation: []byte(incarnation), FieldEpoch: []byte(epoch), FieldAttempt: []byte(attempt),
			FieldCheckpointAt: []byte(at), FieldRestore: mark, "later": []byte("unknown")}
		for range 3 { // without one of those that are wrong, the next one is found
			r, err := DecodeRecord(fields)
			if err == nil {
				again, err := EncodeRecord(r)
				require.NoError(t, err)
				back, err := DecodeRecord(again)
				require.NoError(t, err)
				require.Equal(t, r, back)
				return
			}
			require.ErrorIs(t, err, ErrDamaged)
			require.Less(t, len(err.Error()), 2000, "an error repeats no megabytes")
			bad := regexp.MustCompile(`field (\w+) of`).FindStringSubmatch(err.Error())
			require.NotNil(t, bad, "%v", err)
			require.Contains(t, fields, bad[1])
			delete(fields, bad[1])
		}
	})
}

// FuzzDecodeAssignment: JSON that workers and coordinator agree on.
func FuzzDecodeAssignment(f *testing.F) {
	f.Add([]byte(`{"epoch":7,"maxParallelism":128,"parallelism":3,"hash":"java","ranges":[{"start":0,"end":42}]}`))
	f.Add([]byte(`{"maxParallelism":0}`))
	f.Add([]byte(`{"parallelism":1,"maxParallelism":1} {}`))
	f.Add([]byte(`{"parallelism":1e99}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAssignment(b)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			require.Contains(t, err.Error(), "assignment")
			return
		}
		again, err := EncodeAssignment(a)
		require.NoError(t, err)
		back, err := DecodeAssignment(again)
		require.NoError(t, err)
		require.Equal(t, a, back)
	})
}

// FuzzDecodeOperatorState: a field of the modes hash with its value.
func FuzzDecodeOperatorState(f *testing.F) {
	f.Add("count\x01seen", []byte(`{"mode":"union","handed":{"checkpoint":7}}`))
	f.Add("\x01\x01", []byte(`{"mode":"list"}`))
	f.Add("count", []byte(`{"mode":"list"}`))
	f.Add("count\x01seen", []byte(`{"mode":"keyed"}`))
	f.Fuzz(func(t *testing.T, field string, value []byte) {
		s, err := DecodeOperatorState(field, value)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		require.Equal(t, field, OperatorField(s.Operator, s.Name))
		again, err := EncodeOperatorMode(s)
		require.NoError(t, err)
		back, err := DecodeOperatorState(field, again)
		require.NoError(t, err)
		require.Equal(t, s, back)
		all, err := DecodeOperatorStates(map[string][]byte{field: value})
		require.NoError(t, err)
		require.Equal(t, []snapshot.OperatorState{s}, all)
	})
}

// FuzzParseSchema: the registry's form.
func FuzzParseSchema(f *testing.F) {
	for _, s := range []string{"java.lang.String|1", "a|b|2", "|1", "x|0", "x|+1", "x|01", "x|99999999999999999999", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchema(text)
		if err != nil {
			require.Contains(t, err.Error(), "schema")
			return
		}
		back, err := ParseSchema(s.String())
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}

type fuzzed struct {
	Name  string             `json:"name"`
	Score float64            `json:"score,omitempty"`
	More  map[string]float64 `json:"more,omitempty"`
	List  []*fuzzed          `json:"list,omitempty"`
	Whole int64              `json:"whole,string"`
	Any   any                `json:"any"`
}

// FuzzDecodeJSON: what is read into a type is written, and from then on always
// the same bytes, since members are compared as bytes.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{`{"name":"a","score":"NaN","more":{"x":"-Infinity"},"list":[{"name":"\u0000"}],"whole":"7","any":1.50}`, `"Infinity"`, `[1,2.5,1e400]`,
		`null`, `1 2`, `"\ud800"`, "\"\xff\"", `{"a":1,"a":2}`, `[[[[[[]]]]]]`, `-0`, `4.9E-324`, ``, `{"any":"NaN","score":"NaN"}`, `{"name":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		stable[any](t, data)
		stable[string](t, data)
		stable[float64](t, data)
		stable[[]float64](t, data)
		stable[map[string]any](t, data)
		stable[fuzzed](t, data)
		stable[*fuzzed](t, data)
	})
}

func stable[T any](t *testing.T, data []byte) {
	v, err := DecodeJSON[T](data)
	if err != nil {
		require.Less(t, len(err.Error()), 5000+2*len(data))
		return
	}
	one, err := EncodeJSON(v)
	if err != nil && strings.Contains(err.Error(), "nested deeper") {
		return
	}
	require.NoError(t, err, "%q", data)
	back, err := DecodeJSON[T](one)
	require.NoError(t, err, "%q from %q", one, data)
	two, err := EncodeJSON(back)
	require.NoError(t, err)
	require.Equal(t, string(one), string(two), "%q", data)
}

var javaDouble = regexp.MustCompile(`^-?(NaN|Infinity|[0-9]+\.[0-9]+|[0-9]\.[0-9]+E-?[0-9]+)$`)

// FuzzAppendDouble: Java's form, and the same number back.
func FuzzAppendDouble(f *testing.F) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, 1e7, 9999999.5, 1e-3, 9.9e-4, 4.9e-324, 2e23, 1.7976931348623157e308, math.Inf(-1), math.NaN(), 5.6843418860808015e-14} {
		f.Add(math.Float64bits(v))
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		for _, size := range []int{64, 32} {
			v := math.Float64frombits(bits)
			if size == 32 {
				v = float64(math.Float32frombits(uint32(bits)))
			}
			text := string(appendJava(nil, v, size))
			require.Regexp(t, javaDouble, text)
			back, err := strconv.ParseFloat(text, size)
			if errors.Is(err, strconv.ErrRange) {
				require.Fail(t, "out of range", text)
			}
			require.NoError(t, err)
			require.True(t, back == v && math.Signbit(back) == math.Signbit(v) || v != v && back != back, "%s is not %v", text, v)
			mantissa, _, _ := strings.Cut(text, "E")
			digits := strings.Trim(strings.ReplaceAll(mantissa, ".", ""), "-0")
			require.LessOrEqual(t, len(digits), 17, "%s has more digits than a number can need", text)
		}
	})
}
