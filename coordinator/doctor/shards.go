package doctor

import (
	"fmt"
	"slices"
	"strconv"

	"keyframe/keygroups"
	"keyframe/statebackend"
)

// stateID names a state in all its partitions.
type stateID struct {
	kind                         statebackend.KeyKind
	group, topic, operator, name string
}

func stateOf(p statebackend.Parsed) stateID {
	return stateID{p.Kind, p.Group, p.Topic, p.Operator, p.Name}
}

// String is what a finding shows of a state.
func (s stateID) String() string {
	return s.operator + ":" + s.name + " (group " + s.group + ", topic " + s.topic + ")"
}

// mostShards is the largest number of shards that is tried.
const mostShards = 1024

// sampleOfState is how many fields of a state are kept before its numbers of
// shards are tried; after as many more those that don't fit are given up.
const sampleOfState = 256

// shards finds fields in a shard that their hash doesn't name. Nothing in the
// state says how many shards there are, so all numbers are tried side by side,
// and the one by which most fields lie right is believed. A wrong number soon
// has half of the fields against it, and is tried no longer.
type shards struct {
	found   *findings
	most    int // fields in all samples
	states  int
	where   int
	byState map[stateID]*sharding
	sampled int
	left    uint64 // fields that were not judged
}

// sharding is what is known of one state's shards.
type sharding struct {
	sample     []shardedField
	candidates []*candidate // nil while there is a sample
	total      uint64       // fields that the candidates have seen
	unsharded  string       // a key of the same state that is no shard
	sharded    bool
}

type shardedField struct {
	hash       int32
	shard      int
	key, field string
}

// candidate is a number of shards, and the fields that speak against it.
type candidate struct {
	n     int
	wrong uint64
	names []shardedField // some of them
}

// take notes one field of a value state's hash.
func (s *shards) take(at place, field string) {
	id := stateOf(at.Parsed)
	st := s.byState[id]
	if st == nil {
		if len(s.byState) >= s.states {
			s.left++
			return
		}
		st = &sharding{}
		s.byState[id] = st
	}
	if at.Shard < 0 {
		st.unsharded = at.key
		return
	}
	st.sharded = true
	f := shardedField{keygroups.HashString(field), at.Shard, at.key, field}
	switch {
	case st.candidates != nil:
		s.judge(st, f)
		if st.total%sampleOfState == 0 {
			st.prune()
		}
	case s.sampled >= s.most:
		s.left++
	default:
		s.sampled++
		st.sample = append(st.sample, f)
		if len(st.sample) >= sampleOfState {
			s.try(st)
			st.prune()
		}
	}
}

// try makes every number of shards a candidate, and shows them the sample.
func (s *shards) try(st *sharding) {
	st.candidates = make([]*candidate, mostShards)
	for i := range st.candidates {
		st.candidates[i] = &candidate{n: i + 1}
	}
	for _, f := range st.sample {
		s.judge(st, f)
	}
	s.sampled -= len(st.sample)
	st.sample = nil
}

func (s *shards) judge(st *sharding, f shardedField) {
	st.total++
	for _, c := range st.candidates {
		if shardOf(f.hash, c.n) == f.shard {
			continue
		}
		if c.wrong++; len(c.names) < s.where {
			c.names = append(c.names, f)
		}
	}
}

// best is the smallest number that has the fewest fields against it.
func (st *sharding) best() *candidate {
	best := st.candidates[0]
	for _, c := range st.candidates {
		if c.wrong < best.wrong {
			best = c
		}
	}
	return best
}

func (st *sharding) prune() {
	best := st.best()
	st.candidates = slices.DeleteFunc(st.candidates, func(c *candidate) bool { return c != best && 2*c.wrong > st.total })
}

func (s *shards) finish() {
	for _, st := range s.byState {
		if len(st.sample) > 0 {
			s.try(st)
		}
		if st.candidates != nil {
			best := st.best()
			for i, f := range best.names {
				name := f.key + " " + strconv.Quote(f.field) + fmt.Sprintf(" (belongs to shard %d of %d)", shardOf(f.hash, best.n), best.n)
				n := uint64(1)
				if i == 0 {
					n = best.wrong - uint64(len(best.names)) + 1 // those that aren't named
				}
				s.found.put(CodeShard, Error, wrongShard, name, n)
			}
		}
		if st.sharded && st.unsharded != "" {
			s.found.put(CodeShard, Error, "a value state has shards and also a hash without any", st.unsharded, 1)
		}
	}
	if s.left > 0 {
		s.found.put(CodeBounded, Info, fmt.Sprintf("%s: fields were not checked for their shards, since there are more than %d states, or more than %d fields of small ones", CodeShard, s.states, s.most), "", s.left)
	}
}

const wrongShard = "fields lie in a shard that their hash doesn't name (how many shards there are is judged by where most fields of the state lie)"

// shardOf is floorMod.
func shardOf(hash int32, n int) int {
	return int(((int64(hash) % int64(n)) + int64(n)) % int64(n))
}
