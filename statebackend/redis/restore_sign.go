package redis

import (
	"bytes"
	"fmt"
	"math"

	"keyframe/statebackend"
)

// fillerSizes are the lengths of the members that are tried to make a sorted
// set keep the sign of a zero: one that is longer than zset-max-listpack-value
// (64 unless somebody has set it).
var fillerSizes = []int{256, 64 << 10, 16 << 20}

func isNegativeZero(score float64) bool { return score == 0 && math.Signbit(score) }

// keepSign makes the staged sorted set keep the sign of the score -0, before
// the first of these goes in. A small sorted set keeps scores that are whole
// as integers (Redis 7.0 and later, zzlInsertAt), and so -0 as 0; a large one
// keeps doubles, and never becomes small again. The checkpoint's may have been
// large for a member that came first there, and comes later here. So a long
// member goes in, which makes it large, and leaves at the key's end.
//
// Whether that worked is asked by adding -0 to that member's score: only -0
// stays -0.
func (s *staging) keepSign() error {
	c := &s.cur
	if c.filler != nil {
		return nil
	}
	if err := s.flushElements(); err != nil {
		return err
	}
	for _, size := range fillerSizes {
		c.filler = append([]byte(s.prefix), bytes.Repeat([]byte{'z'}, size)...)
		c.stored++
		err := s.pipe.command(sentCommand{key: c.key.Name, verb: "ZADD", want: 1}, c.target, []byte("-0"), c.filler)
		if err != nil {
			return err
		}
		v, err := s.pipe.ask(smallReply, "ZADD", string(c.target), "INCR", "-0", string(c.filler))
		if err != nil {
			return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: s.b.mapError(err, "ZADD INCR")})
		}
		if v.String() == "-0" {
			return nil
		}
		if err := s.dropFiller(); err != nil {
			return err
		}
	}
	return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf(
		"%w: this server keeps the score -0 as 0 in a sorted set whose members have up to %d bytes: set zset-max-listpack-value to its default of 64",
		statebackend.ErrUnsupported, fillerSizes[len(fillerSizes)-1])})
}

// dropFiller takes the long member of keepSign out again.
func (s *staging) dropFiller() error {
	c := &s.cur
	if c.filler == nil {
		return nil
	}
	filler := c.filler
	c.filler = nil
	return s.pipe.command(sentCommand{key: c.key.Name, verb: "ZREM", want: 1,
		hint: "a sorted set with the score -0 needs the right +zrem"}, c.target, filler)
}
