package bench

import (
	"fmt"
	"slices"
)

// Figure is one line of the outcome. What wasn't measured is nil.
type Figure struct {
	Group   string   `json:"group"`
	Name    string   `json:"figure"`
	Data    string   `json:"data,omitempty"` // D1, D2, D3, D1x8
	Against string   `json:"baselineName,omitempty"`
	Unit    string   `json:"unit"`
	Base    *float64 `json:"baseline"` // median
	Ours    *float64 `json:"ours"`     // median
	Ratio   *float64 `json:"ratio"`    // median of the pairs' ratios, ours / baseline
	Low     *float64 `json:"low"`      // spread: of the ratio where there is one, else of ours
	High    *float64 `json:"high"`
	Samples int      `json:"samples"`
	Must    float64  `json:"must,omitempty"` // 0 for none
	Goal    float64  `json:"goal,omitempty"`
	Verdict Verdict  `json:"verdict"`
	Note    string   `json:"note,omitempty"`
}

// Verdict says which of its limits a figure meets.
type Verdict string

// The verdicts. NotRun is for what this run was not asked to measure, or could
// not; "" for a figure without a limit.
const (
	MetGoal Verdict = "goal met"
	MetMust Verdict = "must met"
	NotMet  Verdict = "not met"
	NotRun  Verdict = "not run"
)

// limits are what a figure should be at most: of its ratio where it has a
// baseline, unless absolute, else of ours.
type limits struct {
	must, goal float64
	absolute   bool
}

// pairs are samples that were taken in turns.
type pairs struct{ base, ours []float64 }

// interleave takes n samples of each side in turns, baseline first. What a
// side prepares before it measures is its own affair: it returns the sample.
func interleave(n int, base, ours func() (float64, error)) (pairs, error) {
	var p pairs
	for range n {
		b, err := base()
		if err != nil {
			return p, fmt.Errorf("baseline: %w", err)
		}
		o, err := ours()
		if err != nil {
			return p, fmt.Errorf("ours: %w", err)
		}
		p.base, p.ours = append(p.base, b), append(p.ours, o)
	}
	return p, nil
}

func (p pairs) ratios() []float64 {
	all := make([]float64, len(p.base))
	for i := range all {
		all[i] = p.ours[i] / p.base[i]
	}
	return all
}

// median is the middle of the values, the mean of the two middle ones when
// their number is even. There must be one at least.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// compared fills a figure from pairs and judges it.
func (f Figure) compared(p pairs, l limits) Figure {
	ratios := p.ratios()
	base, ratio := median(p.base), median(ratios)
	f.Base, f.Ratio = &base, &ratio
	f = f.measured(p.ours, l)
	low, high := slices.Min(ratios), slices.Max(ratios)
	f.Low, f.High = &low, &high
	return f
}

// measured fills a figure from our samples, and judges it: by its ratio when
// that is there and the limits aren't absolute.
func (f Figure) measured(ours []float64, l limits) Figure {
	mid, low, high := median(ours), slices.Min(ours), slices.Max(ours)
	f.Ours, f.Low, f.High, f.Samples = &mid, &low, &high, len(ours)
	f.Must, f.Goal = l.must, l.goal
	judged := mid
	if f.Ratio != nil && !l.absolute {
		judged = *f.Ratio
	}
	f.Verdict = l.judge(judged)
	return f
}

func (l limits) judge(v float64) Verdict {
	switch {
	case l.must == 0 && l.goal == 0:
		return ""
	case v <= l.goal:
		return MetGoal
	case v <= l.must:
		return MetMust
	}
	return NotMet
}

// absent is a figure that there is no sample of, with its limits and the
// reason.
func (f Figure) absent(v Verdict, l limits, note string) Figure {
	f.Must, f.Goal, f.Verdict, f.Note = l.must, l.goal, v, note
	return f
}
