package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// keys walks over the names of the database for those under the job's root.
func (in *inspection) keys() error {
	pattern := globEscape(in.req.Job.Root()+":") + "*"
	for cursor := "0"; ; {
		names, next, err := in.page("SCAN", cursor, "MATCH", pattern, "COUNT", strconv.Itoa(inspectScan))
		if err != nil {
			return err
		}
		for len(names) > 0 {
			n := min(len(names), inspectAhead)
			if err := in.some(names[:n]); err != nil {
				return err
			}
			names = names[n:]
		}
		if cursor = next; cursor == "0" {
			return nil
		}
	}
}

// page reads one page of a scan, its words up to the cursor and behind it.
func (in *inspection) page(args ...string) ([]resp.Value, string, error) {
	if err := in.check(); err != nil {
		return nil, "", err
	}
	v, err := in.conn.Call(inspectLimit, args...)
	if err != nil {
		return nil, "", in.b.mapError(err, args[0])
	}
	if len(v.Array) != 2 {
		return nil, "", fmt.Errorf("%w: %s was answered with %d parts", resp.ErrProtocol, args[0], len(v.Array))
	}
	return v.Array[1].Array, v.Array[0].String(), nil
}

// some asks about some keys in one pipeline, and tells the sink of those that
// are there still.
func (in *inspection) some(names []resp.Value) error {
	for _, n := range names {
		if err := in.ask(n.Bytes); err != nil {
			return in.b.mapError(err, "ask about keys")
		}
	}
	if err := in.conn.Flush(); err != nil {
		return in.b.mapError(err, "ask about keys")
	}
	at := time.Now() // what PTTL gives is added to it
	all := make([]statebackend.KeyFacts, 0, len(names))
	for _, n := range names {
		k, err := in.answer(n.Bytes, at)
		if err != nil {
			return &statebackend.KeyError{Key: n.Bytes, Op: "inspect", Err: in.b.mapError(err, "what it is")}
		}
		if k.Type != "none" {
			all = append(all, k)
		}
	}
	for _, k := range all {
		if err := in.tell(k); err != nil {
			return err
		}
	}
	return nil
}

// ask sends the questions about a key. None of them counts as a use of it.
func (in *inspection) ask(name []byte) error {
	expiry, object := "PTTL", "IDLETIME"
	if in.exact {
		expiry = "PEXPIRETIME"
	}
	if in.lfu {
		object = "FREQ"
	}
	for _, words := range [][]string{{"TYPE"}, {expiry}, {"MEMORY", "USAGE"}, {"OBJECT", object}} {
		if err := in.conn.BeginCommand(len(words) + 1); err != nil {
			return err
		}
		for _, w := range words {
			if err := in.conn.ArgString(w); err != nil {
				return err
			}
		}
		if err := in.conn.Arg(name); err != nil {
			return err
		}
	}
	return sendKey(in.conn, []byte(in.req.Job.Index()), "SISMEMBER", string(name))
}

// answer reads the answers to ask.
func (in *inspection) answer(name []byte, at time.Time) (statebackend.KeyFacts, error) {
	k := statebackend.KeyFacts{Name: name, Bytes: -1, Idle: -1, Freq: -1}
	v, err := in.conn.Reply(infoLimit)
	if err != nil {
		return k, err
	}
	k.Type = v.String()
	if v, err = in.conn.Reply(infoLimit); err != nil {
		return k, err
	}
	switch {
	case v.Int < 0:
	case in.exact:
		k.ExpireAt = v.Int
	default:
		k.ExpireAt = at.UnixMilli() + v.Int
	}
	size, err := in.optional("sizes of keys")
	if err != nil {
		return k, err
	}
	use, err := in.optional("when keys were used")
	if err != nil {
		return k, err
	}
	if k.Bytes = size; in.lfu {
		k.Freq = int(use)
	} else if use >= 0 {
		k.Idle = time.Duration(use) * time.Second
	}
	v, err = in.conn.Reply(infoLimit)
	if resp.IsCode(err, "WRONGTYPE") {
		return k, nil // what is there is no index
	}
	k.Indexed = v.Int > 0
	return k, err
}

// optional reads a number that the server may refuse to tell: -1 then, and
// for a key that is gone.
func (in *inspection) optional(what string) (int64, error) {
	v, err := in.conn.Reply(infoLimit)
	switch {
	case err != nil && isReply(err):
		if !strings.Contains(err.Error(), "no such key") {
			in.unable(what, in.b.mapError(err, what))
		}
		return -1, nil
	case err != nil:
		return -1, err
	case v.Kind != resp.Integer:
		return -1, nil
	}
	return v.Int, nil
}

// tell gives the sink a key and, when it wants them, its elements.
func (in *inspection) tell(k statebackend.KeyFacts) error {
	want, err := in.to.Key(k)
	if err != nil || !want {
		return err
	}
	scan, width := map[string]string{"hash": "HSCAN", "set": "SSCAN", "zset": "ZSCAN"}[k.Type], int64(2)
	if scan == "" {
		return nil
	}
	if scan == "SSCAN" {
		width = 1
	}
	for cursor := "0"; ; {
		if err := in.check(); err != nil {
			return err
		}
		cursor, err = in.elements(k.Name, scan, cursor, width)
		if resp.IsCode(err, "WRONGTYPE") {
			return nil // it became something else since it was asked about
		}
		if err != nil || cursor == "0" {
			return err
		}
	}
}

// elements reads one page of a key's elements; values are let go unread.
func (in *inspection) elements(name []byte, scan, cursor string, width int64) (string, error) {
	in.read = 0
	if err := in.askScan(name, scan, cursor, in.element.elements); err != nil {
		return "", in.b.mapError(err, scan)
	}
	next, err := in.stream.cursor()
	if err != nil {
		return "", err
	}
	n, err := in.array()
	if err != nil {
		return "", err
	}
	var failed error // of the sink: the reply is read to its end, then it is given
	for i := int64(0); i < n; i += width {
		member, err := in.field()
		if err != nil {
			return "", err
		}
		if failed == nil {
			failed = in.to.Element(member)
		}
		for range width - 1 {
			if _, err := in.bulk(); err != nil {
				return "", err
			}
			if err := in.conn.Skip(); err != nil {
				return "", err
			}
		}
	}
	if n > 0 {
		in.element.elements = max(1, min(inspectPage/max(in.read*width/n, 1), 1000))
	}
	return next, failed
}

// names walks over the index, and asks for each name whether it exists and
// what it is registered as.
func (in *inspection) names() error {
	for cursor := "0"; ; {
		names, next, err := in.page("SSCAN", in.req.Job.Index(), cursor, "COUNT", strconv.Itoa(inspectAhead))
		if errors.Is(err, statebackend.ErrWrongType) {
			in.wrong(in.req.Job.Index(), "set", "the names of the index")
			return nil
		}
		if err != nil {
			return err
		}
		// The server gives a small set whole, whatever it is asked for.
		for len(names) > 0 {
			n := min(len(names), inspectAhead)
			if err := in.registered(names[:n]); err != nil {
				return err
			}
			names = names[n:]
		}
		if cursor = next; cursor == "0" {
			return nil
		}
	}
}

func (in *inspection) registered(names []resp.Value) error {
	for _, n := range names {
		err := sendKey(in.conn, n.Bytes, "EXISTS")
		if err == nil {
			err = sendKey(in.conn, []byte(in.req.Job.Registry()), "HGET", string(n.Bytes))
		}
		if err != nil {
			return in.b.mapError(err, "ask about names")
		}
	}
	if err := in.conn.Flush(); err != nil {
		return in.b.mapError(err, "ask about names")
	}
	all := make([]statebackend.NameFacts, 0, len(names))
	for _, n := range names {
		exists, err := in.conn.Reply(infoLimit)
		if err != nil {
			return &statebackend.KeyError{Key: n.Bytes, Op: "inspect", Err: in.b.mapError(err, "EXISTS")}
		}
		schema, err := in.conn.Reply(infoLimit)
		if err != nil && !resp.IsCode(err, "WRONGTYPE") {
			return &statebackend.KeyError{Key: []byte(in.req.Job.Registry()), Op: "inspect", Err: in.b.mapError(err, "HGET")}
		}
		f := statebackend.NameFacts{Name: n.Bytes, Exists: exists.Int > 0}
		if err == nil && !schema.Nil {
			f.Schema = append([]byte{}, schema.Bytes...)
		}
		all = append(all, f)
	}
	for _, f := range all {
		if err := in.to.Name(f); err != nil {
			return err
		}
	}
	return nil
}
