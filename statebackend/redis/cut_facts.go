package redis

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
	"keyframe/statebackend/redis/track"
)

// infoLimit bounds an answer of INFO, in bytes of memory.
const infoLimit = 1 << 20

// serverFacts is what the server says of itself at one moment.
type serverFacts struct {
	at       time.Time // by its own clock, UTC
	asked    time.Time // by ours, before the question
	answered time.Time // by ours, after the answer
	version  string
	runID    string
	role     string
	cluster  bool
	// dirty counts the writes since the last save; a save that ends takes
	// away those that it holds. -1 when the server doesn't tell.
	dirty int64
	// position is where its stream of writes stood.
	position track.Position
	// dbs are the lines of INFO keyspace, by the databases' names.
	dbs map[string]string
}

// askFacts asks for TIME and INFO, when no reply is outstanding.
func askFacts(conn *resp.Conn) (serverFacts, error) {
	f := serverFacts{asked: time.Now()}
	if err := sendFacts(conn); err != nil {
		return f, err
	}
	if err := conn.Flush(); err != nil {
		return f, err
	}
	return f, f.take(conn)
}

// sendFacts writes the questions. They tell of the moment at which the server
// comes to them, in the order of what is sent over the connection.
func sendFacts(conn *resp.Conn) error {
	for _, cmd := range [][]string{{"TIME"}, {"INFO", "server"}, {"INFO", "replication"}, {"INFO", "persistence"}, {"INFO", "keyspace"}} {
		if err := conn.Command(cmd...); err != nil {
			return err
		}
	}
	return nil
}

// take reads the answers to sendFacts.
func (f *serverFacts) take(conn *resp.Conn) (err error) {
	if f.at, err = replyTime(conn); err != nil {
		return err
	}
	f.answered = time.Now()
	all := make(map[string]string)
	for range 4 {
		v, err := conn.Reply(infoLimit)
		if err != nil {
			return err
		}
		infoFields(all, v.String())
	}
	f.version, f.runID, f.role = all["redis_version"], all["run_id"], all["role"]
	f.cluster = all["redis_mode"] == "cluster"
	f.dirty = -1
	if text, ok := all["rdb_changes_since_last_save"]; ok {
		if f.dirty, err = strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("rdb_changes_since_last_save of INFO is %q: %w", text, err)
		}
	}
	f.dbs = make(map[string]string)
	for name, line := range all {
		if strings.HasPrefix(name, "db") {
			f.dbs[name] = line
		}
	}
	f.position.ReplID = all["master_replid"]
	if text, ok := all["master_repl_offset"]; ok {
		if f.position.Offset, err = strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("master_repl_offset of INFO is %q: %w", text, err)
		}
	}
	return nil
}

// infoFields reads the lines name:value of an INFO text.
func infoFields(into map[string]string, text string) {
	for line := range strings.SplitSeq(text, "\n") {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\r"), ":")
		if ok && !strings.HasPrefix(name, "#") {
			into[name] = value
		}
	}
}

// replyTime reads the answer of TIME.
func replyTime(conn *resp.Conn) (time.Time, error) {
	v, err := conn.Reply(1 << 10)
	if err != nil {
		return time.Time{}, err
	}
	return serverTime(v)
}

func serverTime(v resp.Value) (time.Time, error) {
	if len(v.Array) != 2 {
		return time.Time{}, fmt.Errorf("TIME answered %d parts, not seconds and microseconds", len(v.Array))
	}
	sec, ok := parseDigits(v.Array[0].Bytes)
	micro, ok2 := parseDigits(v.Array[1].Bytes)
	if !ok || !ok2 || sec > 1<<40 || micro > 1e6 {
		return time.Time{}, fmt.Errorf("TIME answered %.40q and %.40q", v.Array[0].Bytes, v.Array[1].Bytes)
	}
	return time.Unix(int64(sec), int64(micro)*1000).UTC(), nil
}

// noExpiry reports whether no key of a database expires.
func (f serverFacts) noExpiry(db int) bool { return expiresNothing(f.dbs[fmt.Sprintf("db%d", db)]) }

func (f serverFacts) server() snapshot.ServerInfo {
	return snapshot.ServerInfo{Version: f.version, RunID: f.runID}
}

// cuttable refuses servers whose state a pause doesn't hold still, or of
// which one connection doesn't see all.
func (f serverFacts) cuttable() error {
	switch {
	case f.role != "master":
		return fmt.Errorf("%w: its role is %q, where the master's writes go on during a pause: use the address of the master",
			statebackend.ErrReadOnly, f.role)
	case f.cluster:
		return fmt.Errorf("%w: the server is a node of a cluster, and the job's keys on other nodes would be missing",
			statebackend.ErrUnsupported)
	}
	return nil
}
