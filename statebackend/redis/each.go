package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// eachPage is how many elements one page asks for. The server may give more.
const eachPage = 500

// Each calls fn for every element of the key, page by page.
func (b *Backend) Each(ctx context.Context, key string, t snapshot.KeyType, fn func(snapshot.Element) error) error {
	e := &eacher{b: b, ctx: ctx, key: key, fn: fn}
	switch t {
	case snapshot.TypeString:
		return e.string()
	case snapshot.TypeHash:
		return e.scan(2, hashElement, b.client.HScan)
	case snapshot.TypeList:
		return e.list()
	case snapshot.TypeSet:
		return e.scan(1, setElement, b.client.SScan)
	case snapshot.TypeZSet:
		return e.scan(2, zsetElement, b.client.ZScan)
	}
	return e.failed(fmt.Errorf("%w: elements of type %s", statebackend.ErrUnsupported, t))
}

type eacher struct {
	b   *Backend
	ctx context.Context
	key string
	fn  func(snapshot.Element) error
	// seen holds the identities that were given, once a key has more than
	// one page: a scan may repeat elements. 128 bits of a cryptographic
	// hash, so that memory doesn't grow with the elements' lengths.
	seen map[[16]byte]struct{}
}

func (e *eacher) failed(err error) error {
	return &statebackend.KeyError{Key: []byte(e.key), Op: "read", Err: e.b.mapError(err, "elements")}
}

func (e *eacher) string() error {
	v, err := e.b.client.Get(e.ctx, e.key).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return e.failed(err)
	}
	return e.fn(snapshot.Element{Size: uint64(len(v)), Value: v})
}

func (e *eacher) list() error {
	for from := int64(0); ; from += eachPage {
		items, err := e.b.client.LRange(e.ctx, e.key, from, from+eachPage-1).Result()
		if err != nil {
			return e.failed(err)
		}
		for _, item := range items {
			if err := e.fn(valueElement(item)); err != nil {
				return err
			}
		}
		if len(items) < eachPage {
			return nil
		}
	}
}

type scanFunc func(ctx context.Context, key string, cursor uint64, match string, count int64) *redis.ScanCmd

// scan pages through a hash, set or zset: width strings make one element, of
// which the first tells it from others.
func (e *eacher) scan(width int, element func(parts []string) (snapshot.Element, error), scan scanFunc) error {
	for cursor := uint64(0); ; {
		parts, next, err := scan(e.ctx, e.key, cursor, "", eachPage).Result()
		if err != nil {
			return e.failed(err)
		}
		if len(parts)%width != 0 {
			return e.failed(fmt.Errorf("a page of %d strings, %d for each element", len(parts), width))
		}
		if next != 0 && e.seen == nil {
			e.seen = make(map[[16]byte]struct{})
		}
		for ; len(parts) > 0; parts = parts[width:] {
			if e.repeated(parts[0]) {
				continue
			}
			el, err := element(parts[:width])
			if err != nil {
				return e.failed(err)
			}
			if err := e.fn(el); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func (e *eacher) repeated(identity string) bool {
	if e.seen == nil {
		return false
	}
	sum := sha256.Sum256([]byte(identity))
	id := [16]byte(sum[:16])
	if _, was := e.seen[id]; was {
		return true
	}
	e.seen[id] = struct{}{}
	return false
}

func valueElement(v string) snapshot.Element {
	return snapshot.Element{Size: uint64(len(v)), Value: []byte(v)}
}

func hashElement(parts []string) (snapshot.Element, error) {
	el := valueElement(parts[1])
	el.Field = []byte(parts[0])
	return el, nil
}

func setElement(parts []string) (snapshot.Element, error) { return valueElement(parts[0]), nil }

func zsetElement(parts []string) (snapshot.Element, error) {
	el := valueElement(parts[0])
	score, err := strconv.ParseFloat(parts[1], 64)
	if err != nil {
		return el, fmt.Errorf("score %q of a zset member: %w", parts[1], err)
	}
	el.Score = score
	return el, nil
}
