package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"keyframe/coordinator/fault"
)

// unixHost is the host name that requests over a unix socket carry.
const unixHost = "localhost"

// maxAnswer bounds what is read of an answer: whatever listens there.
const maxAnswer = 256 << 20

// pollWait is the long poll of one request for an operation.
const pollWait = 2 * time.Second

// Client calls the API of one coordinator. Safe for concurrent use. Its errors
// are *fault.Error: the server's own, or NoDaemon when nothing answers.
type Client struct {
	base  *url.URL
	addr  string // for messages
	token string
	http  *http.Client
}

// NewClient makes a client for http://host:port, https://host:port or
// unix:/path. token may be empty.
func NewClient(addr, token string) (*Client, error) {
	c := &Client{addr: addr, token: token}
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	path, socket := strings.CutPrefix(addr, "unix:")
	if path = strings.TrimPrefix(path, "//"); socket && path != "" {
		c.base = &url.URL{Scheme: "http", Host: unixHost}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
	} else {
		if !strings.Contains(addr, "://") {
			addr = "http://" + addr
		}
		u, err := url.Parse(addr)
		switch {
		case strings.Contains(addr, "@"): // what stands before it must not get into messages
			return nil, fault.New(fault.Usage, "set COORDINATOR_TOKEN to the token", "the coordinator's address has a user or password")
		case socket || err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") || strings.Trim(u.Path, "/") != "" || u.RawQuery+u.Fragment != "":
			return nil, fault.New(fault.Usage, "give http://host:port, https://host:port or unix:/path", "coordinator address %q", c.addr)
		}
		c.base = &url.URL{Scheme: u.Scheme, Host: u.Host}
	}
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the API never redirects
	}}
	return c, nil
}

// Close closes idle connections. The client may still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Segment escapes a name for a path.
func Segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Call makes one request and decodes the answer into out (nil for none).
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fault.Wrap(err, fault.NoDaemon, "look at the coordinator's log", "the coordinator at %s broke off its answer", c.addr)
	case len(data) > maxAnswer:
		return fault.New(fault.NoDaemon, "is something else listening there?", "the answer of %s is larger than %d bytes", c.addr, maxAnswer)
	}
	if resp.StatusCode >= 300 || resp.Header.Get(versionHeader) == "" {
		return c.refused(resp, data)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fault.Wrap(err, fault.NoDaemon, "is something else listening there?", "what answers at %s is no coordinator", c.addr)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+"/v1"+path, body)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fault.Wrap(err, fault.NoDaemon, reachHint(err), "no coordinator answers at %s", c.addr)
	}
	return resp, nil
}

// reachHint is the remedy for a request that got no answer.
func reachHint(err error) string {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return "trust the authority that signed its certificate: set SSL_CERT_FILE to the authority's PEM file"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "it doesn't speak TLS: write http://"
	case strings.Contains(err.Error(), "malformed HTTP"):
		return "is something else listening there?"
	}
	return "start it with `coordinator run`, or give its address with --addr or COORDINATOR_ADDR"
}

// refused turns an error answer into its fault.
func (c *Client) refused(resp *http.Response, data []byte) error {
	var p Problem
	ours := resp.Header.Get(versionHeader) != ""
	if err := json.Unmarshal(data, &p); err == nil && ours && p.Fault.Code != "" {
		return &p.Fault
	}
	text := strings.TrimSpace(string(data))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return fault.New(fault.NoDaemon, "is something else listening there?", "what answers at %s is no coordinator: status %d, %q", c.addr, resp.StatusCode, text)
}

// Follow waits for an operation to end and tells each status that it sees to
// watch (may be nil). The final status of a failed operation comes with its
// error.
func (c *Client) Follow(ctx context.Context, op Operation, watch func(Operation)) (Operation, error) {
	for {
		if watch != nil {
			watch(op)
		}
		if op.Final() {
			if op.Error != nil {
				return op, op.Error
			}
			return op, nil
		}
		wait := pollWait
		if watch != nil {
			wait = 150 * time.Millisecond // so that progress is seen to move
		}
		if err := c.Call(ctx, http.MethodGet, "/operations/"+Segment(op.ID)+"?wait="+wait.String(), nil, &op); err != nil {
			return op, err
		}
	}
}
