package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

var _ statebackend.Restorer = (*Backend)(nil)

// unlinkAtOnce is how many names one UNLINK of the cleaning takes.
const unlinkAtOnce = 500

// Abort ends the staging: see Resolve, which it calls even when ctx is done.
func (s *staging) Abort(ctx context.Context) error {
	if s.result != nil || s.ended {
		return nil
	}
	s.hangUp()
	if ctx.Err() != nil {
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.addr.timeout+time.Minute)
		defer cancel()
		ctx = fresh
	}
	if _, err := s.b.Resolve(ctx, s.req.Job, s.req.ID); err != nil {
		return fmt.Errorf("abort restore %s: %w", s.req.ID, err)
	}
	s.ended = true
	return nil
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
	conn, err := b.dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }() // every reply was read
	defer conn.Bind(ctx)()
	r := &resolver{b: b, conn: conn, job: job, id: restore, prefix: job.Staging(restore)}
	flipped, err := r.run()
	if err != nil {
		return false, b.mapError(err, fmt.Sprintf("resolve restore %s of job %q", restore, job.Root()))
	}
	return flipped, nil
}

type resolver struct {
	b      *Backend
	conn   *resp.Conn
	job    statebackend.Job
	id     string
	prefix string
}

func (r *resolver) run() (flipped bool, err error) {
	flipped, ours, err := r.script("stop")
	if err != nil || flipped {
		return flipped, err
	}
	if err := r.endWriters(); err != nil {
		return false, err
	}
	if err := r.clean(ours); err != nil {
		return false, err
	}
	flipped, _, err = r.script("unmark")
	return flipped, err
}

func (r *resolver) script(what string) (flipped, ours bool, err error) {
	v, err := r.conn.Call(smallReply, "EVAL", resolveScript, "1", r.job.Record(), r.id, what)
	if err != nil {
		return false, false, err
	}
	return count(v, 0) == 1, count(v, 1) == 1, nil
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
func (r *resolver) clean(ours bool) error {
	known := false
	for _, counter := range [][2]string{{stageNext, stageKeys}, {stageMore, stageExtras}} {
		v, err := r.conn.Call(smallReply, "GET", r.prefix+counter[0])
		if err != nil {
			return err
		}
		if v.Nil {
			continue
		}
		known = true
		n, err := strconv.ParseUint(v.String(), 10, 64)
		if err != nil {
			return fmt.Errorf("key %q holds %q, not a number", r.prefix+counter[0], v.String())
		}
		if err := r.unlinkNumbered(r.prefix+counter[1], n); err != nil {
			return err
		}
	}
	if !known && ours {
		// Either nothing was staged, or the server has evicted the numbers.
		if err := r.unlinkFound(); err != nil {
			return err
		}
	}
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
			words = append(words, prefix+strconv.FormatUint(i, 10))
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
