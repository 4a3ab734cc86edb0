package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
	"keyframe/snapshot"
)

// unsized hides a reader's length, so that it is sent in pieces.
type unsized struct{ io.Reader }

// endless never ends; it counts what was taken of it.
type endless struct{ n int64 }

func (e *endless) Read(b []byte) (int, error) {
	if e.n += int64(len(b)); e.n > 1<<30 {
		return 0, errors.New("the server took all of it")
	}
	return len(b), nil
}

// What is larger than api.maxImport is refused by its announced length or, sent
// in pieces, at the first byte too many; nothing of it is left.
func TestAnArchiveAboveTheLimitIsRefused(t *testing.T) {
	dir := t.TempDir()
	var most int64
	s := newService(t, func(o *Options) { o.Spool, o.MaxImport = dir, 1 })
	s.write("flights", 150, "v")
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	b := s.download("flights", "latest")
	most = int64(len(b))
	s.reconfigure(func(o *Options) { o.Spool, o.MaxImport = dir, most-1 })
	for what, body := range map[string]io.Reader{"announced": bytes.NewReader(b), "in pieces": unsized{bytes.NewReader(b)}, "without an end": &endless{}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.srv.URL+importPath+"?job=flights", body)
		require.NoError(t, err)
		resp, err := s.srv.Client().Do(req)
		require.NoError(t, err, what)
		data, err := io.ReadAll(resp.Body)
		require.NoError(t, err, what)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, "%s: %s", what, data)
		f := answer{resp.StatusCode, resp.Header, string(data)}.fault(t)
		require.Equal(t, fault.TooLarge, f.Code, what)
		require.Contains(t, f.Message, "api.maxImport", what)
		require.Contains(t, f.Hint, "raise api.maxImport", what)
		spooled(t, s, dir)
	}
	require.Len(t, call[List[snapshot.Checkpoint]](s, http.MethodGet, "/jobs/flights/checkpoints", nil).Items, 1)
	s.reconfigure(func(o *Options) { o.Spool, o.MaxImport = dir, most })
	_, err := s.upload(b, "?job=flights")
	require.NoError(t, err, "the limit itself is allowed")
	spooled(t, s, dir)
}
