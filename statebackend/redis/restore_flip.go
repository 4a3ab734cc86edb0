package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// flipPatience is how much longer than the timeout a flip may take for each
// key, several times what it was measured to take.
const flipPatience = 50 * time.Microsecond

// Flip proves what Prove hasn't, stages what only the flip brings, then runs
// the one script. After an error that isn't
// ErrUnreachable nothing has changed.
func (s *staging) Flip(ctx context.Context) (statebackend.FlipResult, error) {
	if s.result != nil {
		return *s.result, nil
	}
	if err := s.rebind(ctx); err != nil {
		// What was still on its way may have been staged on a server that
		// has lost everything else: it goes at once. Abort tries again.
		return statebackend.FlipResult{}, errors.Join(err, s.sweep(ctx))
	}
	if err := s.prepareFlip(); err != nil {
		return statebackend.FlipResult{}, err
	}
	crashpoint.At(crashpoint.FlipReady)
	v, err := s.runFlip(ctx)
	if err != nil {
		return statebackend.FlipResult{}, err
	}
	crashpoint.At(crashpoint.FlipDone)
	result := statebackend.FlipResult{Expired: s.expired, Epoch: s.req.NewEpoch, Warning: s.warning}
	if part(v, 0) != "already" {
		if err := s.verdict(v); err != nil {
			return statebackend.FlipResult{}, s.fail(err)
		}
		result.Keys, result.Removed = count(v, 1), count(v, 3)
		result.Expired += count(v, 2)
		result.Unclaimed = s.unclaimed(v)
	}
	s.result = &result
	s.hangUp()
	return result, nil
}

// unclaimed reads the script's numbers, one for each position.
func (s *staging) unclaimed(v resp.Value) []statebackend.Unclaimed {
	if len(v.Array) < 5 {
		return nil
	}
	var all []statebackend.Unclaimed
	for i, p := range s.req.Positions {
		if n := count(v.Array[4], i); n > 0 {
			all = append(all, statebackend.Unclaimed{Stream: p.Stream, Group: p.Group, Entries: n})
		}
	}
	return all
}

func count(v resp.Value, i int) uint64 {
	if i >= len(v.Array) || v.Array[i].Int < 0 {
		return 0
	}
	return uint64(v.Array[i].Int)
}

// rebind makes ctx the one that ends the staging's connection, after all that
// was staged has been answered and proved.
func (s *staging) rebind(ctx context.Context) error {
	if err := s.finishStaging(); err != nil {
		return err
	}
	s.release()
	s.release = s.pipe.conn.Bind(ctx)
	return nil
}

func (s *staging) prepareFlip() error {
	if err := s.stageAssignment(); err != nil {
		return err
	}
	if s.req.Scope == statebackend.ScopeOperator {
		if err := s.stageOperators(); err != nil {
			return err
		}
		if err := s.holdUnchanged(); err != nil {
			return err
		}
	}
	return s.pipe.finish()
}

func (s *staging) stageAssignment() error {
	if s.req.Assignment == nil {
		return nil
	}
	a := *s.req.Assignment
	a.Epoch = s.req.NewEpoch
	text, err := statebackend.EncodeAssignment(a)
	if err != nil {
		return err
	}
	return s.pipe.command(sentCommand{verb: "SET", ok: true}, []byte(s.prefix+stageAssign), text)
}

// stageOperators stages the registered operator states and schemas.
func (s *staging) stageOperators() error {
	for _, op := range s.req.Operators {
		mode, err := statebackend.EncodeOperatorMode(op)
		if err != nil {
			return err
		}
		field := statebackend.OperatorField(op.Operator, op.Name)
		cmd := sentCommand{verb: "HSET", want: 1, hint: fmt.Sprintf("operator state %q", field)}
		if err := s.pipe.command(cmd, []byte(s.prefix+stageOps), []byte(field), mode); err != nil {
			return err
		}
	}
	s.modes = len(s.req.Operators) > 0
	for name, schema := range s.req.Schemas {
		cmd := sentCommand{key: []byte(name), verb: "HSET", want: 1}
		if err := s.pipe.command(cmd, []byte(s.prefix+stageSchema), []byte(name), []byte(schema)); err != nil {
			return err
		}
	}
	return nil
}

// holdUnchanged copies the keys that must be as they were read, and compares
// the copies with what was read. The flip's script compares the live keys
// with the copies: a script can't compute our digests.
func (s *staging) holdUnchanged() error {
	s.extras = uint64(len(s.req.Unchanged))
	if s.extras == 0 {
		return nil
	}
	if err := s.announce(stageMore, s.extras); err != nil {
		return err
	}
	for i, k := range s.req.Unchanged {
		entry := append([]byte(k.Type.String()+":"), k.Name...)
		if err := s.pipe.command(sentCommand{key: k.Name, verb: "RPUSH", want: int64(i) + 1}, []byte(s.prefix+stageFixed), entry); err != nil {
			return err
		}
		cmd := sentCommand{key: k.Name, verb: "COPY", want: 1, not: fmt.Errorf("%w: it isn't there", statebackend.ErrChanged)}
		target := s.extraKey(uint64(i))
		if k.Type == 0 { // a name without a key: nothing to copy
			cmd.verb, cmd.want, cmd.not = "EXISTS", 0, fmt.Errorf("%w: it exists now", statebackend.ErrChanged)
			if err := s.pipe.command(cmd, k.Name); err != nil {
				return err
			}
			continue
		}
		if err := s.pipe.command(cmd, k.Name, target); err != nil {
			return err
		}
	}
	if err := s.pipe.finish(); err != nil {
		return err
	}
	return s.compareUnchanged()
}

func (s *staging) extraKey(i uint64) []byte {
	return numbered(s.prefix+stageExtras, i)
}

func (s *staging) compareUnchanged() error {
	r := stagedReader{conn: s.pipe.conn}
	for i, k := range s.req.Unchanged {
		if k.Type == 0 {
			continue
		}
		got, err := r.summary(s.extraKey(uint64(i)), k.Type, k.Count)
		if err != nil {
			if !isReply(err) {
				return s.pipe.lost(err)
			}
			return s.fail(&statebackend.KeyError{Key: k.Name, Op: "compare", Err: fmt.Errorf("%w: %w", statebackend.ErrChanged, err)})
		}
		if got.count != k.Count || got.digest != k.Digest {
			return s.fail(&statebackend.KeyError{Key: k.Name, Op: "compare", Err: fmt.Errorf(
				"%w: %d elements, digest %016x; it was read with %d, %016x", statebackend.ErrChanged, got.count, got.digest, k.Count, k.Digest)})
		}
	}
	return nil
}

// runFlip sends the script on a connection that waits as long as it may take.
// An answer that didn't come is ErrUnreachable, whatever the cause.
func (s *staging) runFlip(ctx context.Context) (resp.Value, error) {
	patience := s.b.addr.timeout + time.Duration(s.keys+s.index.count)*flipPatience
	conn, err := s.b.dialPatient(ctx, patience)
	if err != nil {
		return resp.Value{}, s.fail(err)
	}
	defer func() { _ = conn.Close() }() // the answer was read, or won't come
	defer conn.Bind(ctx)()
	v, err := conn.Call(smallReply, s.flipWords()...)
	if err == nil {
		return v, nil
	}
	err = s.b.mapError(err, "flip restore "+s.req.ID)
	if !isReply(err) && !errors.Is(err, statebackend.ErrUnreachable) {
		err = fmt.Errorf("%w: %w", statebackend.ErrUnreachable, err)
	}
	return v, s.fail(err)
}

func (s *staging) flipWords() []string {
	job, u := s.req.Job, func(n uint64) string { return strconv.FormatUint(n, 10) }
	bit := map[bool]string{true: "1", false: "0"}
	words := []string{
		"EVAL", flipScript, "6", job.Record(), job.Index(), job.Registry(), job.OperatorStates(), job.Assignment(), job.Lease(),
		s.prefix, s.req.ID, s.markJSON, u(s.req.Epoch), u(s.req.NewEpoch), string(s.req.Scope),
		u(s.keys), u(s.odds), u(s.index.count), u(s.absent.count), u(s.lapsed.count), u(s.extras),
		bit[s.registry] + bit[s.modes] + bit[s.req.Assignment != nil],
		s.req.Incarnation, u(uint64(s.req.Attempt)), u(uint64(s.req.Checkpoint)), s.lease.Holder, tokenWord(s.lease),
	}
	return append(words, s.positionWords()...)
}
