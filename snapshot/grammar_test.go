package snapshot

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script is a list of calls of a sink; the last one must be refused.
type script []func(Sink) error

func begin(t KeyType, count uint64) func(Sink) error {
	return func(s Sink) error {
		k := Key{Section: SectionKeyed, Type: t, Name: []byte("job:k\xff"), Count: count}
		if t == TypeOpaque {
			k.TypeName = "stream"
		}
		return s.BeginKey(k)
	}
}

func beginKey(k Key) func(Sink) error { return func(s Sink) error { return s.BeginKey(k) } }

func put(field string, score float64, size uint64, value string) func(Sink) error {
	return func(s Sink) error {
		return s.Element(Element{Field: []byte(field), Score: score, Size: size, Value: []byte(value)})
	}
}

func part(b string) func(Sink) error { return func(s Sink) error { return s.Part([]byte(b)) } }

func end(e KeyEnd) func(Sink) error { return func(s Sink) error { return s.EndKey(e) } }

var refusals = map[string]struct {
	calls script
	text  string
}{
	"element first":       {script{put("f", 0, 1, "v")}, "an element comes before any key"},
	"part first":          {script{part("x")}, "a part comes before any key"},
	"end first":           {script{end(KeyEnd{})}, "an end comes before any key"},
	"two keys open":       {script{begin(TypeHash, 1), begin(TypeList, 1)}, `while key "job:k\xff" is open`},
	"section 0":           {script{beginKey(Key{Type: TypeHash})}, "unknown section(0)"},
	"section 5":           {script{beginKey(Key{Section: 5, Type: TypeHash})}, "unknown section(5)"},
	"type 7":              {script{begin(7, 0)}, "unknown type(7)"},
	"long name":           {script{beginKey(Key{Section: 1, Type: TypeHash, Name: make([]byte, MaxName+1)})}, "name of 16777217 bytes"},
	"negative expiry":     {script{beginKey(Key{Section: 1, Type: TypeHash, ExpireAt: -1})}, "expiry -1 ms"},
	"missing with expiry": {script{beginKey(Key{Section: 1, ExpireAt: 5})}, "is missing, but has the expiry 5"},
	"missing with count":  {script{begin(TypeMissing, 2)}, "and 2 elements"},
	"missing, element":    {script{begin(TypeMissing, 0), put("", 0, 1, "x")}, "is missing, but has an element"},
	"missing, expired":    {script{begin(TypeMissing, 0), end(KeyEnd{Expired: true})}, "has no expiry"},
	"string of none":      {script{begin(TypeString, 0)}, "string with 0 elements: want 1"},
	"opaque of two":       {script{begin(TypeOpaque, 2)}, "opaque with 2 elements: want 1"},
	"opaque, no type":     {script{beginKey(Key{Section: 1, Type: TypeOpaque, Count: 1})}, "without a type name"},
	"hash, type name":     {script{beginKey(Key{Section: 1, Type: TypeHash, TypeName: "hash"})}, "only opaque keys"},
	"hash, server":        {script{beginKey(Key{Section: 1, Type: TypeHash, Server: "7.0"})}, "only opaque keys"},
	"long type name": {script{beginKey(Key{Section: 1, Type: TypeOpaque, Count: 1, TypeName: strings.Repeat("m", maxLabel+1)})},
		"type name of 4097 bytes"},
	"string of two":     {script{begin(TypeString, 1), put("", 0, 1, "x"), put("", 0, 1, "y")}, "string with more than one element"},
	"opaque, element 2": {script{begin(TypeOpaque, 1), put("", 0, 1, "x"), put("", 0, 0, "")}, "opaque with more than one element"},
	"field of a list":   {script{begin(TypeList, 1), put("f", 0, 1, "x")}, `a list has the field "f"`},
	"score of a hash":   {script{begin(TypeHash, 1), put("f", 1.5, 1, "x")}, "a hash has the score 1.5"},
	"-0 of a set":       {script{begin(TypeSet, 1), put("", math.Copysign(0, -1), 1, "x")}, "a set has the score -0"},
	"NaN":               {script{begin(TypeZSet, 1), put("", math.NaN(), 1, "x")}, "score is not a number"},
	"value above size":  {script{begin(TypeList, 1), put("", 0, 1, "xy")}, "value has 2 bytes, its size says 1"},
	"huge part at once": {script{begin(TypeList, 1), put("", 0, MaxPart+1, strings.Repeat("x", MaxPart+1))}, "1048577 bytes of a value at once"},
	"long field":        {script{begin(TypeHash, 1), put(strings.Repeat("f", MaxName+1), 0, 1, "x")}, "field of 16777217 bytes"},
	"part of nothing":   {script{begin(TypeList, 1), part("x")}, "part of 1 bytes, the value lacks 0"},
	"part after end":    {script{begin(TypeList, 2), put("", 0, 1, "x"), part("y")}, "the value lacks 0 of 1"},
	"part too long":     {script{begin(TypeList, 1), put("", 0, 3, "x"), part("yzz")}, "part of 3 bytes, the value lacks 2 of 3"},
	"part over MaxPart": {script{begin(TypeList, 1), put("", 0, 5<<20, ""), part(strings.Repeat("x", MaxPart+1))}, "part of 1048577 bytes: at most"},
	"next too early":    {script{begin(TypeList, 2), put("", 0, 3, "x"), put("", 0, 1, "y")}, "while the value before lacks 2 of 3 bytes"},
	"end too early":     {script{begin(TypeList, 1), put("", 0, 3, "x"), end(KeyEnd{})}, "ends while a value lacks 2 of 3 bytes"},
	"too few":           {script{begin(TypeHash, 3), put("f", 0, 1, "x"), end(KeyEnd{})}, "1 elements were read, the server said 3"},
	"too many":          {script{begin(TypeSet, 1), put("", 0, 1, "x"), put("", 0, 1, "y"), end(KeyEnd{})}, "2 elements were read, the server said 1"},
	"string unread":     {script{begin(TypeString, 1), end(KeyEnd{})}, "0 elements were read, the server said 1"},
	"empty hash":        {script{begin(TypeHash, 0), end(KeyEnd{})}, "hash without elements"},
	"never expires":     {script{begin(TypeHash, 3), end(KeyEnd{Expired: true})}, "marked as expired, but has no expiry"},
	"expired and more": {script{beginKey(Key{Section: 1, Type: TypeSet, ExpireAt: 9, Name: []byte("job:k\xff")}),
		put("", 0, 1, "x"), end(KeyEnd{Expired: true})}, "1 elements were read, the server said 0"},
	"other count":  {script{begin(TypeSet, 1), put("", 0, 1, "x"), end(KeyEnd{Count: 2})}, "1 elements, its end says 2"},
	"other digest": {script{begin(TypeSet, 1), put("", 0, 1, "x"), end(KeyEnd{Count: 1, Digest: 5})}, "its end says 0000000000000005"},
}

func TestTheGrammarIsHeldAndErrorsStay(t *testing.T) {
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			for what, sink := range map[string]Sink{
				"encoder":  NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{ChunkTarget: 64}),
				"recorder": &Recorder{},
				"tee":      Tee(nothing{}, &Recorder{}),
			} {
				last := len(c.calls) - 1
				for _, call := range c.calls[:last] {
					require.NoError(t, call(sink), what)
				}
				err := c.calls[last](sink)
				require.ErrorContains(t, err, c.text, what)
				if last > 0 && !strings.Contains(name, "missing") {
					require.ErrorContains(t, err, `job:k\xff`, what)
				}
				require.Equal(t, err, begin(TypeHash, 1)(sink), what)
				require.Equal(t, err, put("f", 0, 1, "v")(sink), what)
				require.Equal(t, err, part("x")(sink), what)
				require.Equal(t, err, end(KeyEnd{})(sink), what)
			}
		})
	}
}

func TestCloseRefusesAnOpenKey(t *testing.T) {
	enc := NewEncoder(context.Background(), &MemChunks{}, EncoderOptions{})
	require.NoError(t, begin(TypeHash, 1)(enc))
	_, err := enc.Close()
	require.ErrorContains(t, err, `key "job:k\xff" is still open`)
}

func TestAnEmptyPartIsNoPart(t *testing.T) {
	var m MemChunks
	for _, sink := range []Sink{NewEncoder(context.Background(), &m, EncoderOptions{ChunkTarget: 80}), &Recorder{}} {
		for _, call := range (script{begin(TypeList, 2), put("", 0, 0, ""), part(""), put("", 0, 30, "abc"), part(""),
			part(strings.Repeat("d", 27)), part(""), end(KeyEnd{})}) {
			require.NoError(t, call(sink))
		}
	}
}

func TestTeeStopsAtTheFirstError(t *testing.T) {
	var before, after Recorder
	bad := errors.New("no room")
	s := Tee(&before, sinkFunc(func() error { return bad }), &after)
	require.Equal(t, bad, begin(TypeList, 1)(s))
	require.Len(t, before.Keys, 1)
	require.Empty(t, after.Keys)
	require.Equal(t, bad, end(KeyEnd{})(s))
	require.NoError(t, Replay(oddKeys(), Tee()))
}

// sinkFunc answers every call in the same way.
type sinkFunc func() error

func (f sinkFunc) BeginKey(Key) error    { return f() }
func (f sinkFunc) Element(Element) error { return f() }
func (f sinkFunc) Part([]byte) error     { return f() }
func (f sinkFunc) EndKey(KeyEnd) error   { return f() }

func TestLongNamesAreShortInErrors(t *testing.T) {
	var r Recorder
	err := r.BeginKey(Key{Section: SectionKeyed, Type: TypeString, Name: []byte(strings.Repeat("n", 5<<20))})
	require.ErrorContains(t, err, "(5242880 bytes)")
	require.Less(t, len(err.Error()), 500)
}
