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
	"sync/atomic"
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

	transport *http.Transport

	patience time.Duration // with who may be no coordinator
	greeted  atomic.Bool   // it is one
}

// NewClient makes a client for http://host:port, https://host:port or
// unix:/path. token may be empty.
func NewClient(addr, token string) (*Client, error) {
	c := &Client{addr: addr, token: token, patience: 10 * time.Second}
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
	c.transport = transport
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
	if err := c.greet(ctx); err != nil {
		return err
	}
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
	}
	resp, data, err := c.exchange(ctx, method, "/v1"+path, body, c.token)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 || !ours(resp) {
		return c.refused(resp, data)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fault.Wrap(err, fault.NoDaemon, elseHint, "what answers at %s is no coordinator", c.addr)
	}
	return nil
}

// elseHint is for answers that no coordinator gives.
const elseHint = "is something else listening there?"

// errSilent is the cause by which a greeting that got no answer ends.
var errSilent = errors.New("no answer")

// greet makes sure, once, that a coordinator listens: a request may take long
// to answer, this doesn't. Nothing else gets the token.
func (c *Client) greet(ctx context.Context) error {
	if c.greeted.Load() {
		return nil
	}
	short, cancel := context.WithTimeoutCause(ctx, c.patience, errSilent)
	defer cancel()
	resp, data, err := c.exchange(short, http.MethodGet, "/healthz", nil, "")
	switch {
	case errors.Is(err, errSilent):
		return fault.New(fault.NoDaemon, elseHint, "what listens at %s says nothing (waited %s)", c.addr, c.patience)
	case err != nil:
		return err
	case !ours(resp):
		return c.refused(resp, data)
	}
	c.greeted.Store(true)
	return nil
}

// exchange makes a request and reads the whole answer. When ctx ends, the error
// is its cause.
func (c *Client) exchange(ctx context.Context, method, path string, body []byte, token string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, fmt.Errorf("request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, nil, fault.Wrap(err, fault.NoDaemon, reachHint(err), "no coordinator answers at %s", c.addr)
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err != nil:
		return nil, nil, fault.Wrap(err, fault.NoDaemon, "look at the coordinator's log", "the coordinator at %s broke off its answer", c.addr)
	case len(data) > maxAnswer:
		return nil, nil, fault.New(fault.NoDaemon, elseHint, "the answer of %s is larger than %d bytes", c.addr, maxAnswer)
	}
	return resp, data, nil
}

// ours reports whether a coordinator gave the answer.
func ours(resp *http.Response) bool { return resp.Header.Get(versionHeader) != "" }

// reachHint is the remedy for a request that got no answer.
func reachHint(err error) string {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &cert):
		return "trust the authority that signed its certificate: give its PEM file with --ca-file, or set SSL_CERT_FILE to it"
	case strings.Contains(err.Error(), "tls: certificate required"), strings.Contains(err.Error(), "tls: bad certificate"), strings.Contains(err.Error(), "tls: unknown certificate authority"):
		return "it wants a certificate of its own authority: give one with --cert-file and --key-file"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "it doesn't speak TLS: write http://"
	case strings.Contains(err.Error(), "malformed HTTP"):
		return elseHint
	}
	return "start it with `coordinator run`, or give its address with --addr or COORDINATOR_ADDR"
}

// refused turns an error answer into its fault.
func (c *Client) refused(resp *http.Response, data []byte) error {
	var p Problem
	if err := json.Unmarshal(data, &p); err == nil && ours(resp) && p.Fault.Code != "" {
		return &p.Fault
	}
	text := strings.TrimSpace(string(data))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return fault.New(fault.NoDaemon, elseHint, "what answers at %s is no coordinator: status %d, %q", c.addr, resp.StatusCode, text)
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
