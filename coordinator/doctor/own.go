package doctor

import (
	"fmt"
	"strings"

	"keyframe/statebackend"
)

// ownKeys judges the types of the job's bookkeeping, and of its sources.
type ownKeys struct {
	found *findings
	need  map[string]ownKey
	wrong map[string]bool
	// general is what the look at the job said of a wrong type, "" for nothing:
	// it is told when no key is found that explains it.
	general string
}

type ownKey struct{ what, kind, remedy string }

func newOwnKeys(job statebackend.Job, found *findings) *ownKeys {
	const lease = "; when no coordinator leads the job, UNLINK {key}: the next one takes a new lease"
	const again = "; move it away (RENAME {key} to a name outside the job's prefix), then `coordinator restore JOB` writes the right one"
	return &ownKeys{found: found, wrong: map[string]bool{}, need: map[string]ownKey{
		job.Index(): {"the index of the job's state", "set", "; to keep the state as it is, write a new index beside it (SADD NEW each key under " +
			job.Root() + ":cg:) and put it in place: RENAME NEW {key}; or move the wrong one away (RENAME {key} to a name outside the job's prefix): " +
			"the coordinator then takes the state for lost and recovers it from a checkpoint, without what was written since"},
		job.Registry():       {"the schema registry", "hash", again + ". Without a checkpoint, writers register their types with the next write"},
		job.OperatorStates(): {"the list of operator states", "hash", again},
		job.Assignment():     {"the assignment of key groups", "string", again},
		job.Record(): {"the coordinator's record", "hash", "; to keep the state as it is, `coordinator job pause JOB`, move the key away " +
			"(RENAME {key} to a name outside the job's prefix) and `coordinator job adopt JOB`; without the pause the coordinator then takes the state for lost and recovers it from a checkpoint"},
		job.Lease(): {"the lease of the job's leader", "hash", lease},
	}}
}

// take judges one key of the bookkeeping.
func (o *ownKeys) take(name, kind string) {
	own, known := o.need[name]
	if !known || own.kind == kind {
		return
	}
	o.tell(name, own.what+" is a "+kind+" and must be a "+own.kind, own.remedy)
}

func (o *ownKeys) tell(name, what, remedy string) {
	if o.wrong[name] {
		return
	}
	o.wrong[name] = true
	x := o.found.put(CodeBookkeeping, Error, what, name, 1)
	x.Why = "commands on it fail with WRONGTYPE: the job can't be checkpointed, and what stands on this key was not checked"
	x.Remedy = "find out who wrote it (TYPE " + readable(name) + ")" + strings.ReplaceAll(remedy, "{key}", readable(name))
}

// finish tells what the store could not look at, and drops what only follows
// from it.
func (o *ownKeys) finish(job statebackend.Job, broken []statebackend.BrokenKey) {
	for _, b := range broken {
		o.tell(b.Name, fmt.Sprintf("a key is no %s, as it must be: %s could not be looked at", b.Need, b.For),
			"; rename it or remove it, and let whoever owns it write it anew")
	}
	if o.wrong[job.Index()] {
		o.found.drop(CodeUnindexed, CodeNoState)
	}
	if o.wrong[job.Registry()] {
		o.found.drop(CodeSchemaMissing, CodeSchemaMalformed)
	}
	if o.general != "" && len(o.wrong) == 0 {
		o.found.say(CodeBookkeeping, Error, job.Root(), "the job's own keys are damaged: %s", o.general)
	}
}
