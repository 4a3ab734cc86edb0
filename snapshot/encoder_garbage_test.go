package snapshot

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// encodedBy is what an encoder allocates while push fills it.
func encodedBy(t *testing.T, push func(Sink) error) (allocs int64, sum Summary) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e := NewEncoder(context.Background(), &discard{}, EncoderOptions{})
	require.NoError(t, push(e))
	sum, err := e.Close()
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), sum
}

// pushRuns pushes one hash as those who read do: a run at a time.
func pushRuns(sink Sink, fields int) error {
	if err := sink.BeginKey(Key{Section: SectionKeyed, Type: TypeHash, Name: []byte("job:runs"), Count: uint64(fields)}); err != nil {
		return err
	}
	names, run := make([]byte, 8*500), make([]Element, 500)
	value := []byte(`{"count":1,"mean":12.5,"name":"airport-of-a-longer-name"}`)
	for at := 0; at < fields; at += len(run) {
		for i := range run {
			n := names[8*i : 8*i : 8*i+8]
			for _, shift := range []int{20, 15, 10, 5, 0} {
				n = append(n, 'a'+byte((at+i)>>shift&31))
			}
			run[i] = Element{Field: n, Value: value, Size: uint64(len(value))}
		}
		if err := PushElements(sink, run); err != nil {
			return err
		}
	}
	return sink.EndKey(KeyEnd{})
}

// pushLong pushes one value of 16 MiB that no compressor would help.
func pushLong(sink Sink) error {
	value := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(value) // never fails
	if err := sink.BeginKey(Key{Section: SectionKeyed, Type: TypeString, Name: []byte("job:long"), Count: 1}); err != nil {
		return err
	}
	if err := sink.Element(Element{Size: 16 << 20, Value: value[:1000]}); err != nil {
		return err
	}
	for left := 16<<20 - 1000; left > 0; left -= min(left, 4000) {
		if err := sink.Part(value[left%1000:][:min(left, 4000)]); err != nil {
			return err
		}
	}
	return sink.EndKey(KeyEnd{})
}

// The buffers of three chunks go round, and each is made in few steps: however
// much is written, and however the caller brings it.
func TestAnEncoderAllocatesItsBuffersOnce(t *testing.T) {
	_, _ = encodedBy(t, func(s Sink) error { return pushHash(s, "job:warm", 40_000) }) // the compressor's own
	for name, push := range map[string]func(Sink) error{
		"one by one": func(s Sink) error { return pushHash(s, "job:big", 200_000) },
		"in runs":    func(s Sink) error { return pushRuns(s, 200_000) },
	} {
		allocs, sum := encodedBy(t, push)
		require.Greater(t, sum.Bytes, uint64(12_000_000), name)
		require.Less(t, allocs, int64(8<<20), name)
	}
	allocs, _ := encodedBy(t, pushLong)
	require.Less(t, allocs, int64(10<<20))
}

// A checkpoint of what little changed must not take a full chunk's buffers.
func TestAnEncoderOfLittleAllocatesLittle(t *testing.T) {
	_, _ = encodedBy(t, func(s Sink) error { return pushHash(s, "job:warm", 40_000) })
	allocs, sum := encodedBy(t, func(s Sink) error { return pushHash(s, "job:small", 500) })
	require.Greater(t, sum.Bytes, uint64(20<<10))
	require.Less(t, allocs, int64(400<<10))
}

// A chunk is sealed into the buffer of one that was a little smaller.
func TestAnEnvelopeIsMadeInTheBufferOfTheOneBefore(t *testing.T) {
	var buf []byte
	for i := range 8 {
		raw := append([]byte{byte(SectionKeyed)}, bytes.Repeat([]byte("value "), 10_000+20*i)...)
		_, out, err := sealChunk(raw, buf)
		require.NoError(t, err)
		if i > 0 {
			require.Same(t, &buf[:1][0], &out[0], "chunk %d", i)
		}
		require.LessOrEqual(t, cap(out), len(raw), "room for what compresses")
		buf = out[:0]
	}
}
