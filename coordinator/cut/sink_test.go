package cut

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// What the server says of the names beats what the checkpoint before had, and
// the rows lie where they were put first.
func TestTheLedgerMakesRoomForWhatIsExpected(t *testing.T) {
	const names = 3000
	m := model{}
	for i := range names {
		m[stateName(i%16, i)] = map[string]string{"f": "v"}
	}
	s := &sink{ctx: t.Context(), w: dropped{}, names: 5, progress: func(string, uint64, uint64, uint64) {},
		tally: func() tally { return newTally(tallyJob, 16) }}
	s.Expect(names)
	var first *row
	for i, k := range m.records() {
		require.NoError(t, snapshot.Replay([]snapshot.RecordedKey{k}, s))
		if i == 0 {
			first = &s.count.draft.rows[0][0]
		}
	}
	require.Len(t, s.count.draft.rows[0], names)
	require.Same(t, first, &s.count.draft.rows[0][0], "the rows were moved")
	_, err := s.close()
	require.NoError(t, err)
}

func TestTheLedgerMakesNoRoomBeyondItsBound(t *testing.T) {
	s := &sink{ctx: t.Context(), w: dropped{}, progress: func(string, uint64, uint64, uint64) {},
		tally: func() tally { return newTally(tallyJob, 16) }}
	old := MaxLedgerKeys
	MaxLedgerKeys = 100
	t.Cleanup(func() { MaxLedgerKeys = old })
	s.Expect(1 << 62)
	s.begin(false)
	require.Equal(t, 100, cap(s.count.draft.rows[0]))
	_, err := s.close()
	require.NoError(t, err)
}
