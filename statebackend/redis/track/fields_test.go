package track

import "testing"

func TestFields(t *testing.T) { runSuite(t, "fields", NewFields, LevelFields) }
