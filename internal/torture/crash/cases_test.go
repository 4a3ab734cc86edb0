package crash

// group is a list of cases that are gone through one after the other on one
// Redis and one store.
type group struct {
	copies bool
	cases  []crashed
}

// at are the cases of one operation.
func at(op operation, points ...string) (all []crashed) {
	for _, p := range points {
		all = append(all, crashed{point: p, op: op})
	}
	return all
}

// then are cases of the start after a death.
func then(before crashed, op operation, points ...string) (all []crashed) {
	for _, p := range points {
		all = append(all, crashed{point: p, op: op, before: &before})
	}
	return all
}

func joined(lists ...[]crashed) (all []crashed) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// groups are all cases, in groups of about the same length. The first case of a
// point in its group is gone through by the gate, all by KEYFRAME_CRASH_ALL.
func groups() map[string]group {
	return map[string]group{
		"checkpoints": {cases: checkpointCases()}, "restores": {cases: restoreCases()}, "rescales": {cases: rescaleCases()},
		"copies": {cases: copyCases(), copies: true}, "files": {cases: fileCases()},
	}
}

func checkpointCases() []crashed {
	return joined(
		at(checkpoint, "attempt-begun", "attempt-noted", "cut-held", "cut-read", "cut-released", "chunks-stored",
			"commit-ready", "commit-open", "commit-done", "attempt-recorded"),
		at(retention, "retention-decided", "retention-deleted"),
		at(deletion, "delete-open", "delete-done"),
		at(merging, "merge-ready", "merge-open", "merge-done", "sweep-done"),
		then(crashed{point: "attempt-noted", op: checkpoint}, starting, "rows-failed"),
		at(starting, "lease-claimed", "lease-taken", "lease-remembered"),
		at(renewing, "lease-renewed"), at(stopping, "lease-returned"),
		at(retention, "delete-open", "sweep-done"),
	)
}

func restoreCases() []crashed {
	restored := starting
	restored.restores, restored.prepare = true, anOlderOne
	staged, flipped := crashed{point: "restore-proved", op: restoring}, crashed{point: "flip-done", op: restoring}
	return joined(
		at(restoring, "undo-taken", "restore-noted", "stage-marked", "stage-key:60", "restore-staged", "restore-proved",
			"restore-ready", "flip-ready", "flip-done", "undo-kept", "lineage-kept", "restore-ended"),
		then(staged, restored, "resolve-stopped", "resolve-cleaned", "resolve-unmarked", "resume-settled", "resume-ended"),
		then(flipped, restored, "resume-settled", "undo-kept", "lineage-kept"),
		at(undoing, "stage-marked", "restore-proved", "flip-done", "undo-kept", "lineage-kept"),
		at(recovering, "restore-noted", "stage-key:60", "restore-ready", "flip-done", "lineage-kept"),
	)
}

func rescaleCases() []crashed {
	rescaled := starting
	rescaled.rescales = true
	return joined(
		at(rescaling, "rescale-based", "rescale-begun", "rescale-noted", "rescale-committed", "rescale-flipped", "rescale-ended"),
		then(crashed{point: "rescale-committed", op: rescaling}, rescaled, "rescale-forgotten"),
		at(drilling, "drill-noted", "drill-restored", "drill-compared", "drill-cleaned", "drill-recorded", "drill-ended"),
		at(importing, "import-begun", "import-done"),
		at(applying, "job-remembered", "state-adopted"),
		at(creating, "store-made", "store-linked"),
		at(rescaling, "commit-ready", "commit-open", "commit-done", "stage-marked", "restore-proved", "flip-ready", "flip-done", "undo-kept"),
		at(drilling, "stage-key:60", "flip-ready", "flip-done"),
		at(importing, "commit-ready", "commit-open", "commit-done"),
	)
}

func copyCases() []crashed {
	return joined(
		at(copying, "archive-begun", "archive-written", "archive-proven", "archive-linked", "archive-named", "archive-done", "copy-remembered"),
		at(beginningCopies, "copies-marked", "copy-folder"),
		at(deletion, "copy-doomed", "copy-removed", "copy-forgotten"),
		at(exporting, "archive-begun", "archive-written", "archive-proven", "archive-linked", "archive-named", "archive-done"),
		at(retention, "copy-doomed", "copy-removed"),
	)
}

func fileCases() []crashed {
	return joined(
		at(compacting, "compact-begun", "compact-level", "compact-synced", "compact-renamed", "compact-done"),
		at(backingUp, "backup-begun", "backup-level", "backup-synced", "file-linked", "backup-done"),
		at(byHand, "file-linked"),
		at(inChild, "salvage-written"),
		at(salvaging, "salvage-made", "salvage-aside", "salvage-renamed", "salvage-done"),
	)
}
