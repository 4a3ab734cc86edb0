package redis

import (
	"errors"
	"fmt"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// neededRights are the commands that every flip runs, on the names that are
// known beforehand. The flip asks again for each key, where the server can
// tell (7.0 and later).
func (s *staging) neededRights() [][]string {
	job := s.req.Job
	probe, rec := string(numbered(s.prefix+stageKeys, 0)), job.Record()
	all := [][]string{
		{"HGET", rec, "f"}, {"HSET", rec, "f", "v"}, {"HDEL", rec, "f"},
		{"RPUSH", probe, "v"}, {"SADD", probe, "v"}, {"SET", probe, "v"}, {"GET", probe},
		{"LLEN", probe}, {"LRANGE", probe, "0", "1"}, {"EXISTS", probe}, {"UNLINK", probe}, {"TIME"},
		{"SCARD", probe}, {"SSCAN", job.Index(), "0"}, {"SMISMEMBER", probe, "v"}, {"RENAME", probe, job.Assignment()},
		{"UNLINK", job.Assignment()}, {"RENAME", probe, job.OperatorStates()}, {"UNLINK", job.OperatorStates()},
		{"EVAL", "return 1", "0"}, {"TYPE", job.Index()},
	}
	if s.req.Scope == statebackend.ScopeAll {
		return append(all, []string{"RENAME", probe, job.Index()}, []string{"UNLINK", job.Index()},
			[]string{"RENAME", probe, job.Registry()}, []string{"UNLINK", job.Registry()})
	}
	return append(all, []string{"COPY", probe, probe + "0"}, []string{"SADD", job.Index(), "v"},
		[]string{"SREM", job.Index(), "v"}, []string{"HSET", job.Registry(), "f", "v"},
		[]string{"HDEL", job.Registry(), "f"}, []string{"HSCAN", probe, "0"})
}

// checkRights queues the commands in a transaction that it discards: the
// server refuses what the user may not do and does nothing. That the
// transaction is open has to be certain before the first of them is sent.
func (s *staging) checkRights() error {
	v, err := s.pipe.ask(smallReply, "MULTI")
	if err != nil {
		return s.b.mapError(err, "MULTI, which a restore needs")
	}
	if v.String() != "OK" {
		return fmt.Errorf("MULTI was answered with %q", v.String())
	}
	all := append(s.neededRights(), []string{"DISCARD"})
	for _, words := range all {
		if err := s.pipe.conn.Command(words...); err != nil {
			return s.pipe.lost(err)
		}
	}
	if err := s.pipe.conn.Flush(); err != nil {
		return s.pipe.lost(err)
	}
	var missing []error
	for _, words := range all {
		err := s.pipe.conn.SkipReply()
		if err != nil && !isReply(err) {
			return s.pipe.lost(err)
		}
		if err != nil {
			missing = append(missing, s.rightMissing(words, err))
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("restore into job %q: %w", s.req.Job.Root(), errors.Join(missing...))
}

func (s *staging) rightMissing(words []string, err error) error {
	what := words[0]
	if len(words) > 1 {
		what = fmt.Sprintf("%s on %q", words[0], words[1])
	}
	if resp.IsCode(err, "ERR") {
		// The server doesn't know the command, or not this form of it.
		return fmt.Errorf("%s: %w by server version %s: %w", what, statebackend.ErrUnsupported, s.version, err)
	}
	return s.b.mapError(err, what)
}
