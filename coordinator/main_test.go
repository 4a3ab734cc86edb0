package coordinator

import (
	"bytes"
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"keyframe/snapshot"
)

// TestMain uses the compressor once before any test: its pools are channels,
// and one that is made inside a bubble of fake time can't be used in the next.
func TestMain(tests *testing.M) {
	chunks := &snapshot.MemChunks{}
	enc := snapshot.NewEncoder(context.Background(), chunks, snapshot.EncoderOptions{})
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	// Long and dull enough to be compressed.
	value := bytes.Repeat([]byte("keyframe"), 1000)
	must(enc.BeginKey(snapshot.Key{Section: snapshot.SectionKeyed, Name: []byte("k"), Type: snapshot.TypeString, Count: 1}))
	must(enc.Element(snapshot.Element{Size: uint64(len(value)), Value: value}))
	must(enc.EndKey(snapshot.KeyEnd{}))
	sum, err := enc.Close()
	must(err)
	m := &snapshot.Manifest{Format: snapshot.FormatVersion, Chunks: sum.Chunks}
	// What it says of this small manifest doesn't matter: the chunk is read.
	_ = snapshot.Walk(context.Background(), chunks, m, &snapshot.Recorder{})
	goleak.VerifyTestMain(tests, goleak.Cleanup(os.Exit))
}
