package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tally is what a soak adds up, over all its rounds.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]int // heading → what → how often
	worst  map[string]time.Duration
	all    map[string][]time.Duration
}

func newTally() *tally {
	return &tally{counts: map[string]map[string]int{}, worst: map[string]time.Duration{}, all: map[string][]time.Duration{}}
}

func (y *tally) count(heading, what string) { y.add(heading, what, 1) }

func (y *tally) add(heading, what string, n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.counts[heading] == nil {
		y.counts[heading] = map[string]int{}
	}
	y.counts[heading][what] += n
}

func (y *tally) of(heading, what string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.counts[heading][what]
}

// least is the smallest count under a heading.
func (y *tally) least(heading string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	least := 0
	for _, n := range y.counts[heading] {
		if least == 0 || n < least {
			least = n
		}
	}
	return least
}

func (y *tally) longest(what string, d time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.worst[what] = max(y.worst[what], d)
}

// one notes one of many durations, of which the median counts too.
func (y *tally) one(what string, d time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.all[what] = append(y.all[what], d)
}

// print shows everything.
func (y *tally) print(t *testing.T) {
	y.mu.Lock()
	defer y.mu.Unlock()
	var b strings.Builder
	for _, heading := range slices.Sorted(maps.Keys(y.counts)) {
		fmt.Fprintf(&b, "\n%s\n", heading)
		for _, what := range slices.Sorted(maps.Keys(y.counts[heading])) {
			fmt.Fprintf(&b, "  %7d  %s\n", y.counts[heading][what], what)
		}
	}
	b.WriteString("\nmedian, 99 % and longest of many\n")
	for _, what := range slices.Sorted(maps.Keys(y.all)) {
		d := slices.Sorted(slices.Values(y.all[what]))
		fmt.Fprintf(&b, "  %9.2f %9.2f %9.2f ms of %d  %s\n", ms(d[len(d)/2]), ms(d[len(d)*99/100]), ms(d[len(d)-1]), len(d), what)
	}
	b.WriteString("\nlongest\n")
	for _, what := range slices.Sorted(maps.Keys(y.worst)) {
		fmt.Fprintf(&b, "  %9.2f ms  %s\n", ms(y.worst[what]), what)
	}
	t.Log(b.String())
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
