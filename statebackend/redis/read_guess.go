package redis

import (
	"bytes"
	"fmt"
	"strings"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// mostGuesses is how many states are told apart by guesses.
const mostGuesses = 4096

// guesses are what the keys of each state were so far. All keys of one state
// are of one type where nobody meddles, so a key's type need not be asked for:
// a command for another type is refused with WRONGTYPE, and then asking is made
// up for.
type guesses map[string]*guess

// guess is what was seen of the keys of one state.
type guess struct {
	typ     snapshot.KeyType // TypeMissing: several, so there is no guess
	sized   int64            // keys whose size is known
	bytes   int64            // their sizes
	largest int64            // of them
	over    int64            // keys that were larger than expected
}

// noGuess is for states whose keys have several types.
const noGuess = snapshot.TypeMissing

// of gives what is known of the state of a key, nil for nothing. Its type is
// known then.
func (g guesses) of(name []byte) *guess {
	if s := g[string(stateOf(name))]; s != nil && s.typ != noGuess {
		return s
	}
	return nil
}

// saw learns the type of a key. What is read by other means than by elements
// is not guessed: DUMP works with any type.
func (g guesses) saw(name []byte, t snapshot.KeyType) {
	if g == nil || t == snapshot.TypeMissing || t == snapshot.TypeOpaque {
		return
	}
	state := stateOf(name)
	was := g[string(state)]
	switch {
	case state == nil || was == nil && len(g) >= mostGuesses:
	case was == nil:
		g[string(state)] = &guess{typ: t}
	case was.typ != t:
		was.typ = noGuess
	}
}

// stateMarks are what stands before operator and state in a key's name.
var stateMarks = [][]byte{[]byte(":state:"), []byte(":opstate:"), []byte(windowMark)}

const windowMark = ":windowDue:"

// stateOf is the part of a key's name that tells its state, roughly: names may
// hold anything, and a wrong part makes a wrong guess at worst. nil for none.
func stateOf(name []byte) []byte {
	for _, mark := range stateMarks {
		at := bytes.Index(name, mark)
		if at < 0 {
			continue
		}
		end := at + len(mark)
		if string(mark) == windowMark {
			return name[at:end] // they are zsets, all of them
		}
		for range 2 { // operator and state
			n := bytes.IndexByte(name[end:], ':')
			if n < 0 {
				return name[at:]
			}
			end += n + 1
		}
		return name[at:end]
	}
	return nil
}

// again reads a key whose type was guessed wrongly, over a connection where no
// reply is outstanding.
func (r *cutReader) again(k *keyInfo) error {
	x, err := r.beside()
	if err != nil {
		return err
	}
	there, err := x.single(k.section, string(k.name))
	if err != nil {
		return err
	}
	r.types.saw(k.name, x.last)
	if !there {
		return r.vanished(k)
	}
	return nil
}

// beside is a reader that reads one key at a time for the same sink.
func (r *cutReader) beside() (*cutReader, error) {
	if r.second == nil {
		conn, err := r.open()
		if err != nil {
			return nil, err
		}
		r.second = &cutReader{
			stream: stream{conn: conn, sink: r.sink, check: r.check},
			b:      r.b, job: r.job, version: r.version, exactTTL: r.exactTTL, noExpiry: r.noExpiry,
			loose: r.loose, odd: r.odd, dial: r.open,
		}
	}
	return r.second, r.check()
}

// askType asks for the type of a key when no reply is outstanding.
func (r *cutReader) askType(k *keyInfo) error {
	if err := sendKey(r.conn, k.name, "TYPE"); err != nil {
		return err
	}
	if err := r.conn.Flush(); err != nil {
		return err
	}
	return r.takeType(k)
}

// takeType reads the answer of TYPE.
func (r *cutReader) takeType(k *keyInfo) error {
	h, err := r.conn.Next()
	switch {
	case err != nil:
		return err
	case h.Err != nil:
		return h.Err
	case h.Kind != resp.Simple:
		return fmt.Errorf("%w: %s where a type is due", resp.ErrProtocol, h.Kind)
	}
	k.guessed = false
	k.typ, k.typeName = keyTypeOf(h.Text)
	r.types.saw(k.name, k.typ)
	return nil
}

// askNoExpiry asks whether no key of a database expires, when no reply is
// outstanding. It holds for as long as nobody writes, or his writes are noticed.
func askNoExpiry(conn *resp.Conn, db int) (bool, error) {
	v, err := conn.Call(infoLimit, "INFO", "keyspace")
	if err != nil {
		return false, err
	}
	all := make(map[string]string)
	infoFields(all, v.String())
	return expiresNothing(all[fmt.Sprintf("db%d", db)]), nil
}

// expiresNothing reads a line of INFO keyspace: keys=3,expires=0,avg_ttl=0.
func expiresNothing(line string) bool {
	for field := range strings.SplitSeq(line, ",") {
		if field == "expires=0" {
			return true
		}
	}
	return false
}
