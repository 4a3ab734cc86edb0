package flights

import (
	"keyframe/keygroups"
	"keyframe/statebackend"
)

// Where the job's state lies in the layout, and the names of its states.
const (
	Group = "stats"   // consumer group
	Topic = "flights" // source

	Operator = "delays" // keyed: by origin airport
	Stats    = "stats"  // value
	Routes   = "routes" // map: destination → flights
	Last     = "last"   // list: the ten newest delays
	Seen     = "seen"   // set: destinations

	SourceOperator = "source"
	Positions      = "positions" // list
	Told           = "told"      // union
	Threshold      = "threshold" // broadcast
)

// thresholdKey is the only key of the broadcast state.
const thresholdKey = "delay"

// lastDelays is how many delays the list keeps.
const lastDelays = 10

// Delays is the value that is kept of an airport.
type Delays struct {
	Count int     `json:"count"` // flights
	Total int     `json:"total"` // sum of their delays, in minutes
	Mean  float64 `json:"mean"`  // total/count, in minutes
	Late  int     `json:"late"`  // flights whose delay is over the threshold
}

// Delay is an item of the list of newest delays. Index is the flight's place
// in the file. The flights of one airport come from all partitions at once, so
// in which order they arrive is chance; the list is therefore defined as the
// ten flights of the greatest index so far, in the order of their index, which
// is the same however the partitions interleave.
type Delay struct {
	Index int `json:"index"`
	Delay int `json:"delay"`
}

// Position is an item of the list of positions: the next offset to be read in
// a partition. Each partition is in the part of exactly one subtask, which
// reads it.
type Position struct {
	Partition int `json:"partition"`
	Offset    int `json:"offset"`
}

// Progress is an item of the union: a subtask tells the others that it has
// read a partition up to an offset. It is told at every multiple of 500 and at
// the partition's end, in the same step as the record that reaches it, so each
// is told once in the life of the job, whatever happens to the job.
//
// By the rules of a union a subtask only appends: what it was handed stays as
// it is at the beginning of its part, which is how Keyframe tells what it has
// contributed from what it was given.
type Progress struct {
	Subtask   int `json:"subtask"`
	Partition int `json:"partition"`
	Offset    int `json:"offset"`
}

// tellEvery is the distance of what is told, in records of a partition.
const tellEvery = 500

// keyed are the handles on the state of the airports. Safe for concurrent use.
type keyed struct {
	stats  *statebackend.ValueState[Delays]
	routes *statebackend.MapState[string, int]
	last   *statebackend.ListState[Delay]
	seen   *statebackend.SetState[string]
}

func openKeyed(store statebackend.Store, job statebackend.Job, rule keygroups.Rule) (keyed, error) {
	space := statebackend.Space{
		Store: store, Job: job, Partition: statebackend.ByKeyGroup(rule),
		Scope: statebackend.Scope{Group: Group, Topic: Topic, Operator: Operator},
	}
	var k keyed
	var err error
	if k.stats, err = statebackend.NewValueState(space, statebackend.Descriptor[Delays]{Name: Stats, TypeName: "flights.Delays"}); err != nil {
		return k, err
	}
	if k.routes, err = statebackend.NewMapState[string](space, statebackend.Descriptor[int]{Name: Routes}); err != nil {
		return k, err
	}
	if k.last, err = statebackend.NewListState(space, statebackend.Descriptor[Delay]{Name: Last, TypeName: "flights.Delay"}); err != nil {
		return k, err
	}
	k.seen, err = statebackend.NewSetState(space, statebackend.Descriptor[string]{Name: Seen})
	return k, err
}

// parts are the handles on one subtask's operator state.
type parts struct {
	positions *statebackend.OperatorList[Position]
	told      *statebackend.OperatorUnion[Progress]
	threshold *statebackend.OperatorBroadcast[string, int]
}

func openParts(store statebackend.Store, job statebackend.Job, subtask int) (parts, error) {
	space := statebackend.Space{Store: store, Job: job, Scope: sourceScope(subtask)}
	var p parts
	var err error
	if p.positions, err = statebackend.NewOperatorList(space, statebackend.Descriptor[Position]{Name: Positions, TypeName: "flights.Position"}); err != nil {
		return p, err
	}
	if p.told, err = statebackend.NewOperatorUnion(space, statebackend.Descriptor[Progress]{Name: Told, TypeName: "flights.Progress"}); err != nil {
		return p, err
	}
	p.threshold, err = statebackend.NewOperatorBroadcast[string](space, statebackend.Descriptor[int]{Name: Threshold})
	return p, err
}

func sourceScope(subtask int) statebackend.Scope {
	return statebackend.Scope{Group: Group, Topic: Topic, Partition: subtask, Operator: SourceOperator}
}
