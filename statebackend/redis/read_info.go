package redis

import (
	"fmt"
	"time"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// askInfo sends the questions about what a key is.
func (r *cutReader) askInfo(k *keyInfo) error {
	if k.state = r.types.of(k.name); k.state != nil {
		k.typ, k.guessed = k.state.typ, true
	} else if err := sendKey(r.conn, k.name, "TYPE"); err != nil {
		return err
	}
	if err := r.askExpiry(k.name); err != nil {
		return err
	}
	return sendMemoryUsage(r.conn, k.name)
}

// takeInfo reads the answers to askInfo.
func (r *cutReader) takeInfo(k *keyInfo) error {
	if !k.guessed {
		if err := r.takeType(k); err != nil {
			return err
		}
	}
	if err := r.takeExpiry(k); err != nil {
		return err
	}
	return r.takeSize(k)
}

// takeExpiry reads when the key expires. Before Redis 7.0 that is told as the
// time that is left, and so known to about a millisecond.
func (r *cutReader) takeExpiry(k *keyInfo) error {
	if r.noExpiry {
		return nil
	}
	var now time.Time
	if !r.exactTTL {
		var err error
		if now, err = replyTime(r.conn); err != nil {
			return err
		}
	}
	h, err := r.conn.Next()
	switch {
	case err != nil:
		return err
	case h.Err != nil:
		return h.Err
	case h.Kind != resp.Integer || h.Int < -2:
		return fmt.Errorf("%w: %s %d where an expiry is due", resp.ErrProtocol, h.Kind, h.Int)
	case h.Int == -1:
		k.expireAt = 0
	case h.Int == -2:
		k.expireAt = goneAlready
	case r.exactTTL:
		k.expireAt = h.Int
	default:
		k.expireAt = now.UnixMilli() + h.Int
	}
	return nil
}

// goneAlready stands for an expiry that can't be asked for any more.
const goneAlready = 1

func (r *cutReader) takeSize(k *keyInfo) error {
	h, err := r.conn.Next()
	switch {
	case err != nil:
		return err
	case h.Err != nil:
		return h.Err
	case h.Kind == resp.Integer:
		k.size = h.Int
		k.state.measured(h.Int)
	case h.Nil() && k.guessed && (r.noExpiry || k.expireAt == goneAlready):
		k.typ, k.expireAt = snapshot.TypeMissing, 0 // it was not there at all
	case h.Nil() && k.typ != snapshot.TypeMissing:
		if k.expireAt == 0 && !r.loose {
			return fmt.Errorf("%w: it was there, and then was not", statebackend.ErrChanged)
		}
		k.expireAt = goneAlready
	case !h.Nil():
		return fmt.Errorf("%w: %s where a size is due", resp.ErrProtocol, h.Kind)
	}
	return nil
}

func sendMemoryUsage(conn *resp.Conn, key []byte) error {
	if err := conn.BeginCommand(3); err != nil {
		return err
	}
	if err := conn.ArgString("MEMORY"); err != nil {
		return err
	}
	if err := conn.ArgString("USAGE"); err != nil {
		return err
	}
	return conn.Arg(key)
}

// single reads one key that is not of a source of names, when no reply is
// outstanding. there is false when there is none, and then nothing was given.
func (r *cutReader) single(section snapshot.Section, name string) (there bool, err error) {
	k := &keyInfo{name: []byte(name), section: section}
	err = r.askInfo(k)
	if err == nil {
		err = r.conn.Flush()
	}
	if err == nil {
		err = r.sortOut(k)
	}
	r.last = k.typ
	if err != nil || k.plan == planNone || k.plan == planGone {
		return false, r.keyFailed(k, err)
	}
	if k.plan == planPaged {
		return true, r.keyFailed(k, r.takePaged(k))
	}
	if err = r.askWhole(k); err == nil {
		err = r.conn.Flush()
	}
	if err == nil {
		err = r.takeWhole(k)
	}
	return true, r.keyFailed(k, err)
}

// meta pushes the job's own bookkeeping, as the bytes it is.
func (r *cutReader) meta() error {
	for _, name := range []string{r.job.Registry(), r.job.OperatorStates(), r.job.Assignment()} {
		if _, err := r.single(snapshot.SectionMeta, name); err != nil {
			return err
		}
	}
	return nil
}
