package redis

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

const secret = "s3cr%t/p@ss#w:rd?"

func escaped() string { return url.QueryEscape(secret) }

// refusedOpen opens and wants that error, without the password in it.
func refusedOpen(t *testing.T, c Config, sentinel error, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b, err := Open(ctx, c)
	require.ErrorIs(t, err, sentinel)
	require.Nil(t, b)
	for _, p := range parts {
		require.ErrorContains(t, err, p)
	}
	requireNoSecret(t, err)
}

func requireNoSecret(t *testing.T, err error) {
	t.Helper()
	for _, form := range []string{secret, escaped(), "s3cr", "p@ss", "w:rd"} {
		require.NotContains(t, err.Error(), form)
	}
}

func TestBadAddressesAreOneClearErrorWithoutThePassword(t *testing.T) {
	bad := statebackend.ErrInvalidConfig
	refusedOpen(t, Config{}, bad, "scheme")
	refusedOpen(t, Config{URL: "127.0.0.1:6379"}, bad)
	refusedOpen(t, Config{URL: "http://h:1/0"}, bad, `"http"`)
	refusedOpen(t, Config{URL: "redis://u:" + secret + "@h:6379/0"}, bad, "percent-encode")
	refusedOpen(t, Config{URL: "redis://u:s3cr/1@h:6379/0"}, bad, "percent-encode")
	refusedOpen(t, Config{URL: "redis://u:1/s3cr@h:6379/0"}, bad, "percent-encode")
	refusedOpen(t, Config{URL: "redis://u:s3cr?x@h:6379/0"}, bad, "percent-encode")
	refusedOpen(t, Config{URL: "redis://u:s3cr#x@h:6379/0"}, bad, "percent-encode")
	refusedOpen(t, Config{URL: "redis://:" + escaped() + "@h:99999/0"}, bad, `"99999"`)
	refusedOpen(t, Config{URL: "redis://:" + escaped() + "@h/zero"}, bad, `"zero"`)
	refusedOpen(t, Config{URL: "redis://h/-1"}, bad, `"-1"`)
	refusedOpen(t, Config{URL: "redis://h/0?read_timeout=3s"}, bad, "options")
	refusedOpen(t, Config{URL: "redis://a:1,b:2/0"}, bad)
	refusedOpen(t, Config{URL: "redis:///0"}, bad, "no host")
	refusedOpen(t, Config{URL: "redis://user@h/0"}, bad, `"user"`)
	refusedOpen(t, Config{URL: "unix://relative.sock"}, bad, "three slashes")
	refusedOpen(t, Config{URL: "unix:///s.sock?name=x"}, bad, `"name"`)
	refusedOpen(t, Config{URL: "redis://h/0", CAFile: "ca.pem"}, bad, "rediss://")
	refusedOpen(t, Config{URL: "rediss://h/0", CAFile: "/no/such/ca.pem"}, bad, "/no/such/ca.pem")
	refusedOpen(t, Config{URL: "rediss://h/0", CertFile: "c.pem"}, bad, "both or none")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, []byte("no certificate"), 0o600))
	refusedOpen(t, Config{URL: "rediss://h/0", CAFile: empty}, bad, "no PEM")
	refusedOpen(t, Config{URL: "rediss://h/0", CertFile: empty, KeyFile: empty}, bad, empty)
}

func TestServersThatDoNotLetUsIn(t *testing.T) {
	closed := redistest.FreeAddr(t)
	refusedOpen(t, Config{URL: "redis://:" + escaped() + "@" + closed + "/0"}, statebackend.ErrUnreachable, closed, "is the server running")
	refusedOpen(t, Config{URL: "unix:///no/such.sock?db=3"}, statebackend.ErrUnreachable, "unix:///no/such.sock?db=3")

	srv := redistest.Start(t)
	srv.Do("CONFIG", "SET", "requirepass", secret)
	refusedOpen(t, Config{URL: "redis://" + srv.Addr + "/0"}, statebackend.ErrAuth, "check user and password")
	refusedOpen(t, Config{URL: "redis://:wrong@" + srv.Addr + "/0"}, statebackend.ErrAuth, "WRONGPASS")
	refusedOpen(t, Config{URL: "redis://nobody:" + escaped() + "@" + srv.Addr + "/0"}, statebackend.ErrAuth)
	refusedOpen(t, Config{URL: "redis://:" + escaped() + "@" + srv.Addr + "/99"}, statebackend.ErrInvalidConfig, "no database 99")
	refusedOpen(t, Config{URL: "rediss://:" + escaped() + "@" + srv.Addr + "/0", Timeout: 300 * time.Millisecond}, statebackend.ErrUnreachable, "TLS")

	open := redistest.Start(t)
	open.Signal(syscall.SIGSTOP)
	refusedOpen(t, Config{URL: "redis://" + open.Addr + "/0", Timeout: 200 * time.Millisecond}, statebackend.ErrUnreachable)
	open.Signal(syscall.SIGCONT)

	secure := redistest.Start(t, redistest.TLS())
	refusedOpen(t, Config{URL: secure.URL()}, statebackend.ErrUnreachable, "TLS", "authority")
	refusedOpen(t, Config{URL: "redis://" + secure.Addr + "/0", Timeout: 2 * time.Second}, statebackend.ErrUnreachable, "rediss://")
}

func TestServersThatAreBusyAreUnreachableNow(t *testing.T) {
	b := &Backend{}
	for reply, sentinel := range map[string]error{
		"LOADING Redis is loading the dataset in memory":             statebackend.ErrUnreachable,
		"BUSY Redis is busy running a script":                        statebackend.ErrUnreachable,
		"ERR max number of clients reached":                          statebackend.ErrUnreachable,
		"READONLY You can't write against a read only replica.":      statebackend.ErrReadOnly,
		"OOM command not allowed when used memory > 'maxmemory'.":    statebackend.ErrNoRoom,
		"NOPERM this user has no permissions to run the 'x' command": statebackend.ErrPermission,
	} {
		err := b.mapError(replyError(reply), "do this")
		require.ErrorIs(t, err, sentinel, reply)
		word, _, _ := strings.Cut(reply, " ")
		require.ErrorContains(t, err, word)
		require.Equal(t, err.Error(), strings.TrimPrefix(b.mapError(err, "again").Error(), "again: "), "not mapped twice")
	}
	require.NoError(t, b.mapError(nil, "nothing"))
	require.ErrorIs(t, b.mapError(context.Canceled, "x"), context.Canceled)
	require.NotErrorIs(t, b.mapError(context.Canceled, "x"), statebackend.ErrUnreachable)
	require.ErrorIs(t, b.mapError(net.ErrClosed, "x"), statebackend.ErrUnreachable)
}

// replyError is an error reply as go-redis gives one.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestOpenedStoresAgreeOnUserDatabaseAndTLS(t *testing.T) {
	srv := redistest.Start(t)
	sock := filepath.Join(t.TempDir(), "r.sock")
	second := redistest.Start(t, redistest.Setting("unixsocket "+sock))
	srv.Do("ACL", "SETUSER", "frame", "on", ">"+secret, "~*", "&*", "+@all", "-client")
	secure := redistest.Start(t, redistest.TLS(), redistest.Password("pw"))
	for _, c := range []struct {
		config Config
		server string
		admin  *redistest.Server
		db     int
	}{
		{Config{URL: "redis://frame:" + escaped() + "@" + srv.Addr + "/5"}, "redis://" + srv.Addr + "/5", srv, 5},
		{Config{URL: "redis://frame:wrong@" + srv.Addr, Password: secret}, "redis://" + srv.Addr + "/0", srv, 0},
		{Config{URL: second.URL(), Password: "of a server that has none"}, "redis://" + second.Addr + "/0", second, 0},
		{Config{URL: "unix://" + sock + "?db=2"}, "unix://" + sock + "?db=2", second, 2},
		{Config{URL: secure.URL(), CAFile: secure.CAFile()}, "rediss://" + secure.Addr + "/0", secure, 0},
	} {
		ctx := context.Background()
		b, err := Open(ctx, c.config)
		require.NoError(t, err)
		require.Equal(t, c.server, b.Server())
		_, err = b.Do(ctx, statebackend.Command(statebackend.OpSet, "via client", "1"))
		require.NoError(t, err)
		conn, err := b.dial(ctx)
		require.NoError(t, err)
		_, err = conn.Call(smallReply, "SET", "via raw", "2")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		admin := c.admin.Client().Conn()
		require.NoError(t, admin.Select(ctx, c.db).Err())
		require.Equal(t, int64(2), admin.Exists(ctx, "via client", "via raw").Val(), c.server)
		require.NoError(t, admin.Close())
		require.NoError(t, b.Close())
		_, err = b.Do(ctx, statebackend.Command(statebackend.OpGet, "via client"))
		require.ErrorIs(t, err, statebackend.ErrClosed)
	}
}

func TestALazyStoreWorksOnceTheServerDoes(t *testing.T) {
	srv := redistest.Start(t)
	srv.Kill()
	ctx := context.Background()
	b, err := Open(ctx, Config{URL: srv.URL(), Lazy: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	_, err = b.Do(ctx, statebackend.Command(statebackend.OpGet, "k"))
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
	_, err = b.Stage(ctx, testRequest("lazy", 0))
	require.ErrorIs(t, err, statebackend.ErrUnreachable)
	srv.Restart()
	_, err = b.Do(ctx, statebackend.Command(statebackend.OpGet, "k"))
	require.NoError(t, err)
	refusedOpen(t, Config{URL: "redis://h/x", Lazy: true}, statebackend.ErrInvalidConfig)
}

func TestAStalledServerIsNoticedByTheRawConnection(t *testing.T) {
	srv := redistest.Start(t)
	ctx := context.Background()
	b, err := Open(ctx, Config{URL: srv.URL(), Timeout: 150 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	conn, err := b.dial(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	srv.Signal(syscall.SIGSTOP)
	_, err = conn.Call(smallReply, "PING")
	srv.Signal(syscall.SIGCONT)
	require.ErrorIs(t, b.mapError(err, "ping"), statebackend.ErrUnreachable)

	// A deadline from outside is kept, though the stall allows more.
	conn, err = b.dialPatient(ctx, time.Hour)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(-time.Second)))
	_, err = conn.Call(smallReply, "PING")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
