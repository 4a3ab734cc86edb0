package redis

import (
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// sizes lie around every bound of how replies are read: what is lent out of
// the connection's buffer, the buffer, a part of a value.
var sizes = []int{0, 1, 65_000, 65_534, 65_535, 65_536, 70_000, 100_000, 131_072, 200_000, 262_143, 262_144, 262_145, snapshot.MaxPart - 1, snapshot.MaxPart, snapshot.MaxPart + 1}

// fillSizes fills keys of each type with three elements of one size each, so that
// a large one has large and small ones behind it.
func fillSizes(t *testing.T, c *goredis.Client, sizes []int, mark string) {
	for i, n := range sizes {
		base := fmt.Sprintf("%s:cg:size-%d:", testJob.Root(), n)
		for j := range 3 {
			value := strings.Repeat(string(rune('a'+(i+j)%26)), n) + mark
			run(t, c, "HSET", base+"hash", fmt.Sprintf("field-%d", j), value, fmt.Sprintf("short-%d", j), "x")
			run(t, c, "RPUSH", base+"list", value, "x")
			run(t, c, "SADD", base+"set", value, "x")
			run(t, c, "ZADD", base+"zset", j, value, -1, "x")
			run(t, c, "SET", fmt.Sprintf("%sstring-%d", base, j), value)
			run(t, c, "SADD", testJob.Index(), base+"hash", base+"list", base+"set", base+"zset", fmt.Sprintf("%sstring-%d", base, j))
		}
	}
}

// A checkpoint doesn't depend on how long its values are, in any type and any
// grade.
func TestValuesOfAllSizesAreCutAlike(t *testing.T) {
	eachLevel(t, func(t *testing.T, mode string) {
		s := redistest.Start(t)
		b, c := tracked(t, s, mode), s.Client()
		run(t, c, "HSET", testJob.Record(), "incarnation", "inc", "epoch", "1")
		fillSizes(t, c, sizes, "")
		p := watchPauses(t, b, testJob)
		line := &series{b: b}
		req := statebackend.CutRequest{Job: testJob, Incarnation: "inc"}
		cut, keys := line.take(t, req)
		require.Equal(t, snapshot.GradePrecopy, cut.Grade)
		requireCopy(t, p, cut, keys)

		for _, some := range [][]int{sizes[:4], sizes[4:9], sizes[9:11], sizes[11:13]} {
			fillSizes(t, c, some, "more")
			cut, keys = line.take(t, req)
			require.True(t, cut.Incremental, cut.FullReason)
			requireCopy(t, p, cut, keys)
		}

		req.Grade = snapshot.GradePaused
		cut, keys = cutOf(t, b, req)
		require.Equal(t, snapshot.GradePaused, cut.Grade)
		require.Empty(t, snapshot.DiffKeys(recorded(t, readJob(t, b, testJob)), keys))
	})
}
