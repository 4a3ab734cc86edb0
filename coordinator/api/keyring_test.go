package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWithdrawnTokenStopsWorking(t *testing.T) {
	ring := NewKeyring(testKeys)
	s := newService(t, withKeys, func(o *Options) { o.Keyring = ring })
	ask := func(i int) int { return s.ask("GET", "/v1/jobs", "", as(testKeys[i])...).status }
	require.Equal(t, 200, ask(0))
	require.Equal(t, 200, ask(1))
	ring.Replace(testKeys[1:])
	require.Equal(t, 401, ask(0))
	require.Equal(t, 200, ask(1))
	swapped := testKeys[0]
	swapped.Secret = "another-secret-of-the-test"
	ring.Replace(testKeys[:0:0])
	require.Equal(t, 401, ask(1))
	require.Equal(t, 401, s.ask("GET", "/v1/jobs", "").status, "without any token left nobody is let in")
	ring.Replace(append(testKeys[:0:0], swapped))
	require.Equal(t, 401, ask(0))
	require.Equal(t, 200, s.ask("GET", "/v1/jobs", "", as(swapped)...).status)
}
