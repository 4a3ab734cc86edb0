package redis

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// Bounds of trying to free the writers over a broken network. A server that
// refuses connections has most likely ended, and its pause with it.
const (
	unpauseTimeout = 5 * time.Second // of one attempt
	unpauseRefused = 3               // refused connections
)

// unpauseRetries is how long new attempts are made. A variable for tests.
var unpauseRetries = 3 * time.Second

// end frees the writers: on the pause's own connection or, where that is
// broken, on new ones. Only the first call does something. It doesn't depend
// on the caller's context, which may be what ended the cut.
func (p *pause) end() (stall time.Duration, err error) {
	if !p.asked || p.ended {
		return 0, nil
	}
	p.ended = true
	err = errors.New("a reply is missing")
	if p.clean {
		err = p.unpauseAndMark()
	}
	refused := 0
	for giveUp := time.Now().Add(unpauseRetries); err != nil; {
		if err = p.unpauseAnew(); err == nil {
			break
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		}
		if refused == unpauseRefused || time.Now().After(giveUp) {
			return 0, fmt.Errorf("end the pause (the server ends it by itself within %v): %w", pauseLease, err)
		}
		wait := time.NewTimer(20 * time.Millisecond)
		<-wait.C
	}
	if p.held.IsZero() {
		return 0, nil
	}
	stall = time.Since(p.held)
	crashpoint.At(crashpoint.CutReleased)
	return stall, nil
}

// unpauseAndMark frees the writers on the pause's own connection, which no
// other server can answer on, and marks the cut: in one packet, so that the
// server runs the mark before the writers that it has held.
func (p *pause) unpauseAndMark() error {
	if p.mark == nil {
		return p.unpause(p.guard)
	}
	err := errors.Join(p.guard.SetDeadline(time.Now().Add(unpauseTimeout)),
		p.guard.Command("CLIENT", "UNPAUSE"), p.guard.Command(p.mark...), p.guard.Flush())
	if err == nil {
		_, err = p.guard.Reply(infoLimit)
	}
	if err != nil {
		return p.b.mapError(err, "free writers")
	}
	// The writers are free. A mark that is missing (no right, no memory, a lost
	// connection) is no reason to fail the cut: the record is repaired later.
	_, _ = p.guard.Reply(infoLimit)
	return nil
}

// unpause frees the writers over a connection with no reply outstanding.
func (p *pause) unpause(conn *resp.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(unpauseTimeout)); err != nil {
		return p.b.mapError(err, "free writers")
	}
	if _, err := conn.Call(infoLimit, "CLIENT", "UNPAUSE"); err != nil {
		return p.b.mapError(err, "free writers")
	}
	return nil
}

func (p *pause) unpauseAnew() error {
	ctx, cancel := context.WithTimeout(context.Background(), unpauseTimeout)
	defer cancel()
	conn, err := p.b.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the reply was read
	return p.unpause(conn)
}

// canary is a command that a pause holds as it holds writers, though it
// changes nothing: PFCOUNT of a key that isn't there, which the server treats
// as a write because it may store a cached count. With it goes TIME, so that
// it tells when it ran.
type canary struct {
	b    *Backend
	conn *resp.Conn
	key  string
	sent bool
}

// canaryPatience is how long a canary may take when nobody pauses the server:
// longer than the lease that a dead coordinator leaves behind. A variable for
// tests.
var canaryPatience = 15 * time.Second

// newCanary lets a canary fly once, outside a pause of ours. When it doesn't
// come back, somebody else pauses the server. nil when the user lacks a right
// that it needs: then the other proofs have to do.
func (b *Backend) newCanary(ctx context.Context, job statebackend.Job) (*canary, error) {
	conn, err := b.dialPatient(ctx, 2*canaryPatience)
	if err != nil {
		return nil, err
	}
	c := &canary{b: b, conn: conn, key: job.Staging("canary")}
	release := conn.Bind(ctx)
	defer release()
	if err := c.send(); err != nil {
		c.hangUp()
		return nil, b.mapError(err, "send the canary")
	}
	_, held, err := c.back(canaryPatience)
	switch {
	case err == nil && !held:
		return c, nil
	case err == nil && ctx.Err() == nil:
		c.hangUp()
		return nil, fmt.Errorf("%w: somebody else pauses the server's writers for more than %v (another coordinator, a failover); "+
			"to end our pause would end theirs", statebackend.ErrGrade, canaryPatience)
	case err == nil:
		c.hangUp()
		return nil, fmt.Errorf("send the canary: %w", context.Cause(ctx))
	case resp.IsCode(err, "NOPERM"):
		c.hangUp()
		return nil, nil
	}
	c.hangUp()
	return nil, b.mapError(err, "send the canary")
}

func (c *canary) hangUp() {
	_ = c.conn.Close() // nothing of it is needed any more
}

func (c *canary) send() error {
	for _, cmd := range [][]string{{"MULTI"}, {"PFCOUNT", c.key}, {"TIME"}, {"EXEC"}} {
		if err := c.conn.Command(cmd...); err != nil {
			return err
		}
	}
	c.sent = true
	return c.conn.Flush()
}

// back waits for the canary and tells when it ran, by the server's clock;
// held says that it has not come back.
func (c *canary) back(patience time.Duration) (at time.Time, held bool, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return at, false, err
	}
	var refused error
	for range 3 { // MULTI, PFCOUNT, TIME
		_, err := c.conn.Reply(infoLimit)
		if c.conn.Err() != nil {
			return at, isTimeout(err), c.unlessTimeout(err)
		}
		if refused == nil {
			refused = err
		}
	}
	v, err := c.conn.Reply(infoLimit)
	switch {
	case c.conn.Err() != nil:
		return at, isTimeout(err), c.unlessTimeout(err)
	case refused != nil:
		return at, false, refused
	case err != nil:
		return at, false, err
	case len(v.Array) != 2:
		return at, false, fmt.Errorf("the canary was answered with %d parts", len(v.Array))
	}
	at, err = serverTime(v.Array[1])
	return at, false, errors.Join(err, c.conn.SetDeadline(time.Time{}))
}

func (c *canary) unlessTimeout(err error) error {
	if isTimeout(err) {
		return nil
	}
	return err
}

// proveByCanary fails when the canary ran before the last read. It is called
// after the pause has ended.
func (p *pause) proveByCanary() error {
	if p.canary == nil {
		return nil
	}
	at, held, err := p.canary.back(unpauseTimeout)
	switch {
	case err != nil:
		return p.b.mapError(err, "wait for the canary, which proves that the pause held")
	case held:
		// Somebody else's pause goes on: nobody wrote under it either.
		return nil
	case at.Before(p.last.at):
		return fmt.Errorf("%w: writers were free at %s already, and the last read was done by %s: somebody sent CLIENT UNPAUSE",
			statebackend.ErrPauseExpired, at.Format(time.RFC3339Nano), p.last.at.Format(time.RFC3339Nano))
	}
	return nil
}

// isTimeout tells a deadline of ours from a broken connection.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
