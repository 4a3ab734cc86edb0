package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type expecting struct {
	Recorder
	keys []uint64
}

var _ ExpectSink = (*expecting)(nil)

func (e *expecting) Expect(keys uint64) { e.keys = append(e.keys, keys) }

func TestOnlyASinkThatWantsToKnowIsToldWhatComes(t *testing.T) {
	var e expecting
	Expect(&e, 70_000)
	require.Equal(t, []uint64{70_000}, e.keys)
	Expect(&Recorder{}, 1)
	Expect(nil, 2)
	require.Len(t, e.keys, 1)
}
