package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"keyframe/internal/redistest"
	"keyframe/statebackend"
)

// TestTheScriptOwnsWhatTheJobOwns: the flip's script has the predicate of its
// own, which must agree on every name.
func TestTheScriptOwnsWhatTheJobOwns(t *testing.T) {
	srv := redistest.Start(t)
	c, ctx := srv.Client(), context.Background()
	const answer = "\nlocal all = {}\nfor i, name in ipairs(ARGV) do all[i] = owns(name) and 1 or 0 end\nreturn all"
	for _, job := range []statebackend.Job{testJob, {Prefix: "streaming:runtime", Name: "a:b"}, {Prefix: "%d+", Name: "^[a]*\x00\xff"}, {Prefix: ":", Name: ":"}} {
		var names []string
		for _, root := range []string{job.Root(), job.Root() + ":", "x" + job.Root() + ":", job.Root() + "2:", job.Prefix + ":", "", job.Name + ":", job.Root() + ":" + job.Root() + ":"} {
			for _, rest := range []string{"", "cg:", "cg:g:topic:t:p:1:state:o:n", "stateKeys", "stateKeys2", "stateSchema", "operatorState", "assignment",
				"assignment:", "coordinator", "coordinator:", "coordinator:lease", "coordinator:lease:", "coordinator:leas", "coordinator:stage", "coordinator:stage:", "coordinator:stage:r1:k0.0", "coordinator:stagex", "\x00\xff", "StateKeys"} {
				names = append(names, root+rest)
			}
		}
		args := []any{"EVAL", ownsScript + answer, "6", job.Record(), job.Index(), job.Registry(), job.OperatorStates(), job.Assignment(), job.Lease()}
		for _, n := range names {
			args = append(args, n)
		}
		got, err := c.Do(ctx, args...).Int64Slice()
		require.NoError(t, err)
		require.Len(t, got, len(names))
		owned := 0
		for i, n := range names {
			require.Equal(t, fmt.Sprint(job.Owns([]byte(n))), fmt.Sprint(got[i] == 1), "job %q, name %q", job.Root(), n)
			owned += int(got[i])
		}
		require.Positive(t, owned)
		require.Less(t, owned, len(names))
	}
}
