package snapshot

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// EncodeCheckpoint writes a row of a history as JSON. Every byte of every
// string survives, as in a manifest; times become UTC.
func EncodeCheckpoint(c Checkpoint) ([]byte, error) {
	b, err := json.Marshal(mapValue(reflect.ValueOf(c), escapeString).Interface())
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint %d of job %q: %w", c.ID, c.Job, err)
	}
	return b, nil
}

// DecodeCheckpoint reads what EncodeCheckpoint wrote. Errors wrap ErrCorrupt.
func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
	if err := json.Unmarshal(b, &c); err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint record: %w: %w", ErrCorrupt, err)
	}
	var bad error
	c = mapValue(reflect.ValueOf(c), func(s string) string {
		out, err := unescapeString(s)
		if err != nil && bad == nil {
			bad = err
		}
		return out
	}).Interface().(Checkpoint)
	if bad != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint record: %w: %w", ErrCorrupt, bad)
	}
	return c, nil
}
