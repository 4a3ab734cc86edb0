package redis

import (
	"errors"
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// headLimit bounds each of a job's own small keys, in bytes of memory.
const headLimit = 64 << 20

// jobHead is a job's own keys.
type jobHead struct {
	record    statebackend.Record
	hasRecord bool
	assigned  *statebackend.Assignment
	operators []snapshot.OperatorState
	indexed   uint64
	hasIndex  bool
}

// headCommand is one question about the job's own keys and what becomes of
// its answer.
type headCommand struct {
	key  string
	args []string
	take func(h *jobHead, v resp.Value) error
}

func headCommands(job statebackend.Job) []headCommand {
	return []headCommand{
		{job.Record(), []string{"HGETALL", job.Record()}, (*jobHead).takeRecord},
		{job.Index(), []string{"SCARD", job.Index()}, func(h *jobHead, v resp.Value) error {
			h.indexed, h.hasIndex = uint64(max(v.Int, 0)), v.Int > 0
			return nil
		}},
		{job.Assignment(), []string{"GET", job.Assignment()}, (*jobHead).takeAssignment},
		{job.OperatorStates(), []string{"HGETALL", job.OperatorStates()}, (*jobHead).takeOperators},
	}
}

// readHead reads the job's own keys over a connection with no reply
// outstanding. What is not there is no error.
func (b *Backend) readHead(conn *resp.Conn, job statebackend.Job) (jobHead, error) {
	var h jobHead
	cmds := headCommands(job)
	for _, c := range cmds {
		if err := conn.Command(c.args...); err != nil {
			return h, b.mapError(err, "read the job's record")
		}
	}
	if err := conn.Flush(); err != nil {
		return h, b.mapError(err, "read the job's record")
	}
	var first error
	for _, c := range cmds {
		v, err := conn.Reply(headLimit)
		if err == nil {
			err = c.take(&h, v)
		}
		if err != nil {
			err = &statebackend.KeyError{Key: []byte(c.key), Op: "read", Err: b.mapError(err, c.args[0])}
			if conn.Err() != nil {
				return h, err
			}
			first = errors.Join(first, err)
		}
	}
	return h, first
}

func (h *jobHead) takeRecord(v resp.Value) error {
	fields, err := fieldMap(v)
	if err != nil {
		return err
	}
	h.hasRecord = len(fields) > 0
	h.record, err = statebackend.DecodeRecord(fields)
	return err
}

func (h *jobHead) takeAssignment(v resp.Value) error {
	if v.Nil {
		return nil
	}
	a, err := statebackend.DecodeAssignment(v.Bytes)
	if err != nil {
		return err
	}
	h.assigned = &a
	return nil
}

func (h *jobHead) takeOperators(v resp.Value) error {
	fields, err := fieldMap(v)
	if err != nil {
		return err
	}
	h.operators, err = statebackend.DecodeOperatorStates(fields)
	return err
}

// fieldMap is the answer of HGETALL as a map.
func fieldMap(v resp.Value) (map[string][]byte, error) {
	if v.Kind != resp.Array || len(v.Array)%2 != 0 {
		return nil, fmt.Errorf("a hash was answered with %s of %d parts", v.Kind, len(v.Array))
	}
	fields := make(map[string][]byte, len(v.Array)/2)
	for i := 0; i < len(v.Array); i += 2 {
		fields[v.Array[i].String()] = v.Array[i+1].Bytes
	}
	return fields, nil
}
