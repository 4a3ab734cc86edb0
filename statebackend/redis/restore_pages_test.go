package redis

import (
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
)

// pageValue is an element's value; the second thousand is over a megabyte.
func pageValue(i int) string {
	if i/1000 == 1 {
		return fmt.Sprintf("%d-%s", i, strings.Repeat("x", 1500))
	}
	return fmt.Sprintf("value-%d", i)
}

// fillPages writes a key of count elements and gives their digest.
func fillPages(t *testing.T, c *goredis.Client, key string, typ snapshot.KeyType, count int) (want snapshot.Digester) {
	t.Helper()
	want.Reset(typ)
	pipe := c.Pipeline()
	for i := range count {
		e := snapshot.Element{Value: []byte(pageValue(i)), Size: uint64(len(pageValue(i)))}
		switch typ {
		case snapshot.TypeHash:
			e.Field = fmt.Appendf(nil, "field-%d", i)
			pipe.Do(t.Context(), "HSET", key, e.Field, e.Value)
		case snapshot.TypeList:
			pipe.Do(t.Context(), "RPUSH", key, e.Value)
		case snapshot.TypeSet:
			pipe.Do(t.Context(), "SADD", key, e.Value)
		case snapshot.TypeZSet:
			e.Score = float64(i) / 8
			pipe.Do(t.Context(), "ZADD", key, e.Score, e.Value)
		}
		want.Element(e)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	return want
}

// The pages of a key are read whole and once each, whether the next one is
// asked for ahead (after a small page) or not (after a large one), and whether
// the last one is full or not. Nothing is left unread on the connection.
func TestPagesAskedAheadAreReadOnce(t *testing.T) {
	s := redistest.Start(t)
	b, c := openTest(t, s), s.Client()
	conn, err := b.dial(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	r := stagedReader{conn: conn}
	for _, count := range []int{2001, 3000, 3999, 4000} {
		for _, typ := range []snapshot.KeyType{snapshot.TypeHash, snapshot.TypeList, snapshot.TypeSet, snapshot.TypeZSet} {
			key := fmt.Sprintf("%s-%d", typ, count)
			want := fillPages(t, c, key, typ, count)
			got, err := r.paged([]byte(key), typ)
			require.NoError(t, err, key)
			require.Equal(t, summary{count: want.Count(), digest: want.Sum()}, got, key)
			v, err := conn.Call(smallReply, "ECHO", key)
			require.NoError(t, err)
			require.Equal(t, key, v.String(), "nothing of %s was left unread", key)
		}
	}
	_, err = r.paged([]byte("list-2001"), snapshot.TypeHash)
	require.ErrorContains(t, err, "WRONGTYPE")
	v, err := conn.Call(smallReply, "ECHO", "quiet")
	require.NoError(t, err)
	require.Equal(t, "quiet", v.String())
}
