package torture

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/snapshot"
)

// counted reports whether a name, or a field of it, is one of the counters.
func counted(name, field string) bool {
	return strings.HasSuffix(name, ":big") && field == "s:n" || slices.ContainsFunc([]string{":one", ":two", ":text", ":score", ":left", ":right", ":first", ":second"},
		func(end string) bool { return strings.HasSuffix(name, end) })
}

// unequal are the counters of the crew that don't agree in a checkpoint, and
// the streams whose position isn't the counter.
func (r *rig) unequal(s *factSink, m *snapshot.Manifest) []string {
	var out []string
	positions := map[string]string{}
	for _, p := range m.Checkpoint.Sources {
		positions[p.Stream] = p.LastID
	}
	for _, l := range r.crew.logs {
		names := evenNames(l.id)
		n := s.kept[names[0]]["s:n"]
		if n == "" {
			continue // it had not begun
		}
		is := []string{n, s.kept[names[1]]["s:n"], only(s.kept[names[2]]), s.kept[names[3]]["n"], strings.TrimSuffix(positions[sourceKey(l.id)], "-1")}
		if l.big {
			is = append(is, s.kept[l.bigKey()]["s:n"])
		}
		for i, text := range is {
			if x, err := strconv.ParseFloat(text, 64); err != nil || strconv.FormatFloat(x, 'f', -1, 64) != n {
				out = append(out, fmt.Sprintf("writer %d: counter %d is %q, the first is %q", l.id, i, text, n))
			}
		}
		for i := 4; i < 8; i += 2 {
			a, b := s.facts[names[i]], s.facts[names[i+1]]
			number, err := strconv.Atoi(n)
			if a.count != b.count || a.sum != b.sum || err != nil || a.count != min(number, evenMost) {
				out = append(out, fmt.Sprintf("writer %d: %s and %s at %s", l.id, a, b, n))
			}
			if _, ok := s.kept[names[i]][n]; !ok {
				out = append(out, fmt.Sprintf("writer %d: %s lacks the newest, %s", l.id, names[i], n))
			}
		}
	}
	return out
}

func only(m map[string]string) string {
	for k := range m {
		return k
	}
	return ""
}

// older are the writers whose counter is behind that of the checkpoint before.
func (r *rig) older(s *factSink) []string {
	var out []string
	if r.last == nil {
		return nil
	}
	for _, l := range r.crew.logs {
		name := evenNames(l.id)[0]
		was, _ := strconv.Atoi(r.last.kept[name]["s:n"]) // "" is 0
		is, _ := strconv.Atoi(s.kept[name]["s:n"])
		if is < was {
			out = append(out, fmt.Sprintf("writer %d is at %d, and was at %d in checkpoint %d", l.id, is, was, r.lastID))
		}
	}
	return out
}

// check holds a completed checkpoint to all that is known of the state at its
// instant: the copy that was taken in the same pause, if there is one.
func (r *rig) check(cp *snapshot.Checkpoint, c *copied, torn bool) {
	t, ctx := r.t, context.Background()
	t.Helper()
	s, m, err := readCheckpoint(ctx, r.db, cp.ID, counted)
	require.NoError(t, err, r.repeat)
	require.Equal(t, m.Checkpoint.Incremental, cp.Incremental)
	if !r.lossy && !r.way.evict {
		require.Empty(t, r.unequal(s, m), "counters in checkpoint %d (%s); %s", cp.ID, describeTaken(cp), r.repeat)
		require.Empty(t, r.older(s), "checkpoint %d; %s", cp.ID, r.repeat)
	}
	r.last, r.lastID = s, cp.ID
	switch {
	case c == nil:
		r.tally.count("checked", "by its counters only")
		return
	case torn:
		r.tally.count("checked", "by its counters only: somebody else freed writers while the copy was taken")
		return
	}
	want, err := c.facts()
	require.NoError(t, err)
	require.Empty(t, differentFacts(want, s.facts, c.at), "checkpoint %d (%s) and a copy taken in the same pause; %s", cp.ID, describeTaken(cp), r.repeat)
	r.tally.count("checked", "by a copy taken in the same pause, "+string(cp.Grade)+" "+cp.Tracking)
	if c.sums != nil {
		r.restored(cp, c, want)
	}
}

func describeTaken(cp *snapshot.Checkpoint) string {
	return fmt.Sprintf("%s, tracking %q, incremental %t, %d layers, %d rounds, full because %q", cp.Grade, cp.Tracking, cp.Incremental, cp.Layers, cp.Rounds, cp.FullReason)
}

// restored puts a checkpoint onto a second server and compares each key's
// digest there with the one that the first server gave in the pause.
func (r *rig) restored(cp *snapshot.Checkpoint, c *copied, facts map[string]fact) {
	t, ctx := r.t, context.Background()
	t.Helper()
	_, err := r.mirror.restore(ctx, r.db, r.way, cp.ID)
	require.NoError(t, err, "restore checkpoint %d (%s); %s", cp.ID, describeTaken(cp), r.repeat)
	there, err := copyJob(r.mirror.server.Addr, job, true)
	require.NoError(t, err)
	want, err := c.digests()
	require.NoError(t, err)
	got, err := there.digests()
	require.NoError(t, err)
	compared := 0
	for name, sum := range want {
		if f := facts[name]; f.expire != 0 && f.expire < there.at.Add(expiryDoubt).UnixMilli() {
			continue
		}
		require.Equal(t, sum, got[name], "DEBUG DIGEST-VALUE of key %q (%s) after the restore of checkpoint %d; %s", name, facts[name], cp.ID, r.repeat)
		compared++
	}
	require.Equal(t, c.indexed, there.indexed, "names in the index after the restore of checkpoint %d; %s", cp.ID, r.repeat)
	require.Positive(t, compared)
	for name := range got {
		require.Contains(t, want, name, "key after the restore of checkpoint %d; %s", cp.ID, r.repeat)
	}
	r.tally.count("checked", "by a restore into a second server")
}

// pickUp takes what was copied in the newest pause.
func (r *rig) pickUp() (c *copied, hold time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, hold, err = r.copied, r.holdTime, r.copyErr
	r.copied, r.copyErr, r.holdTime = nil, nil, 0
	return c, hold, err
}
