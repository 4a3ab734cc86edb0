package redis

import (
	"context"
	"fmt"
	"strings"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// cutRight is a command that a cut uses, as an example on the job's own key,
// with the right that permits it.
type cutRight struct {
	right string
	key   string // "" when the command takes none
	args  []string
}

// onKey is a command whose key comes after its name (of one or two words).
func onKey(key, name string, args ...string) cutRight {
	words := strings.Fields(name)
	right := "+" + strings.ToLower(strings.Join(words, "|"))
	return cutRight{right, key, append(append(words, key), args...)}
}

// cutRights is everything that a cut may need. The canary's command is not
// among them: without it a cut has one proof less.
func cutRights(req statebackend.CutRequest) []cutRight {
	key := req.Job.Index()
	all := []cutRight{
		{"+client|pause", "", []string{"CLIENT", "PAUSE", "1", "WRITE"}},
		{"+client|unpause", "", []string{"CLIENT", "UNPAUSE"}},
		{"+time", "", []string{"TIME"}}, {"+info", "", []string{"INFO", "server"}},
		onKey(key, "TYPE"), onKey(key, "EXISTS"), onKey(key, "MEMORY USAGE"),
		onKey(key, "GET"), onKey(key, "STRLEN"), onKey(key, "GETRANGE", "0", "1"),
		onKey(key, "HGETALL"), onKey(key, "HLEN"), onKey(key, "HSCAN", "0"),
		onKey(key, "LLEN"), onKey(key, "LRANGE", "0", "1"),
		onKey(key, "SMEMBERS"), onKey(key, "SCARD"), onKey(key, "SSCAN", "0"),
		onKey(key, "ZCARD"), onKey(key, "ZRANGE", "0", "1"), onKey(key, "DUMP"),
	}
	for _, s := range req.Sources {
		stream := streamKey(s.Topic, 0)
		all = append(all, onKey(stream, "XINFO GROUPS"), onKey(stream, "XPENDING", s.Group),
			onKey(sourceMetaKey(s.Topic), "HGETALL"), onKey(frontierName(s.Topic, 0), "HGETALL"))
	}
	return all
}

// precopyRights is what grade precopy reads by, beside what every cut needs.
// What the trackers need they ask for themselves: +psync and +replconf for
// fields, +hello and +client|tracking for keys.
func precopyRights(req statebackend.CutRequest) []cutRight {
	key := req.Job.Index()
	return []cutRight{
		onKey(key, "HMGET", "f"), onKey(key, "SMISMEMBER", "m"),
		onKey(key, "ZMSCORE", "m"), onKey(key, "ZSCAN", "0"),
	}
}

// cutProbe is what the look at the rights found.
type cutProbe struct {
	exactTTL bool     // the server knows PEXPIRETIME (from 7.0 on)
	bounded  bool     // the user may read a hash by HRANDFIELD (from 6.2 on)
	lacks    []string // rights that only grade precopy needs
}

// queueExpiry asks for the right to ask when a key expires, by the exact
// command where the server has it.
func (b *Backend) queueExpiry(conn *resp.Conn, job statebackend.Job) (exact bool, lacks []string, err error) {
	lacks, err = b.queueRights(conn, []cutRight{onKey(job.Index(), "PEXPIRETIME")})
	if !isUnknownCommand(err) {
		return true, lacks, err
	}
	lacks, err = b.queueRights(conn, []cutRight{onKey(job.Index(), "PTTL")})
	return false, lacks, err
}

// checkCutRights asks for each right without using any: between MULTI and
// DISCARD the server checks a command and does nothing. A user without MULTI
// finds out later what else is missing.
func (b *Backend) checkCutRights(ctx context.Context, req statebackend.CutRequest) (cutProbe, error) {
	var probe cutProbe
	conn, err := b.dial(ctx)
	if err != nil {
		return probe, err
	}
	defer func() { _ = conn.Close() }() // nothing was left to be said
	release := conn.Bind(ctx)
	defer release()
	if _, err := conn.Call(infoLimit, "MULTI"); resp.IsCode(err, "NOPERM") {
		return b.probeUnqueued(conn, req)
	} else if err != nil {
		return probe, b.mapError(err, "ask for rights")
	}
	missing, err := b.queueRights(conn, cutRights(req))
	if err != nil {
		return probe, err
	}
	if probe.lacks, err = b.queueRights(conn, precopyRights(req)); err != nil && !isUnknownCommand(err) {
		return probe, err
	} else if err != nil {
		probe.lacks = append(probe.lacks, "a server of version 6.2 or later")
	}
	// Not needed: hashes are read by other commands too.
	denied, err := b.queueRights(conn, []cutRight{onKey(req.Job.Index(), "HRANDFIELD", "1", "WITHVALUES")})
	if err != nil && !isUnknownCommand(err) {
		return probe, err
	}
	probe.bounded = err == nil && len(denied) == 0
	var lacks []string
	if probe.exactTTL, lacks, err = b.queueExpiry(conn, req.Job); err != nil {
		return probe, err
	}
	if _, err := conn.Call(infoLimit, "DISCARD"); err != nil {
		return probe, b.mapError(err, "ask for rights")
	}
	return probe, missingRights(req.Job, append(missing, lacks...))
}

// queueRights gives the rights of those commands that the server refused.
func (b *Backend) queueRights(conn *resp.Conn, rights []cutRight) ([]string, error) {
	for _, r := range rights {
		if err := conn.Command(r.args...); err != nil {
			return nil, b.mapError(err, "ask for rights")
		}
	}
	if err := conn.Flush(); err != nil {
		return nil, b.mapError(err, "ask for rights")
	}
	var missing []string
	var first error
	for _, r := range rights {
		_, err := conn.Reply(infoLimit)
		switch {
		case conn.Err() != nil:
			return nil, b.mapError(err, "ask for rights")
		case resp.IsCode(err, "NOPERM"):
			missing = append(missing, missingRight(r, err))
		case err != nil && first == nil:
			first = b.mapError(err, strings.Join(r.args[:min(2, len(r.args))], " "))
		}
	}
	return missing, first
}

// missingRight tells a command that is denied from a key that is.
func missingRight(r cutRight, err error) string {
	if r.key == "" || strings.Contains(err.Error(), "run the") {
		return r.right
	}
	return fmt.Sprintf("~%s", r.key)
}

func missingRights(job statebackend.Job, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	seen := make(map[string]bool)
	var list []string
	for _, m := range missing {
		if !seen[m] {
			seen[m] = true
			list = append(list, m)
		}
	}
	return fmt.Errorf("%w: a cut of grade %s needs %s: grant it with ACL SETUSER (the job's keys are %s:*)",
		statebackend.ErrPermission, snapshot.GradePaused, strings.Join(list, " "), job.Root())
}

// probeUnqueued is the check for users without MULTI: only the right to end a
// pause must be known before one begins.
func (b *Backend) probeUnqueued(conn *resp.Conn, req statebackend.CutRequest) (cutProbe, error) {
	var missing []string
	if _, err := conn.Call(infoLimit, "CLIENT", "UNPAUSE"); resp.IsCode(err, "NOPERM") {
		missing = append(missing, "+client|unpause")
	} else if err != nil && conn.Err() != nil {
		return cutProbe{}, b.mapError(err, "ask for rights")
	}
	_, err := conn.Call(infoLimit, "PEXPIRETIME", req.Job.Index())
	if conn.Err() != nil {
		return cutProbe{}, b.mapError(err, "ask for rights")
	}
	return cutProbe{exactTTL: !isUnknownCommand(err)}, missingRights(req.Job, missing)
}

func isUnknownCommand(err error) bool {
	return err != nil && strings.Contains(err.Error(), "unknown command")
}
