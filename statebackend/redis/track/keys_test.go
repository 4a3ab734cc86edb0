package track

import "testing"

func TestKeysPassTheSuite(t *testing.T) { runSuite(t, "keys", NewKeys, LevelKeys) }

func TestKeysPassTheProperty(t *testing.T) { runProperty(t, NewKeys, LevelKeys) }
