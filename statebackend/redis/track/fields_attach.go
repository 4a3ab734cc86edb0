package track

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"keyframe/statebackend/redis/resp"
)

// history is a place in a server's stream of writes.
type history struct {
	replID string
	offset int64
}

// run attaches again and again until Close.
func (t *fields) run(ctx context.Context) {
	defer close(t.done)
	var pause time.Duration
	for {
		began := time.Now()
		attached, err := t.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		refused := errors.Is(err, ErrDenied)
		t.detach(err, refused, errors.Is(err, errGarbled))
		longest := 30 * t.timing.retry
		switch {
		case refused:
			pause = t.timing.denied
		case attached && time.Since(began) > longest:
			pause = 0 // at once, while the server still has what is missing
		default:
			pause = min(max(2*pause, t.timing.retry), longest)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// follow attaches once and reads the stream until the link breaks.
func (t *fields) follow(ctx context.Context) (attached bool, err error) {
	nc, err := t.connect(ctx)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // its reader hears of it
	defer stop()
	defer func() { _ = nc.Close() }() // nothing that we wrote matters
	w := newWire(nc, t.timing.silence)
	from, full, err := t.handshake(w)
	if err != nil {
		return false, fmt.Errorf("attach to %s as a replica: %w", t.opts.Server, err)
	}
	w.begin(from.offset)
	acks := newAcks(nc, t.timing)
	defer acks.end()
	if full {
		t.db = anyDB
		t.at("waiting for the stream's first byte")
		if err := w.first(t.timing.settle); err != nil {
			return false, fmt.Errorf("attach to %s as a replica: %w", t.opts.Server, err)
		}
	}
	t.attach(nc, from, full)
	s := &stream{wire: w, t: t, ask: acks.ask}
	for {
		if err := s.command(); err != nil {
			return true, fmt.Errorf("write stream of %s: %w", t.opts.Server, err)
		}
		acks.flows()
		t.reached(w.offset())
	}
}

func (t *fields) connect(ctx context.Context) (net.Conn, error) {
	t.at("connecting")
	ctx, cancel := context.WithTimeout(ctx, t.timing.dial)
	defer cancel()
	nc, err := t.opts.Dial(ctx)
	if err == nil {
		return nc, nil
	}
	for _, code := range refusals {
		if resp.IsCode(err, code) {
			err = fmt.Errorf("%w: %w", ErrDenied, err)
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", t.opts.Server, err)
}

// handshake asks for the stream, from where the last link ended if there was
// one. It leaves the wire at the stream's first byte.
func (t *fields) handshake(w *wire) (from history, full bool, err error) {
	t.at("telling the server that a replica without data attaches")
	if err := t.replconf(w, "listening-port", "0", "capa", "eof", "capa", "psync2"); err != nil {
		return from, false, err
	}
	// Before PSYNC, and not with it: a server that doesn't know this would
	// send all its data.
	if err := t.replconf(w, "rdb-filter-only", ""); err != nil {
		return from, false, fmt.Errorf("%w (needs Redis 7.0 or later)", err)
	}
	at, next := "?", int64(-1)
	t.mu.Lock()
	from = history{t.replID, t.offset.Load()}
	t.mu.Unlock()
	if from.replID != "" {
		at, next = from.replID, from.offset+1
	}
	t.at("waiting for the server's answer to PSYNC, which comes after its repl-diskless-sync-delay and after snapshots for other replicas")
	answer, err := w.ask("PSYNC", at, strconv.FormatInt(next, 10))
	if err != nil {
		return from, false, err
	}
	words := strings.Fields(answer)
	switch {
	case len(words) == 0: // blanks are no answer
	case words[0] == "+CONTINUE" && from.replID != "" && len(words) <= 2:
		if len(words) == 2 {
			from.replID = words[1]
		}
		return from, false, nil
	case words[0] == "+FULLRESYNC" && len(words) == 3:
		from = history{replID: words[1]}
		if from.offset, err = strconv.ParseInt(words[2], 10, 64); err != nil || from.offset < 0 {
			return from, false, fmt.Errorf("%w: PSYNC: %q", errGarbled, answer)
		}
		t.at("waiting for the end of the server's snapshot")
		return from, true, w.passRDB()
	}
	return from, false, fmt.Errorf("PSYNC: the server says %q", answer)
}

func (t *fields) replconf(w *wire, args ...string) error {
	answer, err := w.ask(append([]string{"REPLCONF"}, args...)...)
	if err != nil {
		return err
	}
	if answer != "+OK" {
		return fmt.Errorf("REPLCONF %s: %w: the server says %q", args[0], ErrDenied, answer)
	}
	return nil
}

// ask sends a command and reads its one-line answer. An error of the server's
// that another attempt won't heal wraps ErrDenied.
func (w *wire) ask(args ...string) (string, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if err := w.nc.SetWriteDeadline(time.Now().Add(w.silence)); err != nil {
		return "", fmt.Errorf("set deadline: %w", err)
	}
	if _, err := w.nc.Write(b.Bytes()); err != nil {
		return "", fmt.Errorf("%s: %w", args[0], err)
	}
	line, err := w.reply()
	if err != nil {
		return "", fmt.Errorf("%s: %w", args[0], err)
	}
	answer := string(line)
	if denies(answer) {
		return "", fmt.Errorf("%s: %w: the server says %q; give the user +psync and +replconf", args[0], ErrDenied, answer[1:])
	}
	if answer[0] == '-' {
		return "", fmt.Errorf("%s: the server says %q", args[0], answer[1:])
	}
	return answer, nil
}

// refusals are codes of errors that only a person can heal.
var refusals = []string{"NOPERM", "NOAUTH", "WRONGPASS", "DENIED"}

func denies(answer string) bool {
	for _, code := range refusals {
		if strings.HasPrefix(answer, "-"+code+" ") {
			return true
		}
	}
	// Forks and old servers; a command that was renamed.
	return strings.HasPrefix(answer, "-ERR unknown command") || strings.HasPrefix(answer, "-ERR Unrecognized REPLCONF")
}
