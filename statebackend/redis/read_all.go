package redis

import (
	"context"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

var _ statebackend.Scratch = (*Backend)(nil)

// ReadAll implements [statebackend.Scratch]. It reads as a cut does inside its
// pause, with all checks of counts, but without a pause.
func (b *Backend) ReadAll(ctx context.Context, job statebackend.Job, sink snapshot.Sink) (version string, err error) {
	if err := job.Validate(); err != nil {
		return "", err
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // everything was read, or it has failed
	release := conn.Bind(ctx)
	defer release()
	facts, err := askFacts(conn)
	if err != nil {
		return "", b.mapError(err, "look at the server")
	}
	_, err = conn.Call(infoLimit, "PEXPIRETIME", job.Index())
	if err != nil && !isUnknownCommand(err) {
		return facts.version, b.mapError(err, "ask when keys expire")
	}
	r := &cutReader{
		stream: stream{conn: conn, sink: sink, check: func() error { return context.Cause(ctx) }},
		b:      b, job: job, version: facts.version, exactTTL: err == nil,
		dial: func() (*resp.Conn, error) { return b.dial(ctx) },
	}
	defer r.hangUp()
	names, err := r.indexSource()
	if err != nil {
		return facts.version, err
	}
	if err := r.keys(names); err != nil {
		return facts.version, err
	}
	return facts.version, r.meta()
}
