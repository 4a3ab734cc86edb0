package redis

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// awkward draws bytes of every kind: empty, numbers in all forms, the lengths
// at which an encoding changes, and anything.
func awkward(t *rapid.T, what string) []byte {
	return rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, 20),
		rapid.Map(rapid.Int64(), func(n int64) []byte { return fmt.Append(nil, n) }),
		rapid.Map(rapid.IntRange(-70000, 70000), func(n int) []byte { return fmt.Append(nil, n) }),
		rapid.SampledFrom([][]byte{nil, []byte("0"), []byte("-0"), []byte("007"), []byte("1.0"), []byte("\r\n$5\r\n"),
			[]byte("9223372036854775808"), []byte("-9223372036854775808"), []byte("inf")}),
		rapid.Map(rapid.SampledFrom([]int{63, 64, 65, 127, 128, 4095, 4096, 1<<14 - 1, 1 << 14, 70_000}),
			func(n int) []byte { return bytes.Repeat([]byte("x"), n) }),
	).Draw(t, what)
}

var awkwardScores = []float64{math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 0.1, 3.0000000000000004, 9007199254740993,
	5e-324, -1.5, math.MaxFloat64, 1e21, -7, 1 << 40}

// drawKey draws a key of any type that has a payload, its elements all
// different where the type wants it.
func drawKey(t *rapid.T, name string) staged {
	k := staged{key: snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte(name),
		Type: rapid.SampledFrom([]snapshot.KeyType{snapshot.TypeHash, snapshot.TypeList, snapshot.TypeSet, snapshot.TypeZSet}).Draw(t, "type")}}
	if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
		k.key.ExpireAt = time.Now().Add(time.Hour).UnixMilli() + int64(rapid.IntRange(0, 1000).Draw(t, "ms"))
	}
	seen := map[string]bool{}
	for i := range rapid.SampledFrom([]int{1, 2, 5, 40, 130, 600}).Draw(t, "elements") {
		id := awkward(t, "id")
		for n := i; seen[string(id)]; n++ {
			id = fmt.Appendf(nil, "%.30s-%d", id, n)
		}
		seen[string(id)] = true
		e := snapshot.Element{Value: id}
		switch k.key.Type {
		case snapshot.TypeHash:
			e.Field, e.Value = id, awkward(t, "value")
		case snapshot.TypeZSet:
			e.Score = rapid.SampledFrom(awkwardScores).Draw(t, "score")
		}
		e.Size = uint64(len(e.Value))
		k.elements = append(k.elements, e)
	}
	k.sum()
	return k
}

// encodings gives how the server keeps each key.
func encodings(t testing.TB, c *goredis.Client, keys []staged) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, k := range keys {
		all[string(k.key.Name)] = c.ObjectEncoding(context.Background(), string(k.key.Name)).Val()
	}
	return all
}

// Whatever a key holds: staged as a payload it becomes the same key as staged
// with plain commands, and the server keeps it in the same encoding.
func TestAPayloadMakesWhatPlainCommandsMakeI3(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		var keys []staged
		for i := range rapid.IntRange(1, 8).Draw(rt, "keys") {
			keys = append(keys, drawKey(rt, fmt.Sprintf("%s:cg:%d", testJob.Root(), i)))
		}
		outcome := func(plain bool) (map[string]string, map[string]string) {
			require.NoError(t, c.FlushAll(ctx).Err())
			req := testRequest("payload", 0)
			req.Plain = plain
			res, err := restore(ctx, b, req, keys)
			require.NoError(t, err)
			require.Equal(t, uint64(len(keys)), res.Keys)
			require.Empty(t, res.Warning)
			_, all := apart(digests(t, c), testJob)
			return all, encodings(t, c, keys)
		}
		want, wantKept := outcome(true)
		got, gotKept := outcome(false)
		requireSame(t, want, got, "as a payload")
		require.Equal(t, wantKept, gotKept)
	})
}

// Keys around the largest payload: below it, above it, with long values in it
// and values that don't fit into any.
func TestKeysAroundTheLargestPayload(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for i, g := range []generated{
		{keys: 2, elements: 30_000, size: 20, kind: snapshot.TypeHash},
		{keys: 1, elements: 20_000, size: 500, kind: snapshot.TypeHash},
		{keys: 1, elements: 20_000, size: 500, kind: snapshot.TypeList},
		{keys: 1, elements: 20_000, size: 500, kind: snapshot.TypeSet},
		{keys: 1, elements: 20_000, size: 500, kind: snapshot.TypeZSet},
		{keys: 3, elements: 7, size: 3 << 20, kind: snapshot.TypeHash},
		{keys: 2, elements: 5, size: 3 << 20, kind: snapshot.TypeZSet},
		{keys: 2, elements: 5, size: 9 << 20, kind: snapshot.TypeList},
	} {
		var outcomes []map[string]string
		for _, plain := range []bool{true, false} {
			require.NoError(t, c.FlushAll(ctx).Err())
			req := testRequest(fmt.Sprintf("around%d", i), 0)
			req.Plain = plain
			restoreGenerated(t, b, req, g)
			_, all := apart(digests(t, c), testJob)
			outcomes = append(outcomes, all)
		}
		requireSame(t, outcomes[0], outcomes[1], fmt.Sprintf("%+v", g))
	}
}

// gathered makes a payload of a key's elements.
func gathered(p *payload, k staged) {
	p.begin(k.key.Type)
	for _, e := range k.elements {
		rest := e.Value
		e.Value = rest[:len(rest)/2]
		p.element(k.key.Type == snapshot.TypeHash, e)
		if len(rest) > 0 {
			p.part(rest[len(rest)/2:])
		}
	}
}

func TestAPayloadIsReadAsItWasWritten(t *testing.T) {
	var p payload
	var r payloadReader
	rapid.Check(t, func(rt *rapid.T) {
		k := drawKey(rt, "k")
		gathered(&p, k)
		body := p.body()
		got, err := r.read(body, true)
		require.NoError(t, err)
		require.Equal(t, summary{count: k.end.Count, digest: k.end.Digest}, got)

		// Cut short it is malformed, and whatever else is changed is either
		// malformed or other content.
		_, err = r.read(body[:rapid.IntRange(0, len(body)-1).Draw(rt, "cut")], false)
		require.Error(t, err)
		at := rapid.IntRange(1, len(body)-1).Draw(rt, "at") // the type is the key's
		other := bytes.Clone(body)
		other[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "bits"))
		if got, err := r.read(other, true); err == nil {
			require.NotEqual(t, summary{count: k.end.Count, digest: k.end.Digest}, got, "byte %d", at)
		}
	})
}

func FuzzReadPayload(f *testing.F) {
	f.Add([]byte{rdbHash, length32, 0, 0, 0, 1, 1, 'f', 1, 'v'})
	f.Add([]byte{rdbZSet2, length32, 0, 0, 0, 1, 1, 'm', 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{rdbList, length32, 0xff, 0xff, 0xff, 0xff, 0x80, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r payloadReader
		got, err := r.read(b, true)
		if err == nil && got.count > uint64(len(b)) {
			t.Fatalf("%d elements in %d bytes", got.count, len(b))
		}
	})
}

func TestAFieldThatComesTwiceIsFound(t *testing.T) {
	var p payload
	var r payloadReader
	for _, n := range []int{2, 3, 100, 5000} {
		k := staged{key: snapshot.Key{Type: snapshot.TypeHash}}
		for i := range n {
			k.elements = append(k.elements, snapshot.Element{Field: fmt.Append(nil, i), Size: 1, Value: []byte("v")})
		}
		gathered(&p, k)
		_, err := r.read(p.body(), false)
		require.NoError(t, err)
		k.elements[n-1].Field = k.elements[n/3].Field
		gathered(&p, k)
		_, err = r.read(p.body(), false)
		require.ErrorContains(t, err, "comes twice")
	}
}

// The compact form of a small hash is byte for byte what the server makes of
// the same hash.
func TestTheCompactFormIsTheServersOwn(t *testing.T) {
	srv := redistest.Start(t, redistest.Setting("rdbcompression no"))
	c, ctx := srv.Client(), context.Background()
	var p payload
	var r payloadReader
	packed := 0
	rapid.Check(t, func(rt *rapid.T) {
		k := drawKey(rt, "k")
		if k.key.Type != snapshot.TypeHash {
			return
		}
		gathered(&p, k)
		_, err := r.read(p.body(), true)
		require.NoError(t, err)
		pack := r.pack.payload()
		small := len(k.elements) <= packElements
		args := []any{"HSET", "k"}
		for _, e := range k.elements {
			small = small && len(e.Field) <= packValue && len(e.Value) <= packValue
			args = append(args, e.Field, e.Value)
		}
		require.Equal(t, small, pack != nil)
		if !small {
			return
		}
		packed++
		require.NoError(t, c.FlushAll(ctx).Err())
		require.NoError(t, c.Do(ctx, args...).Err())
		dump, err := c.Dump(ctx, "k").Bytes()
		require.NoError(t, err)
		list := pack[payloadHead : len(pack)-payloadFoot]
		require.Equal(t, uint32(len(list)), binary.LittleEndian.Uint32(list))
		require.Equal(t, byte(rdbHashListpack), dump[0])
		require.True(t, bytes.HasSuffix(dump[:len(dump)-payloadFoot], list), "%x is not the end of %x", list, dump)
		require.NoError(t, c.Do(ctx, "RESTORE", "again", "0", string(pack)).Err())
		require.Equal(t, digests(t, c)["k"], digests(t, c)["again"])
	})
	require.NotZero(t, packed)
}

func TestNumbersAreThoseOfTheServer(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-1": -1, "127": 127, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64} {
		n, ok := integer([]byte(text))
		require.True(t, ok, text)
		require.Equal(t, want, n)
	}
	for _, text := range []string{"", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "-9223372036854775809", "99999999999999999999"} {
		_, ok := integer([]byte(text))
		require.False(t, ok, text)
	}
}

func TestNamesAreRememberedInTheirOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var c codedNames
		var mapped, indexed [][]byte
		prefix := strings.Repeat("p:", rapid.IntRange(0, 200).Draw(rt, "prefix"))
		for range rapid.IntRange(0, 50).Draw(rt, "names") {
			name := append([]byte(prefix), awkward(rt, "name")...)
			m, i := rapid.Bool().Draw(rt, "mapped"), rapid.Bool().Draw(rt, "indexed")
			c.add(name, m, i)
			if m {
				mapped = append(mapped, name)
			}
			if i {
				indexed = append(indexed, name)
			}
		}
		for flag, want := range map[uint64][][]byte{codedMapped: mapped, codedIndexed: indexed} {
			var got [][]byte
			size := uint64(0)
			require.NoError(t, c.each(flag, func(name []byte) error {
				got = append(got, bytes.Clone(name))
				size += uint64(len(appendLength(nil, uint64(len(name))))) + uint64(len(name))
				return nil
			}))
			require.Equal(t, len(want), len(got))
			for i := range want {
				require.Equal(t, string(want[i]), string(got[i]))
			}
			sum := map[uint64]textSum{codedMapped: c.mapped, codedIndexed: c.indexed}[flag]
			require.Equal(t, textSum{count: uint32(len(want)), bytes: size}, sum)
		}
	})
}

// registry is a schema registry of so many keys, with few different schemas.
func registry(keys int, long bool) staged {
	k := staged{key: snapshot.Key{Section: snapshot.SectionMeta, Name: []byte(testJob.Registry()), Type: snapshot.TypeHash}}
	pad := ""
	if keys > 10_000 {
		pad = strings.Repeat(" and a name that goes on", 22) // over three payloads in all
	}
	for i := range keys {
		v := fmt.Sprintf("com.example.Schema%d|%d", i%3, i%5)
		if long && i == keys/2 {
			v = strings.Repeat("a class with a very long name ", 80_000) // more than a part
		}
		k.elements = append(k.elements, snapshot.Element{Field: fmt.Appendf(nil, "%s:cg:stats:topic:flights:p:%d:state:op:name:s:%d%s", testJob.Root(), i%128, i*7919, pad),
			Size: uint64(len(v)), Value: []byte(v)})
	}
	k.sum()
	return k
}

// A registry of any size becomes the same by a payload that is made as it is
// sent, and where that ends in the middle.
func TestTheRegistryIsRestoredAsItWas(t *testing.T) {
	srv := redistest.Start(t)
	c, b, ctx := srv.Client(), openTest(t, srv), context.Background()
	for i, k := range []staged{registry(1, false), registry(3000, false), registry(3000, true), registry(45_000, false)} {
		var outcomes []map[string]string
		for _, plain := range []bool{true, false} {
			require.NoError(t, c.FlushAll(ctx).Err())
			req := testRequest(fmt.Sprintf("registry%d", i), 0)
			req.Plain = plain
			_, err := restore(ctx, b, req, []staged{k})
			require.NoError(t, err)
			require.Equal(t, int64(len(k.elements)), c.HLen(ctx, testJob.Registry()).Val())
			_, all := apart(digests(t, c), testJob)
			outcomes = append(outcomes, all)
		}
		requireSame(t, outcomes[0], outcomes[1], fmt.Sprintf("%d fields", len(k.elements)))
	}
	twice := registry(300, false)
	twice.elements[299].Field = twice.elements[5].Field
	twice.sum()
	_, err := restore(ctx, b, testRequest("twice", 4), []staged{twice})
	require.ErrorContains(t, err, "comes twice")
	noTraces(t, c, testJob)
	wrong := registry(300, false)
	wrong.end.Digest++
	_, err = restore(ctx, b, testRequest("wrong", 4), []staged{wrong})
	require.ErrorIs(t, err, statebackend.ErrMismatch)
	noTraces(t, c, testJob)
}
