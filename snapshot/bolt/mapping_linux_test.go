package bolt

import (
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who limits the addresses of a process wants the store to open all the same.
func TestAddressesThatAreCountedAreNotTaken(t *testing.T) {
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_AS, &was))
	unlimited := strconv.IntSize == 64 && was.Cur == 1<<64-1
	require.Equal(t, unlimited, initialMap() > 0)
	limited := was
	limited.Cur = min(was.Cur, 1<<62) // more than there is, so that nothing else feels it
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_AS, &limited))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_AS, &was)) }()
	require.Zero(t, initialMap())
	f := newFixture(t)
	_, _ = storeSound(t, f.db, 0, 40, 256<<10)
}
