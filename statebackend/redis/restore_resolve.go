package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyframe/internal/crashpoint"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

var _ statebackend.Restorer = (*Backend)(nil)

// unlinkAtOnce is how many names one UNLINK of the cleaning takes.
const unlinkAtOnce = 500

// Abort ends the staging: see Resolve, which it does even when ctx is done.
func (s *staging) Abort(ctx context.Context) error {
	if s.result != nil || s.ended {
		return nil
	}
	if ctx.Err() != nil {
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.addr.timeout+time.Minute)
		defer cancel()
		ctx = fresh
	}
	s.hangUp()
	err := s.b.resolve(ctx, s.resolver(), func(r *resolver) error {
		_, err := r.run()
		return err
	})
	s.ended = err == nil
	return err
}

// sweep hangs up and removes what was staged, but leaves the mark.
func (s *staging) sweep(ctx context.Context) error {
	s.hangUp()
	return s.b.resolve(ctx, s.resolver(), func(r *resolver) error {
		return errors.Join(r.endWriters(), r.clean())
	})
}

// resolver knows which numbers are in use, on a server that may have lost
// those that were announced.
func (s *staging) resolver() *resolver {
	r := newResolver(s.req.Job, s.req.ID, s.lease)
	r.sure, r.keys, r.extras = true, s.keys+1, s.extras
	return r
}

// hangUp closes the staging's connection. Safe to call twice.
func (s *staging) hangUp() {
	s.release()
	_ = s.pipe.conn.Close() // nothing that was sent on it counts any more
}

// Resolve first stops a flip that may be on its way, then ends connections
// that may still stage, then removes what was staged by its known names, and
// takes the mark away last: killed between, it can be called again.
func (b *Backend) Resolve(ctx context.Context, job statebackend.Job, restore string) (bool, error) {
	if err := job.Validate(); err != nil {
		return false, err
	}
	if !restoreID.MatchString(restore) {
		return false, fmt.Errorf("restore id %q: want 1 to 64 lower-case letters and digits", restore)
	}
	var flipped bool
	err := b.resolve(ctx, newResolver(job, restore, statebackend.LeaseOf(ctx, job)), func(r *resolver) error {
		var err error
		flipped, err = r.run()
		return err
	})
	return flipped, err
}

// resolve does one thing on a connection of its own.
func (b *Backend) resolve(ctx context.Context, r *resolver, do func(*resolver) error) error {
	conn, err := b.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // every reply was read
	defer conn.Bind(ctx)()
	r.conn = conn
	return b.mapError(do(r), fmt.Sprintf("resolve restore %s of job %q", r.id, r.job.Root()))
}

// resolver removes one restore. Without being sure of the numbers in use it
// takes those that the server has.
type resolver struct {
	conn         *resp.Conn
	job          statebackend.Job
	id           string
	lease        statebackend.Lease
	prefix       string
	sure         bool
	keys, extras uint64
}

func newResolver(job statebackend.Job, restore string, l statebackend.Lease) *resolver {
	return &resolver{job: job, id: restore, lease: l, prefix: job.Staging(restore)}
}

func (r *resolver) run() (flipped bool, err error) {
	flipped, leads, err := r.script("stop")
	if err != nil || flipped {
		return flipped, err
	}
	crashpoint.At(crashpoint.ResolveStopped)
	if err := r.endWriters(); err != nil {
		return false, err
	}
	if err := r.clean(); err != nil {
		return false, err
	}
	crashpoint.At(crashpoint.ResolveCleaned)
	if !leads {
		return false, nil
	}
	flipped, _, err = r.script("unmark")
	crashpoint.At(crashpoint.ResolveUnmarked)
	return flipped, err
}

// script runs one half of it; leads says that the mark is ours to take away.
func (r *resolver) script(what string) (flipped, leads bool, err error) {
	v, err := r.conn.Call(smallReply, "EVAL", resolveScript, "2", r.job.Record(), r.job.Lease(), r.id, what, r.lease.Holder, tokenWord(r.lease))
	if err != nil {
		return false, false, err
	}
	if len(v.Array) > 0 {
		return false, false, deposed(r.lease, v)
	}
	return v.Int == 1, v.Int != 2, nil
}

// endWriters ends connections that are named after this restore, so that
// commands which the server hasn't read yet don't come after the cleaning. A
// user without these rights gets by without: what may be left then is a
// staged key that nothing refers to.
func (r *resolver) endWriters() error {
	v, err := r.conn.Call(64<<20, "CLIENT", "LIST")
	if isReply(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, line := range strings.Split(v.String(), "\n") {
		id, named := "", false
		for _, field := range strings.Fields(line) {
			if rest, ok := strings.CutPrefix(field, "id="); ok {
				id = rest
			}
			named = named || field == "name="+stageClient(r.id)
		}
		if !named {
			continue
		}
		if _, err := r.conn.Call(smallReply, "CLIENT", "KILL", "ID", id); err != nil && !isReply(err) {
			return err
		}
	}
	return nil
}

// clean removes the staged keys. The announced numbers go last.
func (r *resolver) clean() error {
	keys, known, err := r.announced(stageNext)
	if err != nil {
		return err
	}
	extras, _, err := r.announced(stageMore)
	if err != nil {
		return err
	}
	if err := r.unlinkNumbered(r.prefix+stageKeys, max(keys, r.keys)); err != nil {
		return err
	}
	if err := r.unlinkNumbered(r.prefix+stageExtras, max(extras, r.extras)); err != nil {
		return err
	}
	if !known && !r.sure {
		// Nothing was staged, or the server has evicted or lost the numbers.
		if err := r.unlinkFound(); err != nil {
			return err
		}
	}
	return r.unlinkNames()
}

// announced reads how many numbers may be in use; false when nothing says so.
func (r *resolver) announced(name string) (uint64, bool, error) {
	v, err := r.conn.Call(smallReply, "GET", r.prefix+name)
	if err != nil || v.Nil {
		return 0, false, err
	}
	n, err := strconv.ParseUint(v.String(), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("key %q holds %q, not a number", r.prefix+name, v.String())
	}
	return n, true, nil
}

func (r *resolver) unlinkNames() error {
	words := []string{"UNLINK"}
	for _, name := range stageNames {
		words = append(words, r.prefix+name)
	}
	_, err := r.conn.Call(smallReply, words...)
	return err
}

func (r *resolver) unlinkNumbered(prefix string, n uint64) error {
	for from := uint64(0); from < n; from += unlinkAtOnce {
		words := []string{"UNLINK"}
		for i := from; i < min(n, from+unlinkAtOnce); i++ {
			words = append(words, string(numbered(prefix, i)))
		}
		if _, err := r.conn.Call(smallReply, words...); err != nil {
			return err
		}
	}
	return nil
}

// unlinkFound looks through the whole database for keys of this restore.
func (r *resolver) unlinkFound() error {
	for cursor := "0"; ; {
		v, err := r.conn.Call(64<<20, "SCAN", cursor, "MATCH", globEscape(r.prefix)+"*", "COUNT", "1000")
		if err != nil {
			return err
		}
		if len(v.Array) != 2 {
			return errors.New("SCAN answered without a cursor")
		}
		cursor = v.Array[0].String()
		words := []string{"UNLINK"}
		for _, name := range v.Array[1].Array {
			words = append(words, name.String())
		}
		if len(words) > 1 {
			if _, err := r.conn.Call(smallReply, words...); err != nil {
				return err
			}
		}
		if cursor == "0" {
			return nil
		}
	}
}

// globEscape makes s match only itself in a pattern of the server.
func globEscape(s string) string {
	var out strings.Builder
	for i := range len(s) {
		if strings.IndexByte(`*?[]^\-`, s[i]) >= 0 {
			out.WriteByte('\\')
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
