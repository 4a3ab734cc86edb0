package snapshot

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// discard takes chunks and keeps none.
type discard struct{ bytes uint64 }

func (d *discard) WriteChunk(_ context.Context, c Chunk) (bool, error) {
	d.bytes += uint64(len(c.Data))
	return true, nil
}

// pushHash pushes one hash without allocating per field.
func pushHash(sink Sink, name string, fields int) error {
	if err := sink.BeginKey(Key{Section: SectionKeyed, Type: TypeHash, Name: []byte(name), Count: uint64(fields)}); err != nil {
		return err
	}
	var field, value []byte
	for i := range fields {
		field = strconv.AppendInt(append(field[:0], "s:key-"...), int64(i), 10)
		value = strconv.AppendInt(append(value[:0], `{"count":`...), int64(i%977), 10)
		value = strconv.AppendInt(append(value, `,"mean":12.5,"name":"airport-`...), int64(i)*2654435761, 16)
		value = append(value, `"}`...)
		if err := sink.Element(Element{Field: field, Size: uint64(len(value)), Value: value}); err != nil {
			return err
		}
	}
	return sink.EndKey(KeyEnd{})
}

func BenchmarkEncode(b *testing.B) {
	const fields = 200_000
	var bytes uint64
	b.ReportAllocs()
	for b.Loop() {
		enc := NewEncoder(context.Background(), &discard{}, EncoderOptions{})
		require.NoError(b, pushHash(enc, "job:big", fields))
		sum, err := enc.Close()
		require.NoError(b, err)
		bytes = sum.Bytes
		b.ReportMetric(float64(sum.Stored)/float64(sum.Bytes), "stored/byte")
	}
	b.SetBytes(int64(bytes))
	b.ReportMetric(fields*float64(b.N)/b.Elapsed().Seconds(), "elements/s")
}

// nothing is the cheapest sink.
type nothing struct{}

func (nothing) BeginKey(Key) error    { return nil }
func (nothing) Element(Element) error { return nil }
func (nothing) Part([]byte) error     { return nil }
func (nothing) EndKey(KeyEnd) error   { return nil }

func BenchmarkDecode(b *testing.B) {
	const fields = 200_000
	s := &saved{}
	enc := NewEncoder(context.Background(), s, EncoderOptions{})
	require.NoError(b, pushHash(enc, "job:big", fields))
	sum, err := enc.Close()
	require.NoError(b, err)
	m := manifestOf(sum)
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, Walk(context.Background(), s, m, nothing{}))
	}
	b.SetBytes(int64(sum.Bytes))
	b.ReportMetric(fields*float64(b.N)/b.Elapsed().Seconds(), "elements/s")
}

// layeredBench is a base of 16 hashes of 62,500 fields, and layers that each
// patch one field in a hundred.
func layeredBench(b *testing.B, layers int) (*saved, *Manifest) {
	const hashes, fields = 16, 62_500
	s := &saved{}
	names := make([]string, hashes)
	for i := range names {
		names[i] = "job:big:" + strconv.Itoa(i)
	}
	slices.SortFunc(names, func(a, b string) int { return CompareNames([]byte(a), []byte(b)) })
	enc := NewEncoder(context.Background(), s, EncoderOptions{})
	for _, name := range names {
		require.NoError(b, pushHash(enc, name, fields))
	}
	for layer := range layers {
		require.NoError(b, enc.NextLayer())
		for _, name := range names {
			require.NoError(b, enc.BeginKey(Key{Section: SectionKeyed, Op: OpPatch, Type: TypeHash, Name: []byte(name), Count: fields}))
			for i := layer; i < fields; i += 100 {
				value := []byte(`{"count":` + strconv.Itoa(i) + `,"mean":99.5,"name":"airport-of-the-layer"}`)
				require.NoError(b, enc.Element(Element{Field: []byte("s:key-" + strconv.Itoa(i)), Size: uint64(len(value)), Value: value}))
			}
			require.NoError(b, enc.EndKey(KeyEnd{}))
		}
	}
	sum, err := enc.Close()
	require.NoError(b, err)
	m := manifestOf(sum)
	m.Layers = sum.Layers[1:]
	m.Sorted = sum.Sorted
	c := &m.Checkpoint
	c.Keys, c.Elements, c.BytesEstimated, c.FullBytes = hashes, hashes*fields, true, sum.Stored
	return s, m
}

// BenchmarkWalkLayers reads a million fields with 0, 1 and 7 layers over them.
func BenchmarkWalkLayers(b *testing.B) {
	for _, layers := range []int{0, 1, 7} {
		b.Run(strconv.Itoa(layers+1), func(b *testing.B) {
			s, m := layeredBench(b, layers)
			var bytes uint64
			for ref := range m.AllChunks() {
				bytes += ref.Raw
			}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Walk(context.Background(), s, m, nothing{}))
			}
			b.SetBytes(int64(bytes))
			b.ReportMetric(float64(m.Checkpoint.Elements)*float64(b.N)/b.Elapsed().Seconds(), "elements/s")
		})
	}
}
