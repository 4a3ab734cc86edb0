package bench

import (
	"fmt"
	"strings"

	"keyframe/snapshot"
)

// Limits on somebody's own state: of the goals by dataset the widest, since it
// isn't known which of them it is like.
var (
	ownFull   = limits{must: 1.15, goal: 0.90}
	ownStored = limits{must: 0.40, goal: 0.38}
)

// mostOfAll is from which share of the server's keys on a job can be compared
// with a dump of the whole server.
const mostOfAll = 0.9

// report makes the figures.
func (v *visit) report() error {
	s := v.samples
	last := s.full[len(s.full)-1]
	sub := v.r.Subject
	sub.Keys, sub.Elements, sub.Bytes = last.Keys, last.Elements, last.Bytes
	sub.Others = v.tells.Keys - min(v.tells.Keys, last.Keys)
	v.reportFull(last)
	v.reportNext()
	stalls := make([]float64, len(s.full))
	for i, c := range s.full {
		stalls[i] = c.StallMs
	}
	v.r.add("stall", Figure{Name: "stall of writers", Unit: "ms", Note: "by the word of the cuts of full checkpoints; " + how(last)}.
		measured(stalls, limits{must: 5, goal: 1}))
	v.r.add("restore", Figure{Name: "verify", Unit: "s", Note: "the full checkpoint is read back: checksums, counts, digests"}.measured(s.verify, limits{}))
	v.reportRestore()
	return v.reportPeak()
}

// reportFull compares full checkpoints and what they store with the dumps.
func (v *visit) reportFull(last snapshot.Checkpoint) {
	s := v.samples
	full := Figure{Name: "full durable checkpoint", Unit: "s", Note: how(last) + "; the tracker was attached before"}
	stored := Figure{Name: "stored bytes", Unit: "MiB"}
	var sizes []float64
	for _, c := range s.full {
		sizes = append(sizes, mebibytes(int64(c.StoredBytes)))
	}
	if v.noCLI != "" || len(s.dump) < len(s.took) {
		full.Note += "; no baseline: " + v.noCLI
		stored.Note = "no baseline: " + v.noCLI
		v.r.add("checkpoint", full.measured(s.took, limits{}))
		v.r.add("checkpoint", stored.measured(sizes, limits{}))
		return
	}
	full.Against, stored.Against = "redis-cli --rdb", "RDB file"
	ofTime, ofSize := ownFull, ownStored
	if float64(last.Keys) < mostOfAll*float64(v.tells.Keys) {
		ofTime, ofSize = limits{}, limits{}
		v.note(fmt.Sprintf("redis-cli dumps all %d keys of the server, the checkpoint has %d of them: their ratios are not judged", v.tells.Keys, last.Keys))
	}
	if s.fromHeader {
		full.Note += "; redis-cli from its first byte on, since the server may let it wait (repl-diskless-sync-delay)"
	}
	v.r.add("checkpoint", full.compared(pairs{base: s.dump, ours: s.took}, ofTime))
	v.r.add("checkpoint", stored.compared(pairs{base: s.dumped, ours: sizes}, ofSize))
}

// reportNext tells of the checkpoints right after. What they cost depends on
// what was written meanwhile, so there is no limit.
func (v *visit) reportNext() {
	s := v.samples
	next := Figure{Name: "checkpoint right after", Unit: "s", Against: "full checkpoint"}
	if len(s.over) < len(s.full) {
		v.r.add("checkpoint", next.absent(NotRun, limits{}, "it was a full one too: "+s.notOver))
		return
	}
	last := s.over[len(s.over)-1]
	next.Note = fmt.Sprintf("what was written meanwhile; %d bytes stored; stall %.2f ms; %s", last.StoredBytes, last.StallMs, how(last))
	v.r.add("checkpoint", next.compared(pairs{base: s.took, ours: s.next}, limits{}))
}

func (v *visit) reportRestore() {
	f := Figure{Name: "restore beside the job", Unit: "s"}
	s := v.samples
	switch {
	case !v.Write:
		v.r.add("restore", f.absent(NotRun, limits{}, "--write measures it"))
	case s.restored == 0:
		f = f.absent(NotRun, limits{}, "")
		if s.restoreError != nil {
			f.Note = firstLine(s.restoreError.Error())
		}
		v.r.add("restore", f)
	default:
		f.Note = s.restoreNote + "; removed again"
		v.r.add("restore", f.measured([]float64{s.restored}, limits{}))
	}
}

func (v *visit) reportPeak() error {
	f := Figure{Name: "peak memory of this process", Unit: "MiB"}
	l := limits{must: 128, goal: 64}
	peak, err := ownPeak()
	if err != nil {
		return err
	}
	if peak == 0 {
		v.r.add("memory", f.absent(NotRun, l, "this system doesn't tell it"))
		return nil
	}
	f.Note = "VmHWM"
	if v.samples.restored > 0 {
		f.Note = fmt.Sprintf("VmHWM; %.0f before the restore", v.samples.peak)
	}
	v.r.add("memory", f.measured([]float64{peak}, l))
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
