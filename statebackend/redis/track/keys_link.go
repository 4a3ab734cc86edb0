package track

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"keyframe/statebackend/redis/resp"
)

// maxAsked is how many questions may be without an answer on one connection:
// more than callers have in any sane use, and a bound of memory.
const maxAsked = 1024

// question takes the answer to a command. It is called once, by the goroutine
// that reads the connection, or by the asking one when the link is dead.
type question func(answer, error)

// keyLink is one connection of a watch: commands go out in any goroutine,
// answers and invalidations are read in one.
type keyLink struct {
	nc    net.Conn
	times keyTimes

	order sync.Mutex // questions stand in the order in which they were sent

	mu    sync.Mutex // never held while the network is waited for
	asked []question
	err   error // why it ended

	missed int // PINGs of a quiet link without an answer; the reader's
}

// serve reads until the link ends and says why. Every question has been
// answered then.
func (l *keyLink) serve(sink invalidations) error {
	r := newResp3(l, sink)
	for {
		a, err := r.next()
		if err != nil {
			return l.end(err)
		}
		l.mu.Lock()
		if len(l.asked) == 0 {
			l.mu.Unlock()
			return l.end(fmt.Errorf("%w: an answer (%q) that nothing was asked for", errResp3, a.kind))
		}
		q := l.asked[0]
		l.asked = l.asked[1:]
		l.mu.Unlock()
		q(a, nil)
	}
}

// end kills the link with err, unless it is dead already, and fails what is
// still asked.
func (l *keyLink) end(err error) error {
	l.kill(err)
	l.mu.Lock()
	asked, why := l.asked, l.err
	l.asked = nil
	l.mu.Unlock()
	for _, q := range asked {
		q(answer{}, why)
	}
	return why
}

// kill closes the connection, so that serve ends with err: the first one
// counts.
func (l *keyLink) kill(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	_ = l.nc.Close() // there is nothing more to be said on it
}

// Read is the reader's, and minds a link that says nothing: a connection
// whose other end is gone without a word is found out by PINGs that stay
// without an answer. Any byte is a sign of life.
func (l *keyLink) Read(b []byte) (int, error) {
	for {
		if err := l.nc.SetReadDeadline(time.Now().Add(l.times.quiet)); err != nil {
			return 0, fmt.Errorf("set deadline: %w", err)
		}
		n, err := l.nc.Read(b)
		if n > 0 {
			l.missed = 0
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if l.missed == l.times.missed {
			return 0, fmt.Errorf("the server has not answered %d PINGs, one each %v: %w", l.missed, l.times.quiet, err)
		}
		l.missed++
		l.send(func(answer, error) {}, "PING") // an answer is a byte, which is what counts
	}
}

// send asks. The question is put in its place before send returns.
func (l *keyLink) send(q question, args ...string) {
	l.order.Lock()
	err := l.place(q)
	if err == nil {
		if err := l.write(encode(args)); err != nil {
			l.kill(fmt.Errorf("write: %w", err)) // serve answers the question
		}
	}
	l.order.Unlock()
	if err != nil {
		q(answer{}, err)
	}
}

// place puts a question behind those that were sent before it.
func (l *keyLink) place(q question) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if len(l.asked) >= maxAsked {
		return fmt.Errorf("%d commands are without an answer", len(l.asked))
	}
	l.asked = append(l.asked, q)
	return nil
}

func (l *keyLink) write(b []byte) error {
	if err := l.nc.SetWriteDeadline(time.Now().Add(l.times.write)); err != nil {
		return err
	}
	_, err := l.nc.Write(b)
	return err
}

// dead reports whether the link was killed: what is read of it then is left
// over.
func (l *keyLink) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// ask sends a command and waits for its answer. An error reply is an error
// that wraps [resp.Error].
func (l *keyLink) ask(ctx context.Context, args ...string) (string, error) {
	type result struct {
		answer
		err error
	}
	got := make(chan result, 1)
	l.send(func(a answer, err error) { got <- result{a, err} }, args...)
	select {
	case r := <-got:
		if r.err != nil {
			return "", r.err
		}
		return r.text, r.refused(args)
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the answer to %s: %w", args[0], context.Cause(ctx))
	}
}

// refused is an error when the answer is one.
func (a answer) refused(args []string) error {
	if a.fail == "" {
		return nil
	}
	code, _, _ := strings.Cut(a.fail, " ")
	return fmt.Errorf("%s: %w", name(args), &resp.Error{Code: code, Message: a.fail})
}

// name is a command as errors and rights show it.
func name(args []string) string {
	if args[0] == "CLIENT" {
		return args[0] + " " + args[1]
	}
	return args[0]
}

func encode(args []string) []byte {
	var b bytes.Buffer
	word := func(kind byte, n int) {
		b.WriteByte(kind)
		b.WriteString(strconv.Itoa(n))
		b.WriteString("\r\n")
	}
	word('*', len(args))
	for _, a := range args {
		word('$', len(a))
		b.WriteString(a)
		b.WriteString("\r\n")
	}
	return b.Bytes()
}

// judge makes an error of the handshake ErrDenied where trying again is no
// use, ErrLost otherwise, with the server's name and the remedy.
func judge(server string, err error) error {
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrLost) {
		return fmt.Errorf("server %s: %w", server, err)
	}
	var e *resp.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w: server %s: %w", ErrLost, server, err)
	}
	remedy := ""
	switch text := strings.ToLower(e.Message); {
	case e.Code == "NOPERM":
		remedy = "give the user the rights " + keyRights
	case e.Code == "WRONGPASS" || e.Code == "NOAUTH":
		remedy = "correct the user or the password"
	case e.Code == "NOPROTO" || strings.Contains(text, "unknown") || strings.Contains(text, "wrong number") ||
		strings.Contains(text, "syntax"):
		remedy = "tracking of keys needs Redis 6.0 or newer, and no proxy before it"
	default: // LOADING, BUSY, MASTERDOWN, too many clients…: it passes
		return fmt.Errorf("%w: server %s: %w", ErrLost, server, err)
	}
	return fmt.Errorf("%w: server %s: %w: %s", ErrDenied, server, err, remedy)
}
