package restore

import (
	"context"

	"keyframe/statebackend"
)

// SourceFindings says what the streams that exist now don't bear out of a
// checkpoint's positions: a stream that is gone, a position beyond its end,
// records after the position that were trimmed away. A job that goes on from
// there would lack them. None is nil. It only reads.
func SourceFindings(ctx context.Context, live statebackend.Records, positions []Position) ([]string, error) {
	records, _, err := newSources(ctx, live, positions).warnings()
	return records, err
}
