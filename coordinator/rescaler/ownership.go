package rescaler

import (
	"keyframe/keygroups"
	"keyframe/snapshot"
)

// owners gives the subtask of each key group; -1 where no range has it.
func owners(ranges []keygroups.Range, groups int) []int {
	of := make([]int, groups)
	for i := range of {
		of[i] = -1
	}
	for _, r := range ranges {
		for g := max(0, r.Start); g <= r.End && g < groups; g++ {
			of[g] = r.Subtask
		}
	}
	return of
}

// moved gives the runs of key groups that change their owner, from the ranges
// that are in force: these may come from another rule of ranges than the job
// has now.
func moved(before, after []keygroups.Range, groups int) []keygroups.Move {
	from, to := owners(before, groups), owners(after, groups)
	all := []keygroups.Move{}
	for g := 0; g < groups; g++ {
		if from[g] == to[g] {
			continue
		}
		m := keygroups.Move{Start: g, End: g, From: from[g], To: to[g]}
		for g+1 < groups && from[g+1] == m.From && to[g+1] == m.To {
			g++
			m.End = g
		}
		all = append(all, m)
	}
	return all
}

// load sums what each subtask's key groups hold.
func load(ranges []keygroups.Range, stats []snapshot.GroupStats, groups int) []RangePlan {
	all := make([]RangePlan, len(ranges))
	of := owners(ranges, groups)
	for i, r := range ranges {
		all[i].Range = r
	}
	for _, s := range stats {
		if s.Group < 0 || s.Group >= groups {
			continue
		}
		i := of[s.Group]
		if i < 0 || i >= len(all) {
			continue
		}
		all[i].Keys += s.Keys
		all[i].Elements += s.Elements
		all[i].Bytes += s.Bytes
	}
	return all
}

// skew is the elements of the fullest subtask over the mean.
func skew(all []RangePlan) float64 {
	var sum, most uint64
	for _, r := range all {
		sum += r.Elements
		most = max(most, r.Elements)
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(all)) / float64(sum)
}
