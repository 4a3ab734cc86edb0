package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// replyText is the text of an error reply, from go-redis or from resp.
func replyText(err error) (string, bool) {
	var raw *resp.Error
	if errors.As(err, &raw) {
		return raw.Message, true
	}
	var reply redis.Error
	if errors.As(err, &reply) && !errors.Is(err, redis.Nil) {
		return reply.Error(), true
	}
	return "", false
}

// mapError gives err as one of the sentinels of statebackend where it is one,
// with what was being done and to which server. What the caller's own context
// has ended is its cause (see ended), and not the server's doing; nil stays nil.
func (b *Backend) mapError(err error, what string) error {
	if err == nil {
		return nil
	}
	for _, done := range sentinels {
		if errors.Is(err, done) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	what = fmt.Sprintf("%s (Redis %s)", what, b.addr.server())
	var stopped *resp.Stopped
	if errors.As(err, &stopped) {
		return fmt.Errorf("%s: %w", what, err)
	}
	if text, ok := replyText(err); ok {
		return b.mapReply(text, err, what)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%s: %w", what, statebackend.ErrClosed)
	case isNetwork(err):
		return fmt.Errorf("%s: %w: %w%s", what, statebackend.ErrUnreachable, err, b.networkHint(err))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// sentinels are the errors that are not mapped again.
var sentinels = []error{
	statebackend.ErrWrongType, statebackend.ErrUnreachable, statebackend.ErrAuth,
	statebackend.ErrPermission, statebackend.ErrNoRoom, statebackend.ErrReadOnly, statebackend.ErrClosed,
	statebackend.ErrDamaged,
}

// ended tells whether a call failed because ctx has ended, and gives its cause
// then. A deadline reaches the network a moment before the context.
func ended(ctx context.Context, err error) error {
	var already *resp.Stopped
	if err == nil || errors.As(err, &already) || !isNetwork(err) && !errors.Is(err, context.Canceled) {
		return err
	}
	cause := context.Cause(ctx)
	if at, ok := ctx.Deadline(); ok && cause == nil && !time.Now().Before(at) {
		cause = context.DeadlineExceeded
	}
	if cause == nil {
		return err
	}
	return &resp.Stopped{Cause: cause, After: err}
}

// endedHook does so for each command of the client.
type endedHook struct{}

var _ redis.Hook = endedHook{}

// DialHook leaves dialling as it is: its context is the client's own.
func (endedHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook looks at the error of a command.
func (endedHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return ended(ctx, next(ctx, cmd)) }
}

// ProcessPipelineHook looks at the error of several commands.
func (endedHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := ended(ctx, next(ctx, cmds))
		for _, c := range cmds {
			c.SetErr(ended(ctx, c.Err()))
		}
		return err
	}
}

// mapReply decides by the first word of an error reply.
func (b *Backend) mapReply(text string, err error, what string) error {
	code, _, _ := strings.Cut(text, " ")
	wrap := func(sentinel error) error { return fmt.Errorf("%s: %w: %w", what, sentinel, err) }
	switch code {
	case "NOAUTH", "WRONGPASS":
		return fmt.Errorf("%w: check user and password in the URL, or the password that overrides it", wrap(statebackend.ErrAuth))
	case "NOPERM":
		return fmt.Errorf("%w: grant it with ACL SETUSER", wrap(statebackend.ErrPermission))
	case "READONLY":
		return fmt.Errorf("%w: use the address of the master", wrap(statebackend.ErrReadOnly))
	case "OOM":
		return fmt.Errorf("%w: raise maxmemory or free memory", wrap(statebackend.ErrNoRoom))
	case "WRONGTYPE":
		return wrap(statebackend.ErrWrongType)
	case "BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN":
		return wrap(statebackend.ErrUnreachable)
	}
	switch {
	case strings.Contains(text, "The user executing the script can't"):
		// How 7.0 says NOPERM from within a script.
		return fmt.Errorf("%w: grant it with ACL SETUSER", wrap(statebackend.ErrPermission))
	case strings.Contains(text, "DB index is out of range"):
		return fmt.Errorf("%w: the server has no database %d (see its setting databases)", wrap(statebackend.ErrInvalidConfig), b.addr.db)
	case strings.Contains(text, "max number of clients"):
		return wrap(statebackend.ErrUnreachable)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// isNetwork tells a connection that failed, ended or took too long.
func isNetwork(err error) bool {
	var ne net.Error
	var te *tlsError
	return errors.As(err, &ne) || errors.As(err, &te) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// networkHint is the remedy that fits a failed connection, or nothing.
func (b *Backend) networkHint(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT):
		return ": is the server running at this address?"
	case b.addr.tls == nil && b.addr.network == "tcp" && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return ": the server closed the connection (if it speaks TLS, write rediss://)"
	}
	return ""
}
