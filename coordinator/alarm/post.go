package alarm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"keyframe/coordinator/config"
)

// Bounds of what a receiver may send back. It is read and thrown away, since
// it might repeat what was sent to it.
const (
	maxAnswer    = 64 << 10
	maxRedirects = 3
)

// web asks receivers by HTTP.
type web struct {
	client  *http.Client
	version string
	address func() (*url.URL, error)
	headers []config.Header
	shown   string
}

func newWeb(o Options, address func() (*url.URL, error), headers []config.Header) web {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes, t.MaxIdleConns, t.IdleConnTimeout = maxAnswer, 1, 30*time.Second
	t.DisableKeepAlives = true // news are rare, and a connection kept is one that may be dead
	if o.dial != nil {
		t.DialContext = o.dial
	}
	w := web{client: &http.Client{Transport: t, CheckRedirect: stay}, version: o.Version, address: address, headers: headers, shown: "(no URL)"}
	if u, err := address(); err == nil {
		w.shown = u.Scheme + "://" + u.Host
	}
	return w
}

// stay follows a redirect only within the same host, and not as another
// request: what is sent may hold secrets of the host that it is for, and a POST
// that becomes a GET has delivered nothing.
func stay(req *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) > maxRedirects || req.Method != first.Method || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

// ask makes one request. Its errors name neither path nor options of the URL.
func (w web) ask(ctx context.Context, method, suffix string, body []byte) error {
	u, err := w.address()
	if err != nil {
		return err
	}
	if suffix != "" {
		u.Path, u.RawPath = u.Path+suffix, ""
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("make the request: the URL is not usable") // the error would show it
	}
	req.Header.Set("User-Agent", "keyframe/"+w.version)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range w.headers {
		v, err := h.Read()
		if err != nil {
			return err
		}
		req.Header.Set(h.Name, v)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return bare(ctx, err)
	}
	// What it says is of no use, and what can't be read changes nothing.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return nil
	case s >= 300 && s < 400:
		return fmt.Errorf("it answered %d and points to %s: set the URL where it leads", s, elsewhere(resp))
	default:
		return fmt.Errorf("it answered %d %s", s, http.StatusText(s))
	}
}

// elsewhere is the host that an answer points to.
func elsewhere(resp *http.Response) string {
	if u, err := resp.Location(); err == nil {
		return u.Scheme + "://" + u.Host
	}
	return "nowhere"
}

// bare is the reason in an error of the client, whose text has the whole URL.
func bare(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// post is a hook that is a URL.
type post struct{ web }

var _ sender = post{}

func newPost(h config.Hook, o Options) post { return post{newWeb(o, h.Address, h.Headers)} }

func (p post) target() string { return p.shown }

func (p post) send(ctx context.Context, body []byte) error {
	return p.ask(ctx, http.MethodPost, "", body)
}
