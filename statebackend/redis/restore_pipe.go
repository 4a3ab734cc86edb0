package redis

import (
	"context"
	"errors"
	"fmt"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// Bounds of what is sent and not yet answered.
const (
	pipeBytes    = 4 << 20
	pipeCommands = 2048
	// pipeErrors is how many refusals are told one by one; the rest is counted.
	pipeErrors = 8
)

// sentCommand is a command whose reply is still to come.
type sentCommand struct {
	key  []byte // the checkpoint's key that it is for; nil for our bookkeeping
	verb string
	size int64
	// ok says that the reply has to be a status; otherwise it has to be the
	// number want.
	ok   bool
	want int64
	hint string // added to a refusal
	not  error  // what another number than want means
}

// stagePipe sends commands without waiting and looks at every reply. After a
// refusal it reads what is outstanding, so that no other refusal is hidden,
// and then gives the same error for ever.
type stagePipe struct {
	b    *Backend
	conn *resp.Conn

	sent  []sentCommand
	head  int
	bytes int64

	refused []error
	more    int // refusals that are only counted
	err     error
}

// begin opens a command of n arguments.
func (p *stagePipe) begin(n int, verb string) error {
	if p.err != nil {
		return p.err
	}
	if err := p.conn.BeginCommand(n); err != nil {
		return p.lost(err)
	}
	return p.arg([]byte(verb))
}

func (p *stagePipe) arg(b []byte) error {
	if p.err != nil {
		return p.err
	}
	if err := p.conn.Arg(b); err != nil {
		return p.lost(err)
	}
	return nil
}

// header opens an argument that write brings in pieces.
func (p *stagePipe) header(size uint64) error {
	if p.err != nil {
		return p.err
	}
	if size > 1<<62 {
		return p.fail(fmt.Errorf("value of %d bytes", size))
	}
	if err := p.conn.ArgHeader(int64(size)); err != nil {
		return p.lost(err)
	}
	return nil
}

func (p *stagePipe) write(b []byte) error {
	if p.err != nil {
		return p.err
	}
	if _, err := p.conn.Write(b); err != nil {
		return p.lost(err)
	}
	return nil
}

// end closes the open command and, when too much is outstanding, waits for
// the older half of it.
func (p *stagePipe) end(c sentCommand) error {
	if p.err != nil {
		return p.err
	}
	p.sent = append(p.sent, c)
	p.bytes += c.size
	if p.bytes <= pipeBytes && len(p.sent)-p.head <= pipeCommands {
		return nil
	}
	return p.drain(pipeBytes/2, pipeCommands/2)
}

// command sends one whole command.
func (p *stagePipe) command(c sentCommand, args ...[]byte) error {
	if err := p.begin(1+len(args), c.verb); err != nil {
		return err
	}
	for _, a := range args {
		if err := p.arg(a); err != nil {
			return err
		}
		c.size += int64(len(a))
	}
	return p.end(c)
}

// drain reads replies until at most so much is outstanding.
func (p *stagePipe) drain(bytes int64, commands int) error {
	if p.err != nil {
		return p.err
	}
	if err := p.conn.Flush(); err != nil {
		return p.lost(err)
	}
	for p.head < len(p.sent) && (p.bytes > bytes || len(p.sent)-p.head > commands || p.refused != nil) {
		if err := p.readOne(); err != nil {
			return p.lost(err)
		}
	}
	if p.head > len(p.sent)/2 {
		p.sent = p.sent[:copy(p.sent, p.sent[p.head:])]
		p.head = 0
	}
	if p.refused == nil {
		return nil
	}
	return p.fail(p.refusals())
}

// finish waits for every reply.
func (p *stagePipe) finish() error { return p.drain(0, 0) }

func (p *stagePipe) readOne() error {
	c := p.sent[p.head]
	h, err := p.conn.Next()
	if err != nil {
		return err
	}
	p.sent[p.head] = sentCommand{}
	p.head++
	p.bytes -= c.size
	switch {
	case h.Err != nil:
		p.refuse(c, p.b.mapError(h.Err, c.verb))
	case c.ok && h.Kind == resp.Simple, !c.ok && h.Kind == resp.Integer && h.Int == c.want:
	case h.Kind == resp.Integer && !c.ok && c.not != nil:
		p.refuse(c, c.not)
	case h.Kind == resp.Integer && !c.ok:
		p.refuse(c, fmt.Errorf("%s answered %d, not %d: the key held something already, or an element came twice", c.verb, h.Int, c.want))
	default:
		return fmt.Errorf("%s was answered with %s", c.verb, h.Kind)
	}
	return nil
}

func (p *stagePipe) refuse(c sentCommand, err error) {
	if len(p.refused) == pipeErrors {
		p.more++
		return
	}
	if c.hint != "" {
		err = fmt.Errorf("%w: %s", err, c.hint)
	}
	if c.key != nil {
		err = &statebackend.KeyError{Key: c.key, Op: "stage", Err: err}
	}
	p.refused = append(p.refused, err)
}

func (p *stagePipe) refusals() error {
	err := errors.Join(p.refused...)
	if p.more > 0 {
		err = fmt.Errorf("%w\nand %d more", err, p.more)
	}
	return err
}

// lost is the connection's error, with the refusals that came before it.
func (p *stagePipe) lost(err error) error {
	err = p.b.mapError(err, "stage")
	if p.refused != nil {
		err = errors.Join(p.refusals(), err)
	}
	return p.fail(err)
}

func (p *stagePipe) fail(err error) error {
	if p.err == nil {
		p.err = err
	}
	return p.err
}

// ask sends one command when nothing is outstanding and gives the reply,
// which may take limit bytes of memory.
func (p *stagePipe) ask(limit int64, args ...string) (resp.Value, error) {
	if err := p.finish(); err != nil {
		return resp.Value{}, err
	}
	v, err := p.conn.Call(limit, args...)
	if err != nil && !isReply(err) {
		return v, p.lost(err)
	}
	return v, err
}

// bind makes the end of ctx end the connection.
func (p *stagePipe) bind(ctx context.Context) (release func()) { return p.conn.Bind(ctx) }
