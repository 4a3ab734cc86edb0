package memory

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// command is how one Op is done. The store's lock is held, and the number of
// arguments fits.
type command struct {
	least, most int // arguments; most -1 for any number
	run         func(s *Store, c statebackend.Cmd) (statebackend.Reply, error)
}

var commands = map[statebackend.Op]command{
	statebackend.OpHGet:      {1, 1, hget},
	statebackend.OpHSet:      {2, 2, hset},
	statebackend.OpHSetNX:    {2, 2, hsetnx},
	statebackend.OpHDel:      {1, 1, hdel},
	statebackend.OpHExists:   {1, 1, hexists},
	statebackend.OpHLen:      {0, 0, length(snapshot.TypeHash)},
	statebackend.OpRPush:     {1, -1, rpush},
	statebackend.OpLLen:      {0, 0, length(snapshot.TypeList)},
	statebackend.OpSAdd:      {1, -1, sadd},
	statebackend.OpSRem:      {1, -1, srem},
	statebackend.OpSIsMember: {1, 1, sismember},
	statebackend.OpSCard:     {0, 0, length(snapshot.TypeSet)},
	statebackend.OpZAdd:      {2, 2, zadd},
	statebackend.OpZRem:      {1, -1, zrem},
	statebackend.OpGet:       {0, 0, get},
	statebackend.OpSet:       {1, 1, set},
	statebackend.OpDel:       {0, 0, del},
	statebackend.OpPExpireAt: {1, 1, pexpireat},
	statebackend.OpType:      {0, 0, typeName},
}

// Do runs the commands under one lock. As in Redis, a command on a key of
// another type doesn't stop the ones after it; the first such error is the
// call's. A command that can't be understood fails the call before the first
// one runs.
func (s *Store) Do(ctx context.Context, cmds ...statebackend.Cmd) ([]statebackend.Reply, error) {
	for _, c := range cmds {
		how, ok := commands[c.Op]
		if !ok {
			return nil, fmt.Errorf("command %d on key %q: %w", c.Op, c.Key, statebackend.ErrUnsupported)
		}
		if len(c.Args) < how.least || how.most >= 0 && len(c.Args) > how.most {
			return nil, fmt.Errorf("command %d on key %q has %d arguments: want %d", c.Op, c.Key, len(c.Args), how.least)
		}
	}
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	replies := make([]statebackend.Reply, len(cmds))
	var first error
	for i, c := range cmds {
		var err error
		if replies[i], err = commands[c.Op].run(s, c); err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return nil, first
	}
	return replies, nil
}

func number(n int) statebackend.Reply { return statebackend.Reply{Int: int64(n)} }

func truth(b bool) statebackend.Reply {
	if b {
		return number(1)
	}
	return number(0)
}

func length(t snapshot.KeyType) func(*Store, statebackend.Cmd) (statebackend.Reply, error) {
	return func(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
		o, err := s.typed(c.Key, t)
		if o == nil || err != nil {
			return statebackend.Reply{}, err
		}
		return number(o.count()), nil
	}
}

func hget(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.typed(c.Key, snapshot.TypeHash)
	if err != nil {
		return statebackend.Reply{}, err
	}
	if o != nil {
		if v, ok := o.hash.get(string(c.Args[0])); ok {
			return statebackend.Reply{Bytes: clone(v)}, nil
		}
	}
	return statebackend.Reply{Nil: true}, nil
}

// clone never gives nil: an empty value is not "nothing".
func clone(b []byte) []byte { return append([]byte{}, b...) }

func hset(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.writable(c.Key, snapshot.TypeHash)
	if err != nil {
		return statebackend.Reply{}, err
	}
	return truth(o.hash.set(string(c.Args[0]), clone(c.Args[1]))), nil
}

func hsetnx(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	there, err := hexists(s, c)
	if err != nil || there.Int == 1 {
		return number(0), err
	}
	return hset(s, c)
}

func hexists(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.typed(c.Key, snapshot.TypeHash)
	if o == nil || err != nil {
		return statebackend.Reply{}, err
	}
	_, ok := o.hash.get(string(c.Args[0]))
	return truth(ok), nil
}

func hdel(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	return s.takeOut(c, snapshot.TypeHash)
}

// takeOut removes elements by their names, and the key with its last one.
func (s *Store) takeOut(c statebackend.Cmd, t snapshot.KeyType) (statebackend.Reply, error) {
	o, err := s.typed(c.Key, t)
	if o == nil || err != nil {
		return statebackend.Reply{}, err
	}
	if o, err = s.writable(c.Key, t); err != nil {
		return statebackend.Reply{}, err
	}
	n := 0
	for _, a := range c.Args {
		var was bool
		if t == snapshot.TypeZSet {
			was = o.zset.remove(string(a))
		} else {
			was = o.hash.remove(string(a))
		}
		if was {
			n++
		}
	}
	s.dropEmpty(c.Key)
	return number(n), nil
}

func rpush(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.writable(c.Key, snapshot.TypeList)
	if err != nil {
		return statebackend.Reply{}, err
	}
	for _, a := range c.Args {
		o.list = append(o.list, clone(a))
	}
	return number(len(o.list)), nil
}

func sadd(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.writable(c.Key, snapshot.TypeSet)
	if err != nil {
		return statebackend.Reply{}, err
	}
	n := 0
	for _, a := range c.Args {
		if o.hash.set(string(a), nil) {
			n++
		}
	}
	return number(n), nil
}

func srem(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	return s.takeOut(c, snapshot.TypeSet)
}

func sismember(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.typed(c.Key, snapshot.TypeSet)
	if o == nil || err != nil {
		return statebackend.Reply{}, err
	}
	_, ok := o.hash.get(string(c.Args[0]))
	return truth(ok), nil
}

func zadd(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	score, err := strconv.ParseFloat(string(c.Args[0]), 64)
	if math.IsNaN(score) || err != nil && !math.IsInf(score, 0) {
		return statebackend.Reply{}, &statebackend.KeyError{Key: []byte(c.Key), Op: "add to",
			Err: fmt.Errorf("score %.50q is not a number", c.Args[0])}
	}
	o, err := s.writable(c.Key, snapshot.TypeZSet)
	if err != nil {
		return statebackend.Reply{}, err
	}
	return truth(o.zset.set(string(c.Args[1]), score)), nil
}

func zrem(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	return s.takeOut(c, snapshot.TypeZSet)
}

func get(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o, err := s.typed(c.Key, snapshot.TypeString)
	if err != nil {
		return statebackend.Reply{}, err
	}
	if o == nil {
		return statebackend.Reply{Nil: true}, nil
	}
	return statebackend.Reply{Bytes: clone(o.text)}, nil
}

// set replaces whatever the key is, with its expiry.
func set(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	s.putString(c.Key, bytes.Clone(c.Args[0]))
	return statebackend.Reply{}, nil
}

func del(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	was := s.live(c.Key) != nil
	delete(s.keys, c.Key)
	return truth(was), nil
}

// pexpireat in the past removes the key, as in Redis.
func pexpireat(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	ms, err := strconv.ParseInt(string(c.Args[0]), 10, 64)
	if err != nil {
		return statebackend.Reply{}, &statebackend.KeyError{Key: []byte(c.Key), Op: "expire",
			Err: fmt.Errorf("time %.50q is not a whole number of ms", c.Args[0])}
	}
	o := s.live(c.Key)
	if o == nil {
		return number(0), nil
	}
	if ms <= s.now().UnixMilli() {
		delete(s.keys, c.Key)
		return number(1), nil
	}
	if o.frozen {
		o = o.fork(s.token())
		s.keys[c.Key] = o
	}
	o.expireAt = ms
	return number(1), nil
}

func typeName(s *Store, c statebackend.Cmd) (statebackend.Reply, error) {
	o := s.live(c.Key)
	if o == nil {
		return statebackend.Reply{Bytes: []byte("none")}, nil
	}
	return statebackend.Reply{Bytes: []byte(o.typ.String())}, nil
}
