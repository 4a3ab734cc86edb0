package monkey

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// facts are what was done in one round, as far as it says what may be lost.
type facts struct {
	mu       sync.Mutex
	did      []string
	lost     bool     // Redis came back without its newest writes
	targets  []uint64 // checkpoints that were asked to be put in place
	undone   bool     // an undo was asked for
	damaged  bool     // the store's file was damaged
	removed  bool     // the store's file was removed
	second   bool     // the second coordinator ran, and may have led
	misled   bool     // it took what lay there after a loss for a new job
	restored bool     // and restored
	anew     bool     // nothing was left, and the job has begun anew
	acts     []string // what the operator had to do
}

func (f *facts) note(change func(*facts)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *facts) isLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// rewound tells whether somebody asked for an older state.
func (f *facts) rewound() bool { return len(f.targets) > 0 || f.undone || f.restored }

// emptied tells that there may be nothing left to recover from.
func (f *facts) emptied() bool { return f.lost && (f.removed || f.damaged) }

// String names what was done, for messages.
func (f *facts) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.did, "; ")
	if len(f.acts) > 0 {
		text += "; the operator: " + strings.Join(f.acts, "; ")
	}
	return text
}

// tally counts over the whole run.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]uint64 // section → what → times
	slow   time.Duration                // the longest until all was well again
}

func newTally() *tally { return &tally{counts: map[string]map[string]uint64{}} }

func (c *tally) add(section, what string) { c.addN(section, what, 1) }

func (c *tally) addN(section, what string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[section] == nil {
		c.counts[section] = map[string]uint64{}
	}
	c.counts[section][what] += n
}

func (c *tally) count(section, what string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[section][what]
}

// table is the whole summary.
func (c *tally) table() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, section := range slices.Sorted(maps.Keys(c.counts)) {
		fmt.Fprintf(&b, "%s\n", section)
		for _, what := range slices.Sorted(maps.Keys(c.counts[section])) {
			fmt.Fprintf(&b, "%10d  %s\n", c.counts[section][what], what)
		}
	}
	return b.String()
}
