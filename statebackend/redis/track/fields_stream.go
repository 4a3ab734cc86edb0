package track

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const (
	longestField = 64 << 10 // of a field's name that is remembered
	arenaBytes   = 64 << 10 // of names that are collected before they are marked
	maxArguments = 1 << 31
)

// stream turns the commands of a link into marks. A command is marked argument
// by argument, so one of any length takes no more memory than wire does.
type stream struct {
	*wire
	t *fields

	ask     func() // an acknowledgement is asked for
	key     []byte
	hits    []*fieldsWatch
	fields  arena
	tooLong bool // a field's name of the command
}

// command reads one command and marks what it writes.
func (s *stream) command() error {
	first, err := s.r.Peek(1)
	if err != nil {
		return err
	}
	if first[0] == '\n' || first[0] == '\r' {
		_, err = s.r.Discard(1) // a sign of life
		return err
	}
	n, err := s.number('*')
	if err != nil {
		return err
	}
	if n < 1 || n > maxArguments {
		return fmt.Errorf("%w: a command of %d arguments", errGarbled, n)
	}
	name, err := s.arg(longestName)
	if err != nil {
		return err
	}
	return s.run(lookup(name), name, n-1)
}

// run reads a command's n arguments.
func (s *stream) run(c command, name argument, n int64) error {
	if n == 0 && c.kind != anyKeys && c.kind != flushDB {
		return s.pass()
	}
	switch c.kind {
	case noKeys:
		return s.passArgs(n)
	case namedKeys:
		return s.anyNames(n)
	case anyKeys, flushDB:
		s.everything(c.kind, string(bytes.ToUpper(name.b)))
		return s.passArgs(n)
	case selects:
		return s.selectDB(n)
	case askAck:
		return s.replconf(n)
	case moveMember:
		return s.smove(c, n)
	}
	if err := s.target(); err != nil {
		return err
	}
	if len(s.hits) == 0 {
		return s.passArgs(n - 1)
	}
	return s.keyed(c, n-1)
}

// keyed reads what follows the key that target has read.
func (s *stream) keyed(c command, n int64) error {
	switch c.kind {
	case expiryAt:
		s.each(func(w *fieldsWatch) { w.expiry(s.key) })
		return s.passArgs(n)
	case expiryIn:
		return s.expiryIn(n)
	case zaddFields:
		return s.zadd(c, n)
	}
	return s.fieldsAt(c, n)
}

// target reads a key and finds the watches it concerns.
func (s *stream) target() error {
	a, err := s.arg(longestArg)
	if err != nil {
		return err
	}
	s.hits = s.t.scopes.Load().find(s.hits[:0], a, s.t.db)
	if !a.whole() {
		s.tooLongName(a)
	}
	s.key = append(s.key[:0], a.b...)
	s.fields.reset()
	s.tooLong = false
	return nil
}

// tooLongName marks all of the watches that may be concerned by a name that
// can't be held.
func (s *stream) tooLongName(a argument) {
	s.each(func(w *fieldsWatch) {
		w.everything(fmt.Sprintf("an argument of %d bytes that may be a key was written", a.size))
	})
	s.hits = s.hits[:0]
}

func (s *stream) each(mark func(*fieldsWatch)) {
	for _, w := range s.hits {
		mark(w)
	}
}

// fieldsAt reads fields at the places of the command and marks them.
func (s *stream) fieldsAt(c command, n int64) error {
	at := int64(c.first)
	for i := range n {
		if i != at {
			if _, err := s.arg(0); err != nil {
				return err
			}
			continue
		}
		if err := s.field(c); err != nil {
			return err
		}
		if c.step > 0 {
			at += int64(c.step)
		}
	}
	s.flush(c)
	return s.pass()
}

// field reads one field's name.
func (s *stream) field(c command) error {
	a, err := s.arg(longestField)
	if err != nil {
		return err
	}
	if !a.whole() {
		s.tooLong = true
		return nil
	}
	if s.fields.add(a.b); len(s.fields.bytes)+nameCost*len(s.fields.ends) >= arenaBytes {
		s.flush(c)
	}
	return nil
}

// flush marks the fields that were collected. Marking a part of a command
// early marks too much at worst.
func (s *stream) flush(c command) {
	for _, w := range s.hits {
		s.mark(w, s.key, c)
	}
	s.fields.reset()
}

func (s *stream) mark(w *fieldsWatch, key []byte, c command) {
	if s.tooLong {
		w.whole(key)
	} else {
		w.written(key, c.family, &s.fields)
	}
}

// zadd reads ZADD's options up to the first score; pairs follow.
func (s *stream) zadd(c command, n int64) error {
	for n > 0 {
		a, err := s.arg(longestField)
		if err != nil {
			return err
		}
		n--
		if !isZaddOption(a) {
			break // a score, and its member is next
		}
	}
	return s.fieldsAt(c, n)
}

// smove reads two keys and a member, and marks when the member is known.
func (s *stream) smove(c command, n int64) error {
	if n != 3 {
		return s.anyNames(n)
	}
	if err := s.target(); err != nil {
		return err
	}
	from, ofFrom := bytes.Clone(s.key), append([]*fieldsWatch(nil), s.hits...)
	if err := s.target(); err != nil {
		return err
	}
	if err := s.field(c); err != nil {
		return err
	}
	for _, w := range ofFrom {
		s.mark(w, from, c)
	}
	s.flush(c)
	return s.pass()
}

// expiryIn reads a time from now. One that is past would remove the key.
func (s *stream) expiryIn(n int64) error {
	if n < 1 {
		s.each(func(w *fieldsWatch) { w.whole(s.key) })
		return s.pass()
	}
	a, err := s.arg(longestName)
	if err != nil {
		return err
	}
	in, err := strconv.ParseInt(string(a.b), 10, 64)
	later := err == nil && in > 0
	s.each(func(w *fieldsWatch) {
		if later {
			w.expiry(s.key)
		} else {
			w.whole(s.key)
		}
	})
	return s.passArgs(n - 1)
}

// anyNames marks every argument that may be a key, in every database: some
// commands reach into another one.
func (s *stream) anyNames(n int64) error {
	scopes := s.t.scopes.Load()
	for range n {
		a, err := s.arg(longestArg)
		if err != nil {
			return err
		}
		s.hits = scopes.find(s.hits[:0], a, anyDB)
		if !a.whole() {
			s.tooLongName(a)
		}
		for _, w := range s.hits {
			w.whole(a.b)
		}
	}
	return s.pass()
}

// everything marks all of all watches, or of those of the selected database.
func (s *stream) everything(k kind, name string) {
	for _, e := range s.t.scopes.Load().all {
		if k == anyKeys || e.in(s.t.db) {
			e.w.everything("the server executed " + name)
		}
	}
}

func (s *stream) selectDB(n int64) error {
	a, err := s.arg(longestName)
	if err != nil {
		return err
	}
	db, err := strconv.Atoi(string(a.b))
	if err != nil || db < 0 {
		return fmt.Errorf("%w: SELECT %.40q", errGarbled, a.b)
	}
	s.t.db = db
	return s.passArgs(n - 1)
}

func (s *stream) replconf(n int64) error {
	a, err := s.arg(longestName)
	if err != nil {
		return err
	}
	if strings.EqualFold(string(a.b), "GETACK") {
		s.ask()
	}
	return s.passArgs(n - 1)
}
