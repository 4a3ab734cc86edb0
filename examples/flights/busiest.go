package flights

import (
	"cmp"
	"context"
	"slices"

	"keyframe/statebackend"
)

// Line is what the state holds of one airport, as it is in the store.
type Line struct {
	Airport      string  `json:"airport"`
	Flights      int     `json:"flights"`
	Mean         float64 `json:"meanDelay"` // minutes
	Late         int     `json:"late"`
	Destinations int     `json:"destinations"`
	Last         []int   `json:"lastDelays"` // minutes, oldest first
}

// Busiest reads the n airports with the most flights from the store.
func Busiest(ctx context.Context, o CheckOptions, n int) ([]Line, error) {
	records, err := Records()
	if err != nil {
		return nil, err
	}
	k, err := openKeyed(o.Store, o.Job, o.Rule)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var lines []Line
	for _, r := range records {
		if seen[r.Origin] {
			continue
		}
		seen[r.Origin] = true
		line, err := k.line(ctx, r.Origin)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Flights, a.Flights), cmp.Compare(a.Airport, b.Airport))
	})
	return lines[:min(n, len(lines))], nil
}

func (k keyed) line(ctx context.Context, airport string) (Line, error) {
	key := statebackend.StringKey(airport)
	d, _, err := k.stats.Lookup(ctx, key)
	if err != nil {
		return Line{}, err
	}
	to, err := k.seen.Size(ctx, key)
	if err != nil {
		return Line{}, err
	}
	last, err := k.last.Get(ctx, key)
	if err != nil {
		return Line{}, err
	}
	l := Line{Airport: airport, Flights: d.Count, Mean: d.Mean, Late: d.Late, Destinations: to, Last: []int{}}
	for _, x := range last {
		l.Last = append(l.Last, x.Delay)
	}
	return l, nil
}
