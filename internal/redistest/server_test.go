package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServersAreStartedKilledAndComeBackEmpty(t *testing.T) {
	s := Start(t, Password("pw"))
	s.Do("SET", "a", "b")
	require.Equal(t, "b", s.Do("GET", "a"))
	was := s.Pid()
	s.RestartEmpty()
	require.NotEqual(t, was, s.Pid())
	require.Nil(t, s.Do("GET", "a"))

	secure := Start(t, TLS())
	secure.Do("SET", "a", "c")
	secure.Do("SAVE")
	secure.Restart()
	require.Equal(t, "c", secure.Do("GET", "a"))
}
