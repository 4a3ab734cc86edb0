package memory_test

import (
	"sync"
	"testing"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend/backendtest"
	"keyframe/statebackend/memory"
)

// clock is a clock that stands until it is moved.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.Before(until) {
		c.at = until
	}
}

func TestConformance(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Harness {
		c := &clock{at: time.Date(2025, 3, 30, 1, 59, 59, 0, time.UTC)}
		s := memory.New(memory.Options{Name: "test", Now: c.now})
		return backendtest.Harness{
			Backend: s, Grade: snapshot.GradeSnapshot, Refused: snapshot.GradePaused,
			Lose: func(testing.TB) { s.Lose() },
			Keys: func(testing.TB) []string {
				var all []string
				for _, k := range s.Keys() {
					all = append(all, string(k))
				}
				return all
			},
			Now:  func(testing.TB) time.Time { return c.now() },
			Pass: func(_ testing.TB, until time.Time) { c.pass(until) },
		}
	})
}
