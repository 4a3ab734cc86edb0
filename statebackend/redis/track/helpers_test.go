package track

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyframe/internal/redistest"
	"keyframe/statebackend/redis/resp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// login is who a test's tracker is.
type login struct{ user, password string }

// dialer gives what Options.Dial asks for: TLS where the server has it,
// authenticated, no reply outstanding.
func dialer(t testing.TB, s *redistest.Server, as login) DialFunc {
	return dialerTo(t, s.Addr, s.CAFile(), as)
}

func dialerTo(t testing.TB, addr, caFile string, as login) DialFunc {
	var secure *tls.Config
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		require.NoError(t, err)
		secure = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12, ServerName: "localhost"}
		require.True(t, secure.RootCAs.AppendCertsFromPEM(pem))
	}
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		if secure != nil {
			nc = tls.Client(nc, secure)
		}
		if as.password == "" {
			return nc, nil
		}
		c := resp.NewConn(nc)
		release := c.Bind(ctx)
		defer release()
		if _, err := c.Call(1<<10, "AUTH", as.user, as.password); err != nil {
			return nil, errors.Join(fmt.Errorf("AUTH: %w", err), c.Close())
		}
		return nc, nil
	}
}

// connect opens a connection to a database of a server without a password. Its
// commands may take as long as they like.
func connect(t testing.TB, addr string, db int) *resp.Conn {
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	c := resp.NewConn(nc)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = c.Call(1<<10, "SELECT", strconv.Itoa(db))
	require.NoError(t, err)
	return c
}

// start makes a tracker of the server and closes it with the test.
func start(t testing.TB, s *redistest.Server, make func(Options) Tracker) Tracker {
	t.Helper()
	return startWith(t, make, Options{Dial: dialer(t, s, login{}), Server: s.Addr})
}

func startWith(t testing.TB, make func(Options) Tracker, o Options) Tracker {
	t.Helper()
	if o.Retry == 0 {
		o.Retry = 5 * time.Millisecond
	}
	tr := make(o)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// attached waits for the tracker.
func attached(t testing.TB, tr Tracker) {
	t.Helper()
	require.NoError(t, tr.Attached(patient(t)))
}

// watch opens a watch that marks nothing yet and ends with the test.
func watch(t testing.TB, tr Tracker, s Scope) Watch {
	t.Helper()
	attached(t, tr)
	w, err := tr.Watch(patient(t), s)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// position asks the server where its stream stands.
func position(t testing.TB, s *redistest.Server) Position {
	t.Helper()
	var p Position
	for line := range strings.SplitSeq(fmt.Sprint(s.Do("INFO", "replication")), "\r\n") {
		if id, ok := strings.CutPrefix(line, "master_replid:"); ok {
			p.ReplID = id
		}
		if text, ok := strings.CutPrefix(line, "master_repl_offset:"); ok {
			var err error
			p.Offset, err = strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
		}
	}
	require.Len(t, p.ReplID, 40)
	return p
}

// settled brings everything that the server has executed into the marks and
// takes them.
func settled(t testing.TB, s *redistest.Server, w Watch) Marks {
	t.Helper()
	require.NoError(t, w.Barrier(patient(t), position(t, s)))
	return w.Take()
}

// reattached waits until a Barrier works again after the link was lost, and
// gives all marks that were taken on the way.
func reattached(t testing.TB, s *redistest.Server, w Watch) Marks {
	t.Helper()
	var all Marks
	require.Eventually(t, func() bool {
		all.Merge(w.Take())
		err := w.Barrier(patient(t), position(t, s))
		if err != nil {
			require.ErrorIs(t, err, ErrLost)
			return false
		}
		all.Merge(w.Take())
		return true
	}, patience, 5*time.Millisecond)
	return all
}

// covers reports whether the marks say that a field of a key may have changed.
// Whole keys, and everything, cover all fields.
func covers(m Marks, key, field string) bool {
	k := m.Keys[key]
	if m.All || k != nil && k.Whole {
		return true
	}
	if k == nil {
		return false
	}
	_, ok := k.Fields[field]
	return ok
}

// touched reports whether the marks have the key at all.
func touched(m Marks, key string) bool { return m.All || m.Keys[key] != nil }

// whole reports whether the marks have the whole key.
func whole(m Marks, key string) bool { return m.All || m.Keys[key] != nil && m.Keys[key].Whole }

// fieldsOf gives the fields of a key's marks.
func fieldsOf(m Marks, key string) []string {
	var all []string
	if k := m.Keys[key]; k != nil {
		for f := range k.Fields {
			all = append(all, f)
		}
	}
	return all
}
