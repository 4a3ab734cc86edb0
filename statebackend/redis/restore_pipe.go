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
	// pipeBytes is of commands: a payload and the one before it, so that the
	// server loads one while the next is gathered.
	pipeBytes    = 2 * payloadMost
	pipeCommands = 8192
	// pipeReplies is of replies to proofs, which the server holds until they
	// are read.
	pipeReplies = 4 << 20
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
	// ours says that it brings a payload of ours, which can be done without.
	ours bool
	// proof says what the reply has to hold; size is of the reply then.
	proof *expectation
	// names is for the proof of the mapping: whose names have to come, and odds
	// for what else is staged of them.
	names, odds []expectation
}

// reads says that the command asks for what is staged.
func (c *sentCommand) reads() bool { return c.proof != nil || c.names != nil || c.odds != nil }

// stagePipe sends commands without waiting and looks at every reply. After a
// refusal it reads what is outstanding, so that no other refusal is hidden,
// and then gives the same error for ever.
type stagePipe struct {
	b    *Backend
	conn *resp.Conn

	sent    []sentCommand
	head    int
	bytes   int64 // of commands outstanding
	replies int64 // of replies outstanding

	prefix string        // of staged names
	reader stagedReader  // of proofs
	again  []expectation // keys whose proof needs questions of its own

	refused []error
	more    int  // refusals that are only counted
	short   bool // a command that stages was refused: what proofs miss is no news
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
	if c.reads() {
		p.replies += c.size
	} else {
		p.bytes += c.size
	}
	if p.bytes <= pipeBytes && p.replies <= pipeReplies && len(p.sent)-p.head <= pipeCommands {
		return nil
	}
	return p.drain(2)
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

// drain reads replies until a part of what may be outstanding is, 0 for none.
func (p *stagePipe) drain(part int64) error {
	if p.err != nil {
		return p.err
	}
	if err := p.conn.Flush(); err != nil {
		return p.lost(err)
	}
	for p.head < len(p.sent) && (part == 0 || p.refused != nil || p.bytes > pipeBytes/part ||
		p.replies > pipeReplies/part || len(p.sent)-p.head > pipeCommands/int(part)) {
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

// finish waits for every reply, and asks what takes questions of its own.
func (p *stagePipe) finish() error {
	if err := p.drain(0); err != nil {
		return err
	}
	for len(p.again) > 0 {
		e := p.again[0]
		p.again = p.again[1:]
		if err := p.proveAlone(&e); err != nil {
			return err
		}
	}
	return nil
}

// question sends a command that reads what is staged.
func (p *stagePipe) question(c sentCommand, args ...[]byte) error {
	if err := p.begin(1+len(args), c.verb); err != nil {
		return err
	}
	for _, a := range args {
		if err := p.arg(a); err != nil {
			return err
		}
	}
	return p.end(c)
}

func (p *stagePipe) readOne() error {
	c := p.sent[p.head]
	p.sent[p.head] = sentCommand{}
	p.head++
	if c.reads() {
		p.replies -= c.size
		return p.readProof(c)
	}
	p.bytes -= c.size
	h, err := p.conn.Next()
	if err != nil {
		return err
	}
	switch {
	case h.Err != nil && c.ours && refusesOurs(h.Err):
		p.refuse(c, fmt.Errorf("%w: %w", statebackend.ErrPayloadRefused, p.b.mapError(h.Err, c.verb)))
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
	p.short = true
	if c.hint != "" {
		err = fmt.Errorf("%w: %s", err, c.hint)
	}
	if c.key != nil {
		err = &statebackend.KeyError{Key: c.key, Op: "stage", Err: err}
	}
	p.refusedWith(err)
}

func (p *stagePipe) refusedWith(err error) {
	if len(p.refused) == pipeErrors {
		p.more++
		return
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
