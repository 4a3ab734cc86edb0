package redis

import (
	"fmt"
	"strconv"
	"strings"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// server asks what the server is, how it keeps its data, and what we may do.
func (in *inspection) server() (statebackend.ServerFacts, error) {
	info := make(map[string]string)
	for _, section := range []string{"server", "memory", "persistence", "stats", "replication", "keyspace"} {
		v, err := in.conn.Call(infoLimit, "INFO", section)
		if err != nil {
			return statebackend.ServerFacts{}, in.b.mapError(err, "INFO "+section)
		}
		infoFields(info, v.String())
	}
	f := factsOf(info, keyspaceOf(joinDBs(info))[in.b.addr.db])
	in.exact, in.lfu = majorOf(f.Version) >= 7, strings.Contains(f.Policy, "lfu")
	var err error
	if f.Durable, err = in.durable(info); err != nil {
		return f, err
	}
	if f.Rights, err = in.rights(); err != nil {
		return f, err
	}
	f.Tracking, err = in.trackable()
	return f, err
}

// joinDBs gives the lines of INFO keyspace back.
func joinDBs(info map[string]string) string {
	var lines strings.Builder
	for name, value := range info {
		if strings.HasPrefix(name, "db") {
			fmt.Fprintf(&lines, "%s:%s\n", name, value)
		}
	}
	return lines.String()
}

func factsOf(info map[string]string, db keyspace) statebackend.ServerFacts {
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(info[name], 10, 64)
		if err != nil {
			return 0 // not told, which is what 0 means in each of these
		}
		return n
	}
	return statebackend.ServerFacts{
		Version: info["redis_version"], Role: info["role"], Cluster: info["redis_mode"] == "cluster",
		Policy: info["maxmemory_policy"], MaxMemory: number("maxmemory"), UsedMemory: number("used_memory"),
		SystemMemory: number("total_system_memory"), Evicted: number("evicted_keys"),
		Expires: db.expires, FieldExpires: db.subexpiry,
	}
}

// durable tells what outlives the process. Save points are known by CONFIG
// alone, which managed servers deny.
func (in *inspection) durable(info map[string]string) (*statebackend.Persistence, error) {
	p := &statebackend.Persistence{AOF: info["aof_enabled"] == "1"}
	var faults []string
	if info["rdb_last_bgsave_status"] == "err" {
		faults = append(faults, "the last save failed (rdb_last_bgsave_status is err)")
	}
	for _, name := range []string{"aof_last_write_status", "aof_last_bgrewrite_status"} {
		if p.AOF && info[name] == "err" {
			faults = append(faults, name+" is err")
		}
	}
	p.Fault = strings.Join(faults, "; ")
	v, err := in.maybe("save points", infoLimit, "CONFIG", "GET", "save")
	if err != nil || v == nil {
		p.Known = p.AOF
		return p, err
	}
	p.Known = true
	p.Saves = len(v.Array) == 2 && strings.TrimSpace(v.Array[1].String()) != ""
	return p, nil
}

// rights asks for each right that a cut and a restore need without using any:
// between MULTI and DISCARD the server checks commands and does nothing.
func (in *inspection) rights() (r statebackend.Rights, err error) {
	multi, err := in.maybe("rights", infoLimit, "MULTI")
	if err != nil || multi == nil {
		return r, err
	}
	req := statebackend.CutRequest{Job: in.req.Job, Sources: in.req.Sources}
	if r.Cut, err = in.lacking(cutRights(req)); err != nil {
		return r, err
	}
	expiry := onKey(in.req.Job.Index(), "PTTL")
	if in.exact {
		expiry = onKey(in.req.Job.Index(), "PEXPIRETIME")
	}
	lacks, err := in.lacking([]cutRight{expiry})
	if err != nil {
		return r, err
	}
	r.Cut = append(r.Cut, lacks...)
	if r.Precopy, err = in.lacking(precopyRights(req)); err != nil {
		return r, err
	}
	if r.Restore, err = in.lacking(restoreRights(in.req.Job)); err != nil {
		return r, err
	}
	if _, err = in.conn.Call(infoLimit, "DISCARD"); err != nil {
		return r, in.b.mapError(err, "ask for rights")
	}
	r.Cut, r.Precopy, r.Restore = eachOnce(r.Cut), eachOnce(r.Precopy), eachOnce(r.Restore)
	r.Known = true
	return r, nil
}

// lacking gives the rights that the server refuses. A command that it doesn't
// know is lacking too; that it refuses one for its state (a replica, a full
// memory) is found elsewhere.
func (in *inspection) lacking(rights []cutRight) ([]string, error) {
	missing, err := in.b.queueRights(in.conn, rights)
	if err != nil && in.conn.Err() != nil {
		return nil, err
	}
	if isUnknownCommand(err) {
		missing = append(missing, err.Error())
	}
	return missing, nil
}

// restoreRights are what every flip runs, as a question.
func restoreRights(job statebackend.Job) []cutRight {
	probe := &staging{req: statebackend.RestoreRequest{Job: job}, prefix: job.Staging("doctor")}
	var all []cutRight
	for _, words := range probe.neededRights() {
		r := cutRight{right: "+" + strings.ToLower(words[0]), args: words}
		if len(words) > 1 && strings.HasPrefix(words[1], job.Root()) {
			r.key = words[1]
		}
		all = append(all, r)
	}
	return all
}

func eachOnce(all []string) (kept []string) {
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			kept = append(kept, s)
		}
	}
	return kept
}

// trackable asks whether the user could follow the server's writes, which no
// transaction tells: ACL DRYRUN does, from 7.0 on.
func (in *inspection) trackable() (string, error) {
	levels := in.b.tracks.levels()
	if len(levels) == 0 || levels[0] != track.LevelFields || !in.exact {
		return "", nil // not wanted, or not known
	}
	who, err := in.maybe("the right to follow writes", infoLimit, "ACL", "WHOAMI")
	if err != nil || who == nil {
		return "", err
	}
	for _, args := range [][]string{{"PSYNC", "?", "-1"}, {"REPLCONF", "ack", "0"}} {
		v, err := in.maybe("the right to follow writes", infoLimit, append([]string{"ACL", "DRYRUN", who.String()}, args...)...)
		if err != nil || v == nil {
			return "", err
		}
		if v.String() != "OK" {
			return fmt.Sprintf("user %s may not use %s: grant +psync +replconf with ACL SETUSER", who.String(), args[0]), nil
		}
	}
	return "", nil
}
