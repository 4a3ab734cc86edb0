package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"keyframe/coordinator"
)

var (
	copyOK       = desc("copies_up", "1 when the last look at the directory of copies went well.", "path")
	copyCount    = desc("copies", "Copies in a directory, as last seen.", "path")
	copyBytes    = desc("copies_bytes", "Size of the copies in a directory.", "path")
	copyWaiting  = desc("copies_waiting", "Completed checkpoints that have no copy in a directory.", "path")
	copyLag      = desc("copies_lag_seconds", "How long the first of them has waited.", "path")
	copyNewest   = desc("copies_newest_age_seconds", "Age of the newest copy in a directory.", "path")
	copyBad      = desc("copies_bad", "Copies that were found damaged and have not been made anew.", "path")
	copyOnlyHere = desc("copies_only_here", "Copies of checkpoints that the store doesn't have and didn't delete.", "path")
	copyMade     = desc("copies_made_total", "Copies that were made.", "path")
	copyWritten  = desc("copies_written_bytes_total", "Bytes of the copies that were made.", "path")
	copyFailures = desc("copy_failures_total", "Tries at copies that failed, and checkpoints that can't be read to be copied.", "path")
	copyChecks   = desc("copy_checks_total", "Copies that were read again, by result: whole, bad, failed.", "path", "result")
	copyChecked  = desc("copies_checked_timestamp_seconds", "When a copy of a directory was last read again.", "path")
)

// WatchCopies sets where the figures of copies are read from. Call it once,
// before serving.
func (m *Metrics) WatchCopies(copies func() []coordinator.CopyStatus) { m.copies = copies }

func (m *Metrics) collectCopies(ch chan<- prometheus.Metric) {
	if m.copies == nil {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, s := range m.copies() {
		path, n := label(s.Path), s.SinceStart
		for d, v := range map[*prometheus.Desc]float64{
			copyOK: truth(s.OK), copyCount: float64(s.Copies), copyBytes: float64(s.Bytes), copyWaiting: float64(s.Waiting),
			copyLag: float64(s.LagMs) / 1000, copyBad: float64(s.Bad), copyOnlyHere: float64(s.OnlyHere),
		} {
			send(d, prometheus.GaugeValue, v, path)
		}
		if s.NewestAt != nil {
			send(copyNewest, prometheus.GaugeValue, m.now().Sub(*s.NewestAt).Seconds(), path)
		}
		if s.CheckedAt != nil {
			send(copyChecked, prometheus.GaugeValue, seconds(*s.CheckedAt), path)
		}
		send(copyMade, prometheus.CounterValue, float64(n.Made), path)
		send(copyWritten, prometheus.CounterValue, float64(n.MadeBytes), path)
		send(copyFailures, prometheus.CounterValue, float64(n.Failures), path)
		send(copyChecks, prometheus.CounterValue, float64(n.Checks-n.ChecksBad), path, "whole")
		send(copyChecks, prometheus.CounterValue, float64(n.ChecksBad), path, "bad")
		send(copyChecks, prometheus.CounterValue, float64(n.ChecksFailed), path, "failed")
	}
}
