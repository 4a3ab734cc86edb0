package config

import (
	"cmp"
	"time"

	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Defaults is the configuration that an empty file gives: no jobs.
func Defaults() File {
	return File{
		Redis: Redis{URL: "redis://127.0.0.1:6379/0", Tracking: TrackAuto},
		Store: Store{Path: "keyframe.db", CompactAbove: 2, OnDamage: DamageSalvage, CheckCopies: defaultCopyCheck()},
		API:   API{Listen: "127.0.0.1:7070", MaxImport: DefaultMaxImport},
		Log:   Log{Level: "info"},
		Lease: Lease{TTL: Duration(15 * time.Second)},
	}
}

// jobDefaults is what a job has where it says nothing. Its max parallelism is
// 0: it follows from the parallelism, see withGroups.
func jobDefaults() Job {
	return Job{
		Prefix:      statebackend.DefaultPrefix,
		Parallelism: 1,
		KeyGroups: KeyGroups{
			Hash: keygroups.HashJava, KeyType: keygroups.KeyString, Ranges: keygroups.RangesLeading,
		},
		OperatorState: OperatorState{Split: rescale.SplitEach},
		Checkpoint: Checkpoint{
			Timeout: Duration(5 * time.Minute), MaxPause: Duration(30 * time.Second), Grade: snapshot.GradeAuto,
			Incremental: new(true), MaxStall: Duration(statebackend.DefaultMaxStall), OnStall: statebackend.StallWait, SelfCheckEvery: new(DefaultSelfCheck),
			TolerableMisses: new(DefaultMisses),
			Shrink:          Shrink{Keys: new(DefaultShrink), Elements: new(DefaultShrink)},
		},
		Retention: Retention{Keep: 5},
		Recovery:  Recovery{OnStateLoss: LossRestore},
	}
}

// WithDefaults fills the fields that are zero; it changes no other. Fields
// whose zero means something stay: schedule (on demand only), minPause (none),
// maxReadRate (no bound) and maxAge (no limit). The given job is not changed.
func (j Job) WithDefaults() Job {
	d := jobDefaults()
	j.Prefix = cmp.Or(j.Prefix, d.Prefix)
	j.Parallelism = cmp.Or(j.Parallelism, d.Parallelism)
	j.KeyGroups.Hash = cmp.Or(j.KeyGroups.Hash, d.KeyGroups.Hash)
	j.KeyGroups.KeyType = cmp.Or(j.KeyGroups.KeyType, d.KeyGroups.KeyType)
	j.KeyGroups.Ranges = cmp.Or(j.KeyGroups.Ranges, d.KeyGroups.Ranges)
	j.OperatorState.Split = cmp.Or(j.OperatorState.Split, d.OperatorState.Split)
	j.Checkpoint.Timeout = cmp.Or(j.Checkpoint.Timeout, d.Checkpoint.Timeout)
	j.Checkpoint.MaxPause = cmp.Or(j.Checkpoint.MaxPause, d.Checkpoint.MaxPause)
	j.Checkpoint.Grade = cmp.Or(j.Checkpoint.Grade, d.Checkpoint.Grade)
	j.Checkpoint.Incremental = cmp.Or(j.Checkpoint.Incremental, d.Checkpoint.Incremental)
	j.Checkpoint.MaxStall = cmp.Or(j.Checkpoint.MaxStall, d.Checkpoint.MaxStall)
	j.Checkpoint.OnStall = cmp.Or(j.Checkpoint.OnStall, d.Checkpoint.OnStall)
	j.Checkpoint.SelfCheckEvery = cmp.Or(j.Checkpoint.SelfCheckEvery, d.Checkpoint.SelfCheckEvery)
	j.Checkpoint.Shrink.Keys = cmp.Or(j.Checkpoint.Shrink.Keys, d.Checkpoint.Shrink.Keys)
	j.Checkpoint.Shrink.Elements = cmp.Or(j.Checkpoint.Shrink.Elements, d.Checkpoint.Shrink.Elements)
	j.Checkpoint.TolerableMisses = cmp.Or(j.Checkpoint.TolerableMisses, d.Checkpoint.TolerableMisses)
	j.Retention.Keep = cmp.Or(j.Retention.Keep, d.Retention.Keep)
	j.Recovery.OnStateLoss = cmp.Or(j.Recovery.OnStateLoss, d.Recovery.OnStateLoss)
	return j.withGroups()
}

// withGroups fills the max parallelism by the rule of design §5.
func (j Job) withGroups() Job {
	if j.MaxParallelism == 0 && j.Parallelism >= 1 && j.Parallelism <= keygroups.MaxMaxParallelism {
		j.MaxParallelism = keygroups.DefaultMaxParallelism(j.Parallelism)
	}
	return j
}
