package monkey

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// wire is a network link to Redis that can be made worse.
type wire struct {
	proxy *toxiproxy.Proxy
}

// newWire begins to pass on what is sent to its own address.
func newWire(t *testing.T, name, upstream string) *wire {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // some of the library's lines go to a logger of its own
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w := &wire{proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream)}
	require.NoError(t, w.proxy.Start())
	t.Cleanup(func() {
		w.heal()
		w.proxy.Stop()
	})
	return w
}

// addr is where clients connect to.
func (w *wire) addr() string { return w.proxy.Listen }

// add makes the link worse: stream is upstream (to Redis) or downstream.
func (w *wire) add(kind, stream, attributes string) error {
	_, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"type":%q,"stream":%q,"attributes":%s}`, kind, stream, attributes)))
	if err != nil {
		return fmt.Errorf("link %s: %s %s: %w", w.proxy.Name, kind, stream, err)
	}
	return nil
}

// cut ends all connections; until join nobody can connect.
func (w *wire) cut() { w.proxy.Stop() }

func (w *wire) join() error { return w.proxy.Start() }

// heal takes everything back but a cut.
func (w *wire) heal() { w.proxy.Toxics.ResetToxics(context.Background()) }
