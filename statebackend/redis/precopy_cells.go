package redis

import (
	"cmp"
	"slices"
)

// cell is an element in memory.
type cell struct {
	id      string // a hash's field, a set's or zset's member
	value   []byte
	score   float64
	removed bool
}

func (c *cell) cost() int { return len(c.id) + len(c.value) + bufferCost }

// cells are elements by their identities. Most keys have few of them, for
// which a list is smaller and faster than a map.
type cells struct {
	all   []cell
	at    map[string]int // into all; nil while they are few
	holes int            // that are removed
}

// cellsFew is up to how many cells are searched one by one.
const cellsFew = 12

func (c *cells) find(id string) int {
	if c.at != nil {
		if i, ok := c.at[id]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(c.all, func(el cell) bool { return el.id == id })
}

// set puts an element, and gives what the one before cost.
func (c *cells) set(id string, el cell) (before int) {
	el.id = id
	i := c.find(id)
	if el.removed {
		c.holes++
	}
	if i >= 0 {
		before = c.all[i].cost()
		if c.all[i].removed {
			c.holes--
		}
		c.all[i] = el
		return before
	}
	c.all = append(c.all, el)
	switch {
	case c.at != nil:
		c.at[id] = len(c.all) - 1
	case len(c.all) > cellsFew:
		c.at = make(map[string]int, 4*cellsFew)
		for i := range c.all {
			c.at[c.all[i].id] = i
		}
	}
	return 0
}

// len is how many there are, without those that are removed.
func (c *cells) len() int { return len(c.all) - c.holes }

// purge forgets those that are removed.
func (c *cells) purge() {
	if c.holes == 0 {
		return
	}
	kept := cells{}
	for _, el := range c.all {
		if !el.removed {
			kept.set(el.id, el)
		}
	}
	*c = kept
}

// sorted gives all in the order of their identities. No element may be set
// afterwards.
func (c *cells) sorted() []cell {
	slices.SortFunc(c.all, func(a, b cell) int { return cmp.Compare(a.id, b.id) })
	c.at = nil
	return c.all
}
