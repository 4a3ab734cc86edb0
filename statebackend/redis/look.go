package redis

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// Look reads the job's record, assignment and size, and what endangers its
// state. A job without state is no error.
func (b *Backend) Look(ctx context.Context, job statebackend.Job) (statebackend.Glimpse, error) {
	if err := job.Validate(); err != nil {
		return statebackend.Glimpse{}, err
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return statebackend.Glimpse{}, err
	}
	defer func() { _ = conn.Close() }() // every reply was read
	release := conn.Bind(ctx)
	defer release()
	facts, err := askFacts(conn)
	if err != nil {
		return statebackend.Glimpse{}, b.mapError(err, "look at the server")
	}
	leader, err := b.askLeader(conn, job)
	if err != nil {
		return statebackend.Glimpse{}, fmt.Errorf("look at job %q: %w", job.Root(), err)
	}
	head, err := b.readHead(conn, job)
	if err != nil {
		return statebackend.Glimpse{}, fmt.Errorf("look at job %q: %w", job.Root(), err)
	}
	g := statebackend.Glimpse{
		Server: facts.server(), At: facts.at,
		Record: head.record, Leader: leader, Assigned: head.assigned, Indexed: head.indexed,
	}
	if !head.hasIndex && !head.hasRecord {
		g.Where = b.where(ctx, job)
	}
	if g.Warnings, err = b.askDangers(conn, facts); err != nil {
		return statebackend.Glimpse{}, b.mapError(err, "look at the server")
	}
	return g, nil
}

// dangers are what may destroy or falsify the state without anybody's doing.
func dangers(f serverFacts, memory map[string]string, db keyspace) []string {
	var all []string
	if f.role != "master" {
		all = append(all, fmt.Sprintf("the server's role is %s: it can be read, and neither checkpointed nor restored; use the address of the master", f.role))
	}
	if f.cluster {
		all = append(all, "the server is a node of a cluster: keys on other nodes are not seen")
	}
	if db.subexpiry > 0 {
		all = append(all, fmt.Sprintf("%d hashes of this database have fields with an expiry of their own: a checkpoint carries such fields without it", db.subexpiry))
	}
	policy, limit := memory["maxmemory_policy"], memory["maxmemory"]
	if limit == "" || limit == "0" {
		return all // nothing is evicted
	}
	switch {
	case strings.HasPrefix(policy, "allkeys-"):
		all = append(all, fmt.Sprintf("maxmemory-policy is %s with maxmemory %s: the server may evict state keys; set noeviction", policy, limit))
	case strings.HasPrefix(policy, "volatile-") && db.expires > 0:
		all = append(all, fmt.Sprintf("maxmemory-policy is %s with maxmemory %s, and %d keys of this database have an expiry: "+
			"the server may evict state among them; set noeviction", policy, limit, db.expires))
	}
	return all
}

// keyspace is what INFO tells of one database.
type keyspace struct {
	keys      uint64
	expires   uint64 // keys with an expiry
	subexpiry uint64 // hashes with fields that expire (Redis 7.4 and later)
}

// keyspaceOf reads the lines dbN:keys=…,expires=…,… of INFO.
func keyspaceOf(text string) map[int]keyspace {
	lines := make(map[string]string)
	infoFields(lines, text)
	all := make(map[int]keyspace)
	for name, value := range lines {
		n, err := strconv.Atoi(strings.TrimPrefix(name, "db"))
		if err != nil || !strings.HasPrefix(name, "db") {
			continue // another line of INFO
		}
		var ks keyspace
		for part := range strings.SplitSeq(value, ",") {
			what, digits, _ := strings.Cut(part, "=")
			count, ok := parseDigits([]byte(digits))
			switch {
			case !ok:
			case what == "keys":
				ks.keys = count
			case what == "expires":
				ks.expires = count
			case what == "subexpiry":
				ks.subexpiry = count
			}
		}
		all[n] = ks
	}
	return all
}

// where tells a person what the server holds when a job's state isn't there.
// It is a hint: what can't be found out is left out.
func (b *Backend) where(ctx context.Context, job statebackend.Job) string {
	text, err := b.client.Info(ctx, "keyspace").Result()
	if err != nil {
		return "what the server holds can't be told: " + b.mapError(err, "INFO keyspace").Error()
	}
	all := keyspaceOf(text)
	var parts []string
	if all[b.addr.db].keys == 0 {
		parts = append(parts, fmt.Sprintf("database %d is empty", b.addr.db))
	} else {
		parts = append(parts, fmt.Sprintf("database %d has %d keys, none of them %q", b.addr.db, all[b.addr.db].keys, job.Index()))
	}
	others := make([]int, 0, len(all))
	for n := range all {
		if n != b.addr.db {
			others = append(others, n)
		}
	}
	sort.Ints(others)
	for _, n := range others {
		parts = append(parts, fmt.Sprintf("database %d has %d keys", n, all[n].keys))
	}
	return strings.Join(parts, "; ")
}

// askDangers asks for what an operator should be warned of.
func (b *Backend) askDangers(conn *resp.Conn, facts serverFacts) ([]string, error) {
	v, err := conn.Call(infoLimit, "INFO", "memory")
	if err != nil {
		return nil, err
	}
	memory := make(map[string]string)
	infoFields(memory, v.String())
	if v, err = conn.Call(infoLimit, "INFO", "keyspace"); err != nil {
		return nil, err
	}
	return dangers(facts, memory, keyspaceOf(v.String())[b.addr.db]), nil
}
