package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"keyframe/coordinator/fault"
)

// Download writes what a GET answers to w, of any length. After an error w may
// have got the beginning.
func (c *Client) Download(ctx context.Context, path string, w io.Writer) error {
	resp, err := c.open(ctx, http.MethodGet, path, nil, 0)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read, or is given up
	if _, err := io.Copy(w, resp.Body); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fault.Wrap(err, fault.Failed, "nothing was written; look at the coordinator's log", "receive from %s", c.addr)
	}
	return nil
}

// Upload posts size bytes of r and decodes the answer into out.
func (c *Client) Upload(ctx context.Context, path string, r io.Reader, size int64, out any) error {
	resp, err := c.open(ctx, http.MethodPost, path, r, size)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fault.Wrap(err, fault.NoDaemon, elseHint, "what answers at %s is no coordinator", c.addr)
	}
	return nil
}

// open makes a request whose body or answer may be large. The answer that it
// gives is a good one.
func (c *Client) open(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	if err := c.greet(ctx); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+"/v1"+path, body)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "", "request")
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", archiveType)
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
	if resp.StatusCode < 300 && ours(resp) {
		return resp, nil
	}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // what there is of it says why
	return nil, errors.Join(c.refused(resp, data), resp.Body.Close())
}
