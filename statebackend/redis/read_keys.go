package redis

import (
	"errors"
	"fmt"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// cutReader pushes a job's keys into a sink, while the state stands still or,
// when it is loose, while it is written. Which keys is said by a nameSource;
// keys reads them through a keyPipe, single and takePaged one alone. Its memory
// is bounded: names of one page of the index and those whose replies are
// outstanding, one part of a value, and the identities of what a scan gave.
type cutReader struct {
	stream
	b        *Backend
	job      statebackend.Job
	version  string  // of the server
	exactTTL bool    // the server knows PEXPIRETIME
	bounded  bool    // the user may read a hash by HRANDFIELD
	noExpiry bool    // no key of the database expires, so none is asked when
	types    guesses // nil for asking each key's type

	// loose is for state whose writers run meanwhile: a key may change, grow,
	// shrink and vanish between two replies, and is pushed as it came, marked
	// so. Whoever reads this way reads what was written once more.
	loose bool
	// odd is told of each key that seems to have been written while it was
	// read, so that what came of it can't be right. Only for loose.
	odd func(k *keyInfo)
	// large takes the keys that would be read page by page, instead; nil for
	// reading them where they stand.
	large func(k *keyInfo)

	// aside is a second connection for questions that come up while replies
	// are outstanding; opened when the first comes up.
	aside   *resp.Conn
	second  *cutReader       // see beside
	last    snapshot.KeyType // of the key that single read last
	further []*resp.Conn     // all that hangUp closes
	dial    func() (*resp.Conn, error)

	seen nameSet // of the key that is being scanned
}

// keyInfo is what is known of a key before its content is read.
type keyInfo struct {
	name     []byte
	section  snapshot.Section
	typ      snapshot.KeyType
	guessed  bool   // the type was not asked for
	state    *guess // of what the key's state is known by; nil for nothing
	typeName string // of an opaque one
	expireAt int64  // ms since 1970, 0 for none
	size     int64  // about how many bytes its content takes in the server
	plan     plan   // how it is read
}

// keyFailed is an error of one key; errors of the sink and of the pause stay
// what they are.
func (r *cutReader) keyFailed(k *keyInfo, err error) error {
	if err == nil {
		return nil // asked for every key: what follows allocates
	}
	var already *statebackend.KeyError
	if errors.As(err, &already) || errors.Is(err, statebackend.ErrPauseExpired) {
		return err
	}
	return &statebackend.KeyError{Key: k.name, Op: "read", Err: r.b.mapError(err, "content of type "+k.typ.String())}
}

func keyTypeOf(name string) (t snapshot.KeyType, opaque string) {
	switch name {
	case "none":
		return snapshot.TypeMissing, ""
	case "string":
		return snapshot.TypeString, ""
	case "hash":
		return snapshot.TypeHash, ""
	case "list":
		return snapshot.TypeList, ""
	case "set":
		return snapshot.TypeSet, ""
	case "zset":
		return snapshot.TypeZSet, ""
	}
	return snapshot.TypeOpaque, name
}

func (r *cutReader) begin(k *keyInfo, count int64) error {
	key := snapshot.Key{Section: k.section, Name: k.name, Type: k.typ, ExpireAt: k.expireAt, Count: uint64(count), Loose: r.loose}
	if k.typ == snapshot.TypeOpaque {
		key.TypeName, key.Server = k.typeName, r.version
	}
	return r.sink.BeginKey(key)
}

// end closes a key after as many elements as the server counted. Fewer are
// right only when the key's expiry passed meanwhile.
func (r *cutReader) end(k *keyInfo, count, got int64) error {
	if got == count || r.loose {
		if got != count {
			r.odd(k)
		}
		return r.sink.EndKey(snapshot.KeyEnd{})
	}
	differ := fmt.Errorf("%w: the server counts %d elements, and %d came", statebackend.ErrChanged, count, got)
	if got > count {
		return differ
	}
	if err := r.expired(k, differ); err != nil {
		return err
	}
	return r.sink.EndKey(snapshot.KeyEnd{Expired: true})
}

// missing gives a name of the index that has no key.
func (r *cutReader) missing(k *keyInfo) error {
	err := r.sink.BeginKey(snapshot.Key{Section: k.section, Name: k.name, Type: snapshot.TypeMissing})
	if err != nil {
		return err
	}
	return r.sink.EndKey(snapshot.KeyEnd{})
}

// vanished gives a key as missing that had a type and then no content: right
// only when its expiry passed in between. A restore would have dropped it.
func (r *cutReader) vanished(k *keyInfo) error {
	if r.loose {
		r.odd(k)
		return r.missing(k)
	}
	if err := r.expired(k, fmt.Errorf("%w: it was there, and then was not", statebackend.ErrChanged)); err != nil {
		return err
	}
	return r.missing(k)
}

// changed tells a reply that only says that the key has another type by now,
// which is nothing wrong while writers run.
func (r *cutReader) changed(err error) bool { return r.loose && isReplyCode(err, "WRONGTYPE") }

// unlessChanged gives a key as missing that has another type than it had. Where
// that was only guessed it reads the key anew.
func (r *cutReader) unlessChanged(k *keyInfo, err error) error {
	if k.guessed && isReplyCode(err, "WRONGTYPE") {
		return r.again(k)
	}
	if !r.changed(err) {
		return err
	}
	return r.vanished(k)
}

// expired gives nil when the key is gone because its expiry has passed, and
// otherwise the error.
func (r *cutReader) expired(k *keyInfo, otherwise error) error {
	if k.expireAt == 0 {
		return otherwise
	}
	conn, err := r.side()
	if err != nil {
		return err
	}
	// EXISTS first: what is gone then must have expired by the TIME after it.
	if err := sendKey(conn, k.name, "EXISTS"); err != nil {
		return err
	}
	if err := conn.Command("TIME"); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	exists, err := conn.Reply(infoLimit)
	if err != nil {
		return err
	}
	now, err := replyTime(conn)
	if err != nil {
		return err
	}
	if exists.Int != 0 || now.Before(time.UnixMilli(k.expireAt)) {
		return otherwise
	}
	return nil
}

// side opens the second connection.
func (r *cutReader) side() (*resp.Conn, error) {
	if r.aside == nil {
		conn, err := r.open()
		if err != nil {
			return nil, err
		}
		r.aside = conn
	}
	return r.aside, r.check()
}

// open opens a further connection; hangUp closes it.
func (r *cutReader) open() (*resp.Conn, error) {
	conn, err := r.dial()
	if err != nil {
		return nil, err
	}
	r.further = append(r.further, conn)
	return conn, nil
}

func (r *cutReader) hangUp() {
	for _, conn := range r.further {
		_ = conn.Close() // every reply was read, or the cut has failed
	}
}

// sendKey writes one command on a key: name key args….
func sendKey(conn *resp.Conn, key []byte, name string, args ...string) error {
	if err := conn.BeginCommand(2 + len(args)); err != nil {
		return err
	}
	if err := conn.ArgString(name); err != nil {
		return err
	}
	if err := conn.Arg(key); err != nil {
		return err
	}
	for _, a := range args {
		if err := conn.ArgString(a); err != nil {
			return err
		}
	}
	return nil
}
