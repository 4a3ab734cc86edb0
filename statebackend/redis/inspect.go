package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

var _ statebackend.Inspector = (*Backend)(nil)

// Bounds of an inspection, which a busy server must not feel.
const (
	inspectScan  = 500     // keys of the database that one SCAN looks at
	inspectAhead = 100     // keys that are asked about in one pipeline
	inspectLimit = 8 << 20 // bytes of memory for one page of names
	inspectPage  = 1 << 20 // what a page of elements should come to
)

// inspection is one Inspect under way. All its reading goes through one
// connection, one pipeline at a time.
type inspection struct {
	stream
	b       *Backend
	ctx     context.Context
	req     statebackend.InspectRequest
	to      statebackend.InspectSink
	exact   bool // the server knows PEXPIRETIME
	lfu     bool // and counts accesses instead of keeping their time
	untold  map[string]string
	broken  []statebackend.BrokenKey
	order   []string // of untold
	element pager
}

// Inspect looks at the server, at every key under the job's root and at every
// name of its index.
//
// It asks in ways that leave the access times of keys alone: SCAN, TYPE,
// PEXPIRETIME, MEMORY USAGE, OBJECT and EXISTS do. Reading elements doesn't
// before Redis 7.2 (CLIENT NO-TOUCH), so a key whose elements the sink wants
// looks used until the next time.
func (b *Backend) Inspect(ctx context.Context, req statebackend.InspectRequest, to statebackend.InspectSink) (statebackend.Inspection, error) {
	if err := req.Job.Validate(); err != nil {
		return statebackend.Inspection{}, err
	}
	conn, err := b.dialLimited(ctx, &limiter{ctx: ctx, rate: req.MaxReadRate})
	if err != nil {
		return statebackend.Inspection{}, err
	}
	defer func() { _ = conn.Close() }() // nothing was left to be said
	release := conn.Bind(ctx)
	defer release()
	in := &inspection{b: b, ctx: ctx, req: req, to: to, untold: map[string]string{}, element: pager{elements: 100}}
	in.stream = stream{conn: conn, check: func() error { return context.Cause(ctx) }}
	all, err := in.run()
	if err != nil {
		return statebackend.Inspection{}, fmt.Errorf("inspect job %q: %w", req.Job.Root(), err)
	}
	return all, nil
}

func (in *inspection) run() (statebackend.Inspection, error) {
	var all statebackend.Inspection
	// An older server doesn't know it; then reading elements counts as a use.
	if _, err := in.conn.Call(infoLimit, "CLIENT", "NO-TOUCH", "on"); err != nil && !isReply(err) {
		return all, in.b.mapError(err, "CLIENT NO-TOUCH")
	}
	var err error
	if all.Server, err = in.server(); err != nil {
		return all, err
	}
	watch, err := in.beginWatch()
	if err != nil {
		return all, err
	}
	defer watch.close()
	if err := in.keys(); err != nil {
		return all, err
	}
	if err := in.names(); err != nil {
		return all, err
	}
	if err := in.registry(); err != nil {
		return all, err
	}
	if all.Activity, err = in.endWatch(watch); err != nil {
		return all, err
	}
	all.Broken = in.broken
	for _, what := range in.order {
		all.Untold = append(all.Untold, what+": "+in.untold[what])
	}
	return all, nil
}

// unable notes something that the server doesn't tell, once.
func (in *inspection) unable(what string, why error) {
	if _, noted := in.untold[what]; noted {
		return
	}
	in.untold[what] = why.Error()
	in.order = append(in.order, what)
}

// wrong notes a key of another type than it must be of, once.
func (in *inspection) wrong(name, need, what string) {
	k := statebackend.BrokenKey{Name: name, Need: need, For: what}
	if !slices.Contains(in.broken, k) {
		in.broken = append(in.broken, k)
	}
}

// maybe is the answer to a question that the server may refuse. nil is a
// refusal, which is noted.
func (in *inspection) maybe(what string, limit int64, args ...string) (*resp.Value, error) {
	v, err := in.conn.Call(limit, args...)
	if err != nil && isReply(err) {
		in.unable(what, in.b.mapError(err, strings.Join(args[:min(2, len(args))], " ")))
		return nil, nil
	}
	if err != nil {
		return nil, in.b.mapError(err, args[0])
	}
	return &v, nil
}

// Holds asks for each key or element in small pipelines.
func (b *Backend) Holds(ctx context.Context, asks []statebackend.HoldsAsk) ([]bool, error) {
	conn, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // every reply was read
	release := conn.Bind(ctx)
	defer release()
	if _, err := conn.Call(infoLimit, "CLIENT", "NO-TOUCH", "on"); err != nil && !isReply(err) {
		return nil, b.mapError(err, "CLIENT NO-TOUCH")
	}
	held := make([]bool, 0, len(asks))
	for len(asks) > 0 {
		n := min(len(asks), inspectAhead)
		if held, err = b.holds(conn, asks[:n], held); err != nil {
			return nil, err
		}
		asks = asks[n:]
	}
	return held, nil
}

func (b *Backend) holds(conn *resp.Conn, asks []statebackend.HoldsAsk, held []bool) ([]bool, error) {
	for _, a := range asks {
		var err error
		switch {
		case a.Member == nil:
			err = sendKey(conn, []byte(a.Key), "EXISTS")
		case a.Type == "zset":
			err = sendKey(conn, []byte(a.Key), "ZSCORE", string(a.Member))
		default:
			err = sendKey(conn, []byte(a.Key), "HEXISTS", string(a.Member))
		}
		if err != nil {
			return nil, b.mapError(err, "look for keys")
		}
	}
	if err := conn.Flush(); err != nil {
		return nil, b.mapError(err, "look for keys")
	}
	var first error
	for _, a := range asks {
		v, err := conn.Reply(infoLimit)
		if err != nil && !resp.IsCode(err, "WRONGTYPE") {
			err = &statebackend.KeyError{Key: []byte(a.Key), Op: "look for", Err: b.mapError(err, "element")}
			if conn.Err() != nil {
				return nil, err
			}
			first = err
		}
		held = append(held, err == nil && (v.Int > 0 || v.Kind == resp.Bulk && !v.Nil))
	}
	return held, first
}

// majorOf is the first number of a version, 0 when there is none.
func majorOf(version string) int {
	digits, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// pause waits, or until the caller has had enough.
func (in *inspection) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-in.ctx.Done():
		return context.Cause(in.ctx)
	}
}
