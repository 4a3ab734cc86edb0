package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator/fault"
)

// canned answers every request with the same.
type canned struct {
	status int
	body   []byte
	ours   bool
}

var _ http.RoundTripper = canned{}

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{}
	if c.ours {
		h.Set(versionHeader, "1.2.3")
	}
	return &http.Response{StatusCode: c.status, Header: h, Body: io.NopCloser(bytes.NewReader(c.body)), Request: r}, nil
}

// FuzzAnswer: whatever answers at a coordinator's address, the client has an
// answer that it understands or an error of the closed list, of bounded length,
// and gives its token to no stranger.
func FuzzAnswer(f *testing.F) {
	f.Add(200, []byte(`{"items":[{"name":"flights","health":{"state":"ok"}}]}`), true)
	f.Add(409, []byte(`{"error":{"code":"busy","message":"m","hint":"h"}}`), true)
	f.Add(500, []byte(strings.Repeat("<html>", 100)), false)
	f.Add(404, []byte(`{"error":{"code":""}}`), true)
	f.Add(302, []byte{}, true)
	f.Add(200, []byte("null"), true)
	f.Fuzz(func(t *testing.T, status int, body []byte, ours bool) {
		c, err := NewClient("http://127.0.0.1:7070", secret)
		require.NoError(t, err)
		c.http.Transport = canned{status, body, ours}
		for _, out := range []any{nil, new(List[Job]), new(Operation), new(Detail), new(Version)} {
			err := c.Call(t.Context(), http.MethodGet, "/jobs", nil, out)
			if err == nil {
				require.True(t, ours && status < 300)
				continue
			}
			require.NotContains(t, err.Error(), secret)
			require.Equal(t, fault.CodeOf(err), fault.As(err).Code)
			if !ours {
				require.Equal(t, fault.NoDaemon, fault.CodeOf(err))
				require.Less(t, len(err.Error()), 2000)
			}
		}
		var into bytes.Buffer
		if err := c.Download(t.Context(), "/x", &into); err == nil {
			require.Equal(t, string(body), into.String())
		}
	})
}

// FuzzRedact: what the audit log repeats of a request is bounded, and holds no
// value of a field that speaks of secrets, and no more of a URL than its host.
func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"password":"PLANTED","a":[{"Api-Key":"PLANTED"},"redis://u:PLANTED@h/1"]}`), "token")
	f.Add([]byte(`[[[[[[[[[["deep"]]]]]]]]]]`), "X_SECRET")
	f.Add([]byte(`{"url":"https://h/hook/PLANTED?x=PLANTED#PLANTED"}`), "command")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return
		}
		b, err := json.Marshal(redact(v))
		require.NoError(t, err)
		if len(text) < 100 {
			require.Less(t, len(b), 6*len(text)+1000)
		}
		const planted = "kf-pa55w0rd"
		for _, hide := range []any{map[string]any{name + "password": planted}, map[string]any{"x": []any{map[string]any{"to" + "ken": planted}}},
			"redis://u:" + planted + "@h/1", "https://h/" + planted, []any{v, map[string]any{"apiKey": map[string]any{"a": planted}}}} {
			b, err := json.Marshal(redact(hide))
			require.NoError(t, err)
			require.NotContains(t, string(b), planted)
		}
	})
}
