package redis

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/track"
)

// guesses of what reading costs, before any was measured.
const (
	guessField = 4 * time.Microsecond
	guessWhole = 60 * time.Microsecond
	guessPause = 500 * time.Microsecond // the pause itself, with nothing to read
)

// costs are measured in the rounds, to know what the last reads will take.
type costs struct {
	fields speed
	wholes speed
	scan   time.Duration // the last walk over the index
	slow   map[string]slowKey
	// known are the keys that were read whole in the last round: what they
	// cost is known.
	known map[string]bool
	// blind is how many rounds were made only to know more.
	blind int
}

// largeKey is a key that is too large for the buffer, with about how many
// bytes the server takes for it; 0 when that isn't known.
type largeKey struct {
	place
	size  int64
	patch *dirtyKey // of very many fields; nil for a key that is read whole
}

// blindMost bounds the rounds that are made only to know what keys cost.
const blindMost = 3

// slowly notes what a key took.
func (c *costs) slowly(name string, k slowKey) {
	if c.slow == nil {
		c.slow = map[string]slowKey{}
	}
	if len(c.slow) < slowMost {
		c.slow[name] = k
	}
}

// guessRate is how many bytes of a large key come in a second, as the server
// measures them.
const guessRate = 100 << 20

// slowKey is a key that took a read of its own.
type slowKey struct {
	took     time.Duration
	elements int64
}

// slowMost bounds how many are remembered.
const slowMost = 4096

// estimate is how long the marks would take inside the pause.
func (c *precopyCut) estimate(m track.Marks) time.Duration {
	all, fields, wholes := time.Duration(0), 0, 0
	for name, k := range m.Keys {
		slow, isSlow := c.costs.slow[name]
		t, listed := c.roster.get([]byte(name))
		_, isMeta := c.roster.meta[name]
		switch {
		case name == c.req.Job.Index() && k.Whole:
			all += c.costs.scan
		case name == c.req.Job.Index():
			wholes += len(k.Fields)
		case !listed && !isMeta && !c.roster.blind:
		case !k.Whole && (isMeta || patchable(t)):
			fields += len(k.Fields) + 2
		case isSlow:
			all += slow.took
		default:
			wholes++
		}
	}
	return all + c.costs.fields.of(fields, guessField) + c.costs.wholes.of(wholes, guessWhole)
}

// weight is how many marks there are: keys, and fields among them.
func weight(m track.Marks) (n int) {
	for _, k := range m.Keys {
		n += 1 + len(k.Fields)
	}
	return n
}

// decide holds what the last reads will take against what is allowed. held is
// how long writers have been held already.
func (c *precopyCut) decide(left track.Marks, held time.Duration) error {
	need := held + guessPause + c.estimate(left)
	if need <= c.maxStall() {
		return nil
	}
	if c.req.OnStall != statebackend.StallFail {
		return nil
	}
	return c.tooLong(left, need)
}

// tooLong is the error of writers who write faster than can be read.
func (c *precopyCut) tooLong(left track.Marks, need time.Duration) error {
	var names []string
	for _, h := range c.hottest(left) {
		names = append(names, fmt.Sprintf("%s (%d elements)", strconv.Quote(h.Key), h.Elements))
	}
	return fmt.Errorf("%w: after %d rounds what was written meanwhile still takes about %v to read, and writers may be held for %v: "+
		"allow more (maxStall), let the checkpoint wait (onStall), or write less to %s", statebackend.ErrStall,
		c.rounds, need.Round(100*time.Microsecond), c.maxStall(), strings.Join(names, ", "))
}

// hottest names the keys that are most of what is left to read.
func (c *precopyCut) hottest(left track.Marks) []snapshot.HotKey {
	var all []snapshot.HotKey
	for name, k := range left.Keys {
		_, listed := c.roster.get([]byte(name))
		if _, isMeta := c.roster.meta[name]; !listed && !isMeta && !c.roster.blind && name != c.req.Job.Index() {
			continue
		}
		n := uint64(len(k.Fields))
		if k.Whole {
			n = max(1, uint64(c.costs.slow[name].elements))
			for _, s := range []snapshot.Section{snapshot.SectionKeyed, snapshot.SectionOperator, snapshot.SectionMeta} {
				if e := c.buf.keys[place{s, name}]; e != nil {
					n = max(n, uint64(len(e.list)+e.parts.len()))
				}
			}
		}
		all = append(all, snapshot.HotKey{Key: name, Elements: n})
	}
	slices.SortFunc(all, func(a, b snapshot.HotKey) int {
		return cmp.Or(cmp.Compare(b.Elements, a.Elements), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(len(all), hotMost)]
}

// decideLarge is decide for keys that turned out to be large inside the pause.
func (c *precopyCut) decideLarge() error {
	if !c.strict || c.req.OnStall != statebackend.StallFail {
		return nil
	}
	need := time.Since(c.pause.held)
	for _, k := range c.large {
		if k.patch != nil {
			need += c.costs.fields.of(len(k.patch.fields), guessField)
		} else if s, ok := c.costs.slow[k.name]; ok {
			need += s.took
		} else {
			need += time.Duration(k.size) * time.Second / guessRate
		}
	}
	if need <= c.maxStall() {
		return nil
	}
	return c.tooLong(c.last, need)
}

// unknown reports whether there are keys to be read whole of which nothing
// tells how large they are: a round does.
func (c *precopyCut) unknown(left track.Marks) bool {
	if c.costs.blind >= blindMost {
		return false
	}
	for name, k := range left.Keys {
		_, listed := c.roster.get([]byte(name))
		_, isMeta := c.roster.meta[name]
		if k.Whole && (listed || isMeta) && !c.costs.known[name] {
			c.costs.blind++
			return true
		}
	}
	return false
}
