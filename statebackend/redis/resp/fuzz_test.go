package resp

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func genValue(depth int) *rapid.Generator[Value] {
	bulk := rapid.Custom(func(t *rapid.T) Value {
		return Value{Kind: Bulk, Bytes: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")...)}
	})
	word := rapid.StringMatching(`[a-zA-Z0-9 ,:]{1,20}`)
	kinds := []*rapid.Generator[Value]{
		bulk,
		rapid.Just(Value{Kind: Bulk, Nil: true}),
		rapid.Just(Value{Kind: Array, Nil: true}),
		rapid.Map(rapid.Int64(), func(n int64) Value { return Value{Kind: Integer, Int: n} }),
		rapid.Map(word, func(s string) Value { return Value{Kind: Simple, Bytes: []byte(s)} }),
		rapid.Map(word, func(s string) Value {
			return Value{Kind: Failed, Err: &Error{Code: "WHY", Message: "WHY " + s}}
		}),
	}
	if depth > 0 {
		kinds = append(kinds, rapid.Map(rapid.SliceOfN(genValue(depth-1), 0, 6), func(all []Value) Value {
			return Value{Kind: Array, Array: append([]Value{}, all...)}
		}))
	}
	return rapid.OneOf(kinds...)
}

func encode(w *bytes.Buffer, v Value) {
	switch {
	case v.Nil:
		fmt.Fprintf(w, "%c-1\r\n", byte(v.Kind))
	case v.Kind == Simple:
		fmt.Fprintf(w, "+%s\r\n", v.Bytes)
	case v.Kind == Failed:
		fmt.Fprintf(w, "-%s\r\n", v.Err.Message)
	case v.Kind == Integer:
		fmt.Fprintf(w, ":%d\r\n", v.Int)
	case v.Kind == Bulk:
		fmt.Fprintf(w, "$%d\r\n%s\r\n", len(v.Bytes), v.Bytes)
	case v.Kind == Array:
		fmt.Fprintf(w, "*%d\r\n", len(v.Array))
		for _, inner := range v.Array {
			encode(w, inner)
		}
	}
}

// FuzzReply: any bytes give values or one final error; never a panic, never
// more memory than the limit allows.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		"+OK\r\n:1\r\n", "-ERR x\r\n$3\r\nabc\r\n", "*2\r\n$1\r\na\r\n*0\r\n", "$-1\r\n*-1\r\n", "*999999999\r\n",
		"$888888888\r\nx", strings.Repeat("*1\r\n", 50), ":-9223372036854775808\r\n", "$0\r\n\r\n", "*1\r\n*1\r\n-E\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _ := saysIn(bytes.NewReader(data))
		for c.Err() == nil {
			v, err := c.Reply(4096)
			if err == nil && cost(v) > 4096 {
				t.Fatalf("a reply of %d bytes went through a limit of 4096", cost(v))
			}
		}
		s, _ := saysIn(bytes.NewReader(data))
		for s.Err() == nil {
			_ = s.SkipReply() // an error reply is no end; a final error ends the loop
		}
	})
}

func cost(v Value) int {
	n := valueCost + len(v.Bytes)
	for _, inner := range v.Array {
		n += cost(inner)
	}
	return n
}
