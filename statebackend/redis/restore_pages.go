package redis

import (
	"fmt"
	"strconv"

	"keyframe/snapshot"
	"keyframe/statebackend/redis/resp"
)

// paged reads a large key page by page, one outstanding: a whole reply would
// hold up the server's other clients.
func (r *stagedReader) paged(key []byte, t snapshot.KeyType) (summary, error) {
	r.d.Reset(t)
	r.large = r.large[:0]
	var err error
	switch t {
	case snapshot.TypeHash:
		err = r.scanPages("HSCAN", key, t)
	case snapshot.TypeSet:
		err = r.scanPages("SSCAN", key, t)
	case snapshot.TypeList:
		err = r.rankPages("LRANGE", key, t)
	case snapshot.TypeZSet:
		err = r.rankPages("ZRANGE", key, t, "WITHSCORES")
	default:
		err = fmt.Errorf("pages of a key of %s", t)
	}
	if err != nil {
		return summary{}, err
	}
	return r.finish(key, summary{count: r.d.Count(), digest: r.d.Sum()})
}

// aheadBytes is up to what size of the last page the next one is asked for
// before this one is read, so that server and reader work side by side. Larger
// ones would only fill the server's output buffer.
const aheadBytes = 1 << 20

func (r *stagedReader) scanPages(verb string, key []byte, t snapshot.KeyType) error {
	if err := r.askPage(verb, key, "0", "COUNT", strconv.Itoa(readPage)); err != nil {
		return err
	}
	for ahead := false; ; ahead = r.page <= aheadBytes {
		r.page = 0
		cursor, err := r.cursor()
		if err != nil {
			return err
		}
		ask := func() error { return r.askPage(verb, key, cursor, "COUNT", strconv.Itoa(readPage)) }
		if ahead && cursor != "0" {
			if err := ask(); err != nil {
				return err
			}
		}
		if err := r.elements(t, 0); err != nil || cursor == "0" {
			return err
		}
		if !ahead {
			if err := ask(); err != nil {
				return err
			}
		}
	}
}

// cursor reads the head of a scan's reply: its two parts, and the cursor.
func (r *stagedReader) cursor() (string, error) {
	if _, err := r.header(resp.Array); err != nil {
		return "", err
	}
	h, err := r.header(resp.Bulk)
	if err != nil {
		return "", err
	}
	if err := r.hold(h.Len); err != nil {
		return "", err
	}
	return string(r.field), nil
}

func (r *stagedReader) askPage(verb string, key []byte, words ...string) error {
	if err := r.send(verb, key, words...); err != nil {
		return err
	}
	return r.conn.Flush()
}

func (r *stagedReader) rankPages(verb string, key []byte, t snapshot.KeyType, more ...string) error {
	ask := func(from int64) error {
		words := []string{strconv.FormatInt(from, 10), strconv.FormatInt(from+readPage-1, 10)}
		return r.askPage(verb, key, append(words, more...)...)
	}
	if err := ask(0); err != nil {
		return err
	}
	ahead := false
	for from := int64(0); ; from += readPage {
		if ahead {
			if err := ask(from + readPage); err != nil {
				return err
			}
		}
		r.page = 0
		was := r.d.Count() + uint64(len(r.large))
		if err := r.elements(t, from); err != nil {
			return err
		}
		full := r.d.Count()+uint64(len(r.large))-was == readPage
		switch {
		case !full && ahead: // the one that was asked for has nothing
			return r.elements(t, from+readPage)
		case !full:
			return nil
		case !ahead:
			if err := ask(from + readPage); err != nil {
				return err
			}
		}
		ahead = r.page <= aheadBytes
	}
}
