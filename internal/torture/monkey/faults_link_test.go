package monkey

import (
	"fmt"
	"time"
)

// linkFaults are what networks do, to the coordinator and to the workers.
func linkFaults() []fault {
	var out []fault
	for _, who := range []string{"coordinator", "workers"} {
		of := func(a *act) *wire {
			if who == "workers" {
				return a.workerLink
			}
			return a.coordinatorLink
		}
		add := func(name string, do func(a *act, w *wire) error) {
			out = append(out, fault{name + " (" + who + ")", who + "' link", func(a *act) error { return do(a, of(a)) }})
		}
		add("links cut for a moment", func(a *act, w *wire) error { return a.cut(w, 50*time.Millisecond, 300*time.Millisecond) })
		add("links cut for a while", func(a *act, w *wire) error { return a.cut(w, 500*time.Millisecond, 3*time.Second) })
		add("links slowed", func(a *act, w *wire) error {
			return a.worse(w, "latency", "downstream", fmt.Sprintf(`{"latency":%d,"jitter":%d}`, 2+a.rng.IntN(30), a.rng.IntN(10)))
		})
		add("links narrow", func(a *act, w *wire) error {
			return a.worse(w, "bandwidth", "downstream", fmt.Sprintf(`{"rate":%d}`, 50+a.rng.IntN(500)))
		})
		add("links half-open to the server", func(a *act, w *wire) error { return a.worse(w, "timeout", "upstream", `{"timeout":0}`) })
		add("links half-open from the server", func(a *act, w *wire) error { return a.worse(w, "timeout", "downstream", `{"timeout":0}`) })
		add("links reset", func(a *act, w *wire) error { return a.worse(w, "reset_peer", "downstream", `{"timeout":20}`) })
		add("links end after some bytes", func(a *act, w *wire) error {
			return a.worse(w, "limit_data", "downstream", fmt.Sprintf(`{"bytes":%d}`, 1000+a.rng.IntN(200000)))
		})
	}
	return out
}

func (a *act) cut(w *wire, from, to time.Duration) error {
	w.cut()
	a.wait(from, to)
	return w.join()
}

// worse makes a link worse for a while.
func (a *act) worse(w *wire, kind, stream, attributes string) error {
	if err := w.add(kind, stream, attributes); err != nil {
		return err
	}
	a.wait(300*time.Millisecond, 3*time.Second)
	w.heal()
	return nil
}
