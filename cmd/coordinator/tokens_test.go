package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// A token whose file is removed stops working while the daemon runs, and one
// that is changed is the new one: within moments, or at once with a SIGHUP.
func TestAWithdrawnTokenFileStopsWorking(t *testing.T) {
	r := startRedis(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, secret string) { require.NoError(t, os.WriteFile(path(name), []byte(secret+"\n"), 0o600)) }
	admin, alice, bob := strings.Repeat("a", 32), strings.Repeat("b", 32), strings.Repeat("c", 32)
	put("admin", admin)
	put("alice", alice)
	d := start(t, strings.Replace(yaml(t, r.URL(), ""), "api: {", "api: {tokenFile: "+path("admin")+", tokens: [{name: alice, role: viewer, file: "+path("alice")+"}], ", 1))
	works := func(token string) bool {
		d.env["COORDINATOR_TOKEN"] = token
		res := d.run("job", "list")
		if res.code != exitDone {
			require.Contains(t, res.err, "the API token is missing or wrong")
		}
		return res.code == exitDone
	}
	require.True(t, works(admin))
	require.True(t, works(alice))
	require.NoError(t, os.Remove(path("alice")))
	require.Eventually(t, func() bool { return !works(alice) }, 10*time.Second, 20*time.Millisecond)
	require.True(t, works(admin))
	d.logged(`token "alice" (api.tokens[0].file): can't be read`)
	put("alice", bob)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	d.logged("tokens are read again")
	require.Eventually(t, func() bool { return works(bob) }, 10*time.Second, 20*time.Millisecond)
	require.False(t, works(alice))
	// The last one is withdrawn: nobody is let in, also without a token.
	require.NoError(t, os.Remove(path("alice")))
	require.NoError(t, os.Remove(path("admin")))
	require.Eventually(t, func() bool { return !works(admin) }, 10*time.Second, 20*time.Millisecond)
	require.False(t, works(""))
	require.Equal(t, fault.Denied, d.refused(exitRefused, "job", "list").Code)
	put("admin", admin)
	require.Eventually(t, func() bool { return works(admin) }, 10*time.Second, 20*time.Millisecond)
	for _, secret := range []string{admin, alice, bob} {
		require.NotContains(t, d.log.String(), secret)
	}
}
