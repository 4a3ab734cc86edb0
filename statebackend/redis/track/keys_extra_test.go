package track

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
)

func keyExtras(names ...string) [][]byte {
	all := make([][]byte, len(names))
	for i, n := range names {
		all[i] = []byte(n)
	}
	return all
}

// oddKeyNames are names that mean something elsewhere: to globs, to C, to the
// protocol, or nothing at all.
var oddKeyNames = []string{"*", "[x]", "a?", `a\b`, "a b", "\x00", "\xff\xfe", "\r\n", "job", "job*", "PREFIX", ""}

func TestKeysOddExtraNames(t *testing.T) {
	s := redistest.Start(t)
	tr := start(t, s, NewKeys)
	for _, name := range oddKeyNames {
		w := watch(t, tr, Scope{Root: "job", Extra: keyExtras(name)})
		for _, other := range oddKeyNames {
			s.Do("SET", other, "written")
			s.Do("SET", other+"x", "a neighbour")
		}
		s.Do("SET", "job:own", "1")
		want := []string{name, "job:own"}
		slices.Sort(want)
		require.Equal(t, want, keyNames(settled(t, s, w)), "%q", name)
		w.Close()
	}
}

// Extra names are added one by one to many more than are asked for at once.
// Each is told of from the call on, and the server's list stays short.
func TestKeysExtraNamesGrow(t *testing.T) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, NewKeys), Scope{Root: "job"})
	var all []string
	lost := 0
	for i := range 3 * maxPrefixes {
		name := fmt.Sprintf("out:%d:%03d", i%9, i)
		all = append(all, name)
		w.Extra(keyExtras(all...))
		s.Do("SET", name, "1")
		m := w.Take()
		s.Do("SET", name, "2")
		m.Merge(reattached(t, s, w))
		if m.All {
			lost++
			s.Do("SET", name, "3")
			require.Equal(t, []string{name}, keyNames(settled(t, s, w)))
		}
		require.True(t, whole(m, name))
		require.LessOrEqual(t, keyPrefixesOnServer(t, s), 2*maxPrefixes)
	}
	require.Equal(t, 1, lost, "names cut short together leave room for the next ones")
	for _, name := range all {
		s.Do("DEL", name)
	}
	require.Len(t, settled(t, s, w).Keys, len(all))
}

func keyPrefixesOnServer(t *testing.T, s *redistest.Server) int {
	t.Helper()
	found := regexp.MustCompile(`tracking_total_prefixes:(\d+)`).FindStringSubmatch(fmt.Sprint(s.Do("INFO", "stats")))
	require.Len(t, found, 2)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// A name that begins one that is there can't be asked for beside it.
func TestKeysExtraNameThatOverlapsAttachesAnew(t *testing.T) {
	s := redistest.Start(t)
	for _, added := range []string{"out", "jo", ""} {
		w := watch(t, start(t, s, NewKeys), Scope{Root: "job", Extra: keyExtras("out:1")})
		w.Extra(keyExtras("out:1", added))
		s.Do("SET", added, "1")
		m := reattached(t, s, w)
		require.True(t, m.All)
		require.Contains(t, m.Reason, "prefixes")
		for _, key := range []string{added, "out:1", "job:1"} {
			s.Do("SET", key, "2")
			require.Equal(t, []string{key}, keyNames(settled(t, s, w)), "%q", added)
		}
	}
	w := watch(t, start(t, s, NewKeys), Scope{Root: "job", Extra: keyExtras("out")})
	w.Extra(keyExtras("out:1", "job:a")) // covered already
	s.Do("SET", "out:1", "3")
	s.Do("SET", "out", "3")
	m := settled(t, s, w)
	require.False(t, m.All)
	require.Equal(t, []string{"job:a", "out:1"}, keyNames(m))
}

// Until the server has confirmed a new name, each Take has it. Taken back, it
// matters no more.
func TestKeysUnconfirmedNamesStayMarked(t *testing.T) {
	server := newKeyFake(t)
	w := watch(t, startWith(t, NewKeys, Options{Dial: server.dial, Server: "fake"}), Scope{Root: "job"})
	server.hold("CLIENT")
	w.Extra(keyExtras("out:1", "out:2"))
	for range 3 {
		require.Equal(t, []string{"out:1", "out:2"}, keyNames(w.Take()))
	}
	w.Extra(keyExtras("out:2", "out:3"))
	require.Equal(t, []string{"out:1", "out:2", "out:3"}, keyNames(w.Take()), "out:1 was marked before")
	require.Equal(t, []string{"out:2", "out:3"}, keyNames(w.Take()))
	server.release()
	require.NoError(t, w.Barrier(patient(t), Position{}))
	require.Equal(t, []string{"out:2", "out:3"}, keyNames(w.Take()), "it may have been written before it was confirmed")
	require.Empty(t, keyNames(w.Take()))
}

// A server that refuses to tell of a new name ends the link.
func TestKeysRefusedNamesEndTheLink(t *testing.T) {
	server := newKeyFake(t)
	w := watch(t, startWith(t, NewKeys, Options{Dial: server.dial, Server: "fake"}), Scope{Root: "job"})
	server.answer("CLIENT", "-ERR Prefix 'out:1' overlaps\r\n")
	w.Extra(keyExtras("out:1"))
	require.ErrorIs(t, w.Barrier(patient(t), Position{}), ErrLost)
	require.True(t, w.Take().All)
	server.answer("CLIENT", "+OK\r\n")
	require.Eventually(t, func() bool { w.Take(); return w.Barrier(patient(t), Position{}) == nil }, patience, time.Millisecond)
}

// Names that come while the watch attaches are asked for too.
func TestKeysExtraNamesWhileAttaching(t *testing.T) {
	s := redistest.Start(t)
	w := watch(t, start(t, s, NewKeys), Scope{Root: "job"})
	for i := range 20 {
		var both sync.WaitGroup
		both.Go(func() { killLinks(s) })
		both.Go(func() { w.Extra(keyExtras(fmt.Sprint("out:", i), fmt.Sprint("more:", i))) })
		both.Wait()
		reattached(t, s, w)
		s.Do("SET", fmt.Sprint("out:", i), "1")
		s.Do("SET", fmt.Sprint("more:", i), "1")
		m := settled(t, s, w)
		require.True(t, whole(m, fmt.Sprint("out:", i)) && whole(m, fmt.Sprint("more:", i)))
	}
}
