package copies

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"keyframe/snapshot"
	"keyframe/snapshot/storetest"
)

// TestMain uses the compressor and the decompressor once before any test: their
// pools are channels, and one that is made inside a bubble of fake time can't
// be used in the next.
func TestMain(m *testing.M) {
	chunks := &snapshot.MemChunks{}
	sum, err := storetest.Encode(context.Background(), chunks, storetest.Keys("warm", 500))
	if err == nil {
		err = snapshot.Walk(context.Background(), chunks, storetest.ManifestOf(storetest.Attempt("warm"), 1, sum), &snapshot.Recorder{})
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
