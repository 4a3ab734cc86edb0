package redis

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// fakeRedis is a listener that says what a real server can't be made to say.
// It knows one job with one key; answer comes first and may say nothing.
type fakeRedis struct {
	addr   string
	answer func(args []string) string
	index  []string // names in the index

	mu     sync.Mutex
	paused bool
	freed  *sync.Cond
	log    []string // commands, in the order in which they came
}

func startFake(t *testing.T, answer func(args []string) string) *fakeRedis {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fakeRedis{addr: l.Addr().String(), answer: answer, index: []string{testJob.Root() + ":cg:k"}}
	f.freed = sync.NewCond(&f.mu)
	var wg sync.WaitGroup
	var conns sync.Map
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(nc, true)
			wg.Go(func() { f.serve(nc) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // ends Accept
		conns.Range(func(nc, _ any) bool {
			_ = nc.(net.Conn).Close() // ends serve, if it hasn't ended
			return true
		})
		f.free()
		wg.Wait()
	})
	return f
}

func (f *fakeRedis) free() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = false
	f.freed.Broadcast()
}

// held waits as a writer does.
func (f *fakeRedis) held() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.paused {
		f.freed.Wait()
	}
}

func (f *fakeRedis) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	in := resp.NewConn(nc)
	queued := -1
	for {
		v, err := in.Reply(1 << 20)
		if err != nil {
			return
		}
		var args []string
		for _, a := range v.Array {
			args = append(args, a.String())
		}
		f.mu.Lock()
		f.log = append(f.log, strings.Join(args, " "))
		f.mu.Unlock()
		var reply string
		switch {
		case args[0] == "MULTI":
			queued, reply = 0, "+OK\r\n"
		case args[0] == "DISCARD":
			queued, reply = -1, "+OK\r\n"
		case args[0] == "EXEC":
			f.held()
			queued, reply = -1, "*2\r\n:0\r\n"+timeReply()
		case queued >= 0:
			queued, reply = queued+1, "+QUEUED\r\n"
		default:
			reply = f.reply(args)
		}
		hangUp := strings.HasSuffix(reply, "HANGUP")
		if _, err := nc.Write([]byte(strings.TrimSuffix(reply, "HANGUP"))); err != nil || hangUp {
			return
		}
	}
}

func timeReply() string {
	now := time.Now()
	return bulks(fmt.Sprint(now.Unix()), fmt.Sprint(now.Nanosecond()/1000))
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func bulks(all ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(all))
	for _, s := range all {
		out += bulk(s)
	}
	return out
}

func (f *fakeRedis) reply(args []string) string {
	if f.answer != nil {
		if r := f.answer(args); r != "" {
			return r
		}
	}
	switch args[0] {
	case "TIME":
		return timeReply()
	case "INFO":
		return bulk("redis_version:7.0.15\r\nrun_id:abc\r\nrole:master\r\nredis_mode:standalone\r\nrdb_changes_since_last_save:4\r\n")
	case "CLIENT":
		f.mu.Lock()
		defer f.mu.Unlock()
		if args[1] == "PAUSE" {
			f.paused = true
		}
		if args[1] == "UNPAUSE" {
			f.paused = false
			f.freed.Broadcast()
		}
		return "+OK\r\n"
	case "TYPE":
		if args[1] == testJob.Root()+":cg:k" {
			return "+hash\r\n"
		}
		return "+none\r\n"
	}
	return f.content(args[0])
}

// content answers what asks for the state: a hash of four fields.
func (f *fakeRedis) content(command string) string {
	switch command {
	case "SCARD":
		return fmt.Sprintf(":%d\r\n", len(f.index))
	case "SSCAN":
		return "*2\r\n" + bulk("0") + bulks(f.index...)
	case "PEXPIRETIME":
		return ":-1\r\n"
	case "MEMORY":
		return ":5000000\r\n"
	case "HLEN":
		return ":4\r\n"
	case "HGETALL":
		return "*0\r\n"
	case "GET":
		return "$-1\r\n"
	case "HSCAN":
		return "*2\r\n" + bulk("0") + bulks("f1", "v1", "f2", "v2", "f3", "v3", "f4", "v4")
	}
	return "-ERR the fake does not know " + command + "\r\n"
}

func (f *fakeRedis) open(t *testing.T) *Backend {
	t.Helper()
	b, err := Open(t.Context(), Config{URL: "redis://" + f.addr, Lazy: true, Timeout: 2 * time.Second, Tracking: TrackOff})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// scanPages answers HSCAN with these pages: the next cursor, then the parts.
func scanPages(pages map[string][]string) func([]string) string {
	return func(args []string) string {
		if args[0] != "HSCAN" {
			return ""
		}
		page := pages[args[2]]
		return "*2\r\n" + bulk(page[0]) + bulks(page[1:]...)
	}
}

// Empty pages with a live cursor, and fields that come twice, also with
// another value, are what a scan may give (cases 1).
func TestScansMayBeEmptyAndRepeat(t *testing.T) {
	f := startFake(t, scanPages(map[string][]string{
		"0": {"17"}, "17": {"9", "f1", "v1"}, "9": {"3"}, "3": {"18446744073709551615", "f1", "other", "f2", "v2", "f3", "v3"},
		"18446744073709551615": {"0", "f2", "v2", "f4", ""},
	}))
	_, keys := cutOf(t, f.open(t), statebackend.CutRequest{Job: testJob})
	require.Len(t, keys, 1)
	got := map[string]string{}
	for _, e := range keys[0].Elements {
		got[string(e.Field)] = string(e.Value)
	}
	require.Equal(t, map[string]string{"f1": "v1", "f2": "v2", "f3": "v3", "f4": ""}, got)
	require.Len(t, keys[0].Elements, 4)
}

func TestCountsThatDisagreeFailTheCut(t *testing.T) {
	for name, pages := range map[string]map[string][]string{
		"a field is missing": {"0": {"0", "f1", "v1", "f2", "v2", "f3", "v3"}},
		"a field too many":   {"0": {"5", "f1", "v", "f2", "v", "f3", "v", "f4", "v"}, "5": {"0", "f5", "v"}},
		"a hash with halves": {"0": {"0", "f1", "v1", "f2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, scanPages(pages))
			err := refused(t, f.open(t), statebackend.CutRequest{Job: testJob})
			var key *statebackend.KeyError
			require.ErrorAs(t, err, &key)
			require.Equal(t, testJob.Root()+":cg:k", string(key.Key))
			require.False(t, f.isPaused(), "writers are held for ever")
			if !strings.Contains(name, "halves") {
				require.ErrorIs(t, err, statebackend.ErrChanged)
				require.ErrorContains(t, err, "counts 4 elements, and "+map[bool]string{true: "3", false: "5"}[strings.Contains(name, "missing")]+" came")
			}
		})
	}
	f := startFake(t, func(args []string) string {
		if args[0] == "SCARD" {
			return ":2\r\n"
		}
		return ""
	})
	err := refused(t, f.open(t), statebackend.CutRequest{Job: testJob})
	require.ErrorContains(t, err, "counts 2 names, and 1 came")
	require.ErrorContains(t, err, "stateKeys")
}

func (f *fakeRedis) isPaused() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.paused
}

// Whatever a server says, the cut ends with an error that isn't a panic, and
// the writers are freed.
// oddReply is a reply to a command that a cut sends.
type oddReply struct {
	command, reply string
	is             error // nil: any error
}

var oddReplies = map[string]oddReply{
	"scan cut off":         {"HSCAN", "*2\r\n$1\r\n0\r\n*4\r\n$2\r\nf1\r\nHANGUP", statebackend.ErrUnreachable},
	"value cut off":        {"HSCAN", "*2\r\n$1\r\n0\r\n*2\r\n$2\r\nf1\r\n$9\r\nabcHANGUP", statebackend.ErrUnreachable},
	"hang up":              {"HLEN", "HANGUP", statebackend.ErrUnreachable},
	"busy":                 {"HLEN", "-BUSY Redis is busy running a script.\r\n", statebackend.ErrUnreachable},
	"loading":              {"INFO", "-LOADING Redis is loading the dataset in memory\r\n", statebackend.ErrUnreachable},
	"out of memory":        {"HLEN", "-OOM command not allowed\r\n", statebackend.ErrNoRoom},
	"busy at the pause":    {"CLIENT PAUSE", "-BUSY Redis is busy running a script.\r\n", statebackend.ErrUnreachable},
	"no such mode":         {"CLIENT PAUSE", "-ERR syntax error\r\n", statebackend.ErrGrade},
	"not an array":         {"HSCAN", "+OK\r\n", resp.ErrProtocol},
	"three parts":          {"HSCAN", "*3\r\n", resp.ErrProtocol},
	"cursor of words":      {"HSCAN", "*2\r\n$3\r\nend\r\n*0\r\n", resp.ErrProtocol},
	"long cursor":          {"HSCAN", "*2\r\n" + bulk(strings.Repeat("1", 30)) + "*0\r\n", resp.ErrProtocol},
	"nil element":          {"HSCAN", "*2\r\n$1\r\n0\r\n*2\r\n$2\r\nf1\r\n$-1\r\n", resp.ErrProtocol},
	"field too long":       {"HSCAN", fmt.Sprintf("*2\r\n$1\r\n0\r\n*2\r\n$%d\r\n", snapshot.MaxName+1), nil},
	"negative count":       {"HLEN", ":-4\r\n", resp.ErrProtocol},
	"type as a number":     {"TYPE", ":1\r\n", resp.ErrProtocol},
	"expiry as text":       {"PEXPIRETIME", "+soon\r\n", resp.ErrProtocol},
	"expiry of nothing":    {"PEXPIRETIME", ":-3\r\n", resp.ErrProtocol},
	"size as text":         {"MEMORY", "+big\r\n", resp.ErrProtocol},
	"gone without expiry":  {"MEMORY", "$-1\r\n", statebackend.ErrChanged},
	"empty without expiry": {"HLEN", ":0\r\n", statebackend.ErrChanged},
	"huge index page":      {"SSCAN", "*2\r\n$1\r\n0\r\n*1099511627776\r\nHANGUP", statebackend.ErrUnreachable},
	"endless scan":         {"HSCAN", "*2\r\n$1\r\n7\r\n*0\r\n", statebackend.ErrPauseExpired},
	"wrong time":           {"TIME", bulks("tomorrow", "0"), nil},
	"time in pieces":       {"TIME", bulks("1"), nil},
	"not RESP":             {"HLEN", "HTTP/1.1 400 Bad Request\r\n", resp.ErrProtocol},
	"dirty as text":        {"INFO", bulk("role:master\r\nrdb_changes_since_last_save:many\r\n"), nil},
	"cluster node":         {"INFO", bulk("role:master\r\nredis_mode:cluster\r\n"), statebackend.ErrUnsupported},
}

func TestRepliesThatNoServerShouldGive(t *testing.T) {
	k := testJob.Root() + ":cg:k"
	for name, c := range oddReplies {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, func(args []string) string {
				head := strings.Join(args[:min(len(args), 1+strings.Count(c.command, " "))], " ")
				if head == c.command && (args[0] != "TYPE" || args[1] == k) {
					return c.reply
				}
				return ""
			})
			err := refused(t, f.open(t), statebackend.CutRequest{Job: testJob, MaxPause: time.Second})
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.False(t, f.isPaused(), "writers are held for ever")
		})
	}
}

// The server's clock and our own must agree, and the pause must hold by both.
func TestAClockThatJumpsFailsTheCut(t *testing.T) {
	for name, jump := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour, "a little": 800 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			jumped := false
			f := startFake(t, func(args []string) string {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case args[0] == "HLEN":
					jumped = true
				case args[0] == "TIME" && jumped:
					at := time.Now().Add(jump)
					return bulks(fmt.Sprint(at.Unix()), fmt.Sprint(at.Nanosecond()/1000))
				}
				return ""
			})
			err := refused(t, f.open(t), statebackend.CutRequest{Job: testJob})
			require.ErrorIs(t, err, statebackend.ErrPauseExpired)
			require.ErrorContains(t, err, "clock")
		})
	}
}

// A guard connection that breaks is replaced to free the writers.
func TestWritersAreFreedOnANewConnection(t *testing.T) {
	var mu sync.Mutex
	reads := 0
	f := startFake(t, func(args []string) string {
		mu.Lock()
		defer mu.Unlock()
		if args[0] == "HLEN" {
			reads++
		}
		if args[0] == "INFO" && reads > 0 {
			return "HANGUP"
		}
		return ""
	})
	require.ErrorIs(t, refused(t, f.open(t), statebackend.CutRequest{Job: testJob}), statebackend.ErrUnreachable)
	require.False(t, f.isPaused())
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Equal(t, "CLIENT UNPAUSE", f.log[len(f.log)-1])
	require.Contains(t, f.log[len(f.log)-2], "SETNAME", "on a connection of its own")
}
