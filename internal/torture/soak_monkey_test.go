package torture

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"keyframe/internal/redistest"
)

// monkey does what networks and people do, while checkpoints are taken.
type monkey struct {
	t      *testing.T
	rng    *rand.Rand
	server *redistest.Server
	link   *link
	c      *redis.Client
	did    map[string]int
	last   string
	freed  bool // somebody else's UNPAUSE: copies may be of after it
}

// prank is one thing that it does; after some of them a checkpoint may fail.
type prank struct {
	name    string
	harmful bool
	do      func(m *monkey)
}

// pranks is the whole list.
func pranks() []prank {
	return []prank{
		{"all links cut", true, func(m *monkey) { m.link.cut() }},
		{"links slow", false, func(m *monkey) { m.slow() }},
		{"links silent to the server", true, func(m *monkey) { m.silent(0) }},
		{"links silent from the server", true, func(m *monkey) { m.silent(1) }},
		{"CLIENT KILL TYPE replica", true, func(m *monkey) { m.run("CLIENT", "KILL", "TYPE", "replica") }},
		{"CLIENT KILL of one of ours", true, (*monkey).killOne},
		{"replication backlog overrun", true, (*monkey).overrun},
		{"CONFIG SET", false, (*monkey).configure},
		{"CONFIG RESETSTAT", true, func(m *monkey) { m.run("CONFIG", "RESETSTAT") }},
		{"other databases flushed and swapped", true, (*monkey).otherDatabases},
		{"BGSAVE", false, func(m *monkey) { m.run("BGSAVE", "SCHEDULE") }},
		{"SCRIPT FLUSH", false, func(m *monkey) { m.run("SCRIPT", "FLUSH") }},
		{"somebody's CLIENT UNPAUSE", true, (*monkey).unpause},
		{"somebody's CLIENT PAUSE", true, func(m *monkey) { m.run("CLIENT", "PAUSE", 30, "WRITE") }},
		{"somebody's tracking and monitoring", false, (*monkey).onlooker},
	}
}

func newMonkey(t *testing.T, rng *rand.Rand, server *redistest.Server, link *link) *monkey {
	return &monkey{t: t, rng: rng, server: server, link: link, c: patient(server), did: map[string]int{}}
}

// act starts one prank at a random moment of the checkpoint that is about to
// begin; end waits for it and makes everything well again. harmful says that
// the checkpoint may fail by it.
func (m *monkey) act(usual time.Duration) (harmful bool, end func()) {
	all := slices.DeleteFunc(pranks(), func(p prank) bool { return !strings.Contains(p.name, os.Getenv("SOAK_PRANK")) })
	p := all[m.rng.IntN(len(all))]
	m.did[p.name]++
	m.last = p.name
	wait := time.NewTimer(time.Duration(m.rng.Int64N(int64(usual) + 1)))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-stop: // the checkpoint was faster: then it is the next one's
		}
		p.do(m)
	})
	return p.harmful, func() {
		close(stop)
		wg.Wait()
		m.link.heal()
	}
}

// run sends a command whose refusal means nothing: a BGSAVE may be under way.
func (m *monkey) run(words ...any) {
	_ = m.c.Do(context.Background(), words...).Err()
}

// linger waits a random time.
func (m *monkey) linger(most time.Duration) {
	timer := time.NewTimer(time.Duration(m.rng.Int64N(int64(most)) + 1))
	<-timer.C
}

func (m *monkey) slow() {
	m.link.delay.Store(int64(time.Duration(1+m.rng.IntN(4)) * time.Millisecond))
	m.linger(300 * time.Millisecond)
	m.link.delay.Store(0)
}

// silent makes connections half open: they are there, and nothing comes.
func (m *monkey) silent(direction int) {
	m.link.dead[direction].close()
	m.linger(1200 * time.Millisecond)
	if m.rng.IntN(2) == 0 {
		m.link.cut()
	}
	m.link.dead[direction].open()
}

// killOne kills one of the coordinator's connections by its id.
func (m *monkey) killOne() {
	list, err := m.c.Do(context.Background(), "CLIENT", "LIST").Text()
	if err != nil {
		return
	}
	var ids []string
	for _, line := range strings.Split(list, "\n") {
		if id, ok := strings.CutPrefix(strings.SplitN(line, " ", 2)[0], "id="); ok && strings.Contains(line, " name=keyframe") {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 {
		m.run("CLIENT", "KILL", "ID", ids[m.rng.IntN(len(ids))])
	}
}

// overrun writes more than the backlog keeps, while nobody follows.
func (m *monkey) overrun() {
	m.run("CONFIG", "SET", "repl-backlog-size", 16<<10)
	m.link.dead[1].close()
	m.run("CLIENT", "KILL", "TYPE", "replica")
	for i := range 8 {
		m.run("SET", "overrun:"+strconv.Itoa(i), strings.Repeat("x", 10<<10))
	}
	m.link.cut()
	m.link.dead[1].open()
	m.run("CONFIG", "SET", "repl-backlog-size", 1<<20)
}

func (m *monkey) configure() {
	set := [][2]any{
		{"hz", 10 + m.rng.IntN(90)}, {"hash-max-listpack-entries", 16 << m.rng.IntN(5)}, {"zset-max-listpack-entries", 16 << m.rng.IntN(5)},
		{"list-max-listpack-size", -1 - m.rng.IntN(4)}, {"activedefrag", "no"}, {"lazyfree-lazy-expire", []string{"yes", "no"}[m.rng.IntN(2)]},
		{"lazyfree-lazy-user-del", []string{"yes", "no"}[m.rng.IntN(2)]}, {"active-expire-effort", 1 + m.rng.IntN(9)}, {"repl-ping-replica-period", 1 + m.rng.IntN(9)},
		{"tracking-table-max-keys", 1000 * m.rng.IntN(3)}, {"notify-keyspace-events", "KEA"},
	}
	s := set[m.rng.IntN(len(set))]
	m.run("CONFIG", "SET", s[0], s[1])
}

// otherDatabases writes the job's own names into other databases, and throws
// them away.
func (m *monkey) otherDatabases() {
	for db := 1; db <= 3; db++ {
		_, err := m.c.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
			ctx := context.Background()
			p.Do(ctx, "SELECT", db)
			p.Do(ctx, "SADD", job.Index(), "not one of them")
			p.Do(ctx, "SET", key(0, "one"), "another database's")
			p.Do(ctx, "DEL", evenNames(1)[0])
			if m.rng.IntN(2) == 0 {
				p.Do(ctx, "SWAPDB", 1, 2)
			}
			if m.rng.IntN(2) == 0 {
				p.Do(ctx, "FLUSHDB")
			}
			p.Do(ctx, "SELECT", 0)
			return nil
		})
		assert.NoError(m.t, err)
	}
}

func (m *monkey) unpause() {
	m.freed = true
	m.run("CLIENT", "UNPAUSE")
}

// onlooker is another client that follows invalidations and watches commands.
func (m *monkey) onlooker() {
	conn, err := dialPlain(m.server.Addr)
	if !assert.NoError(m.t, err) {
		return
	}
	defer func() { _ = conn.conn.Close() }() // whatever it was told
	_, err = conn.conn.Write(appendCommand(appendCommand(nil, "HELLO", "3"), "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", job.Root()))
	assert.NoError(m.t, err)
	m.linger(100 * time.Millisecond)
}
