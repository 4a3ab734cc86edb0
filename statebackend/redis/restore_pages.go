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

func (r *stagedReader) scanPages(verb string, key []byte, t snapshot.KeyType) error {
	for cursor := "0"; ; {
		if err := r.send(verb, key, cursor, "COUNT", strconv.Itoa(readPage)); err != nil {
			return err
		}
		if err := r.conn.Flush(); err != nil {
			return err
		}
		if _, err := r.header(resp.Array); err != nil {
			return err
		}
		h, err := r.header(resp.Bulk)
		if err != nil {
			return err
		}
		if err := r.hold(h.Len); err != nil {
			return err
		}
		cursor = string(r.field)
		if err := r.elements(t, 0); err != nil {
			return err
		}
		if cursor == "0" {
			return nil
		}
	}
}

func (r *stagedReader) rankPages(verb string, key []byte, t snapshot.KeyType, more ...string) error {
	for from := int64(0); ; from += readPage {
		words := append([]string{strconv.FormatInt(from, 10), strconv.FormatInt(from+readPage-1, 10)}, more...)
		if err := r.send(verb, key, words...); err != nil {
			return err
		}
		if err := r.conn.Flush(); err != nil {
			return err
		}
		was := r.d.Count() + uint64(len(r.large))
		if err := r.elements(t, from); err != nil {
			return err
		}
		if r.d.Count()+uint64(len(r.large))-was < readPage {
			return nil
		}
	}
}
