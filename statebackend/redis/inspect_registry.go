package redis

import (
	"errors"
	"strconv"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// registry walks over the schema registry for entries of names that the index
// lacks.
func (in *inspection) registry() error {
	for cursor := "0"; ; {
		pairs, next, err := in.page("HSCAN", in.req.Job.Registry(), cursor, "COUNT", strconv.Itoa(inspectAhead))
		if errors.Is(err, statebackend.ErrWrongType) {
			in.wrong(in.req.Job.Registry(), "hash", "the schemas of the state")
			return nil
		}
		if err != nil {
			return err
		}
		for len(pairs) > 1 {
			n := min(len(pairs)/2*2, 2*inspectAhead)
			if err := in.unlisted(pairs[:n]); err != nil {
				return err
			}
			pairs = pairs[n:]
		}
		if cursor = next; cursor == "0" {
			return nil
		}
	}
}

// unlisted tells the sink of those of some entries (name and schema in turns)
// whose names the index lacks.
func (in *inspection) unlisted(entries []resp.Value) error {
	for i := 0; i < len(entries); i += 2 {
		err := sendKey(in.conn, []byte(in.req.Job.Index()), "SISMEMBER", string(entries[i].Bytes))
		if err == nil {
			err = sendKey(in.conn, entries[i].Bytes, "EXISTS")
		}
		if err != nil {
			return in.b.mapError(err, "ask about the registry")
		}
	}
	if err := in.conn.Flush(); err != nil {
		return in.b.mapError(err, "ask about the registry")
	}
	var all []statebackend.NameFacts
	for i := 0; i < len(entries); i += 2 {
		name := entries[i].Bytes
		listed, err := in.conn.Reply(infoLimit)
		unknown := resp.IsCode(err, "WRONGTYPE") // what is there is no index
		if err != nil && !unknown {
			return &statebackend.KeyError{Key: name, Op: "inspect", Err: in.b.mapError(err, "SISMEMBER")}
		}
		exists, err := in.conn.Reply(infoLimit)
		if err != nil {
			return &statebackend.KeyError{Key: name, Op: "inspect", Err: in.b.mapError(err, "EXISTS")}
		}
		if !unknown && listed.Int == 0 {
			all = append(all, statebackend.NameFacts{Name: name, Exists: exists.Int > 0, Schema: entries[i+1].Bytes, Unlisted: true})
		}
	}
	for _, f := range all {
		if err := in.to.Name(f); err != nil {
			return err
		}
	}
	return nil
}
