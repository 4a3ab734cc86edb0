package snapshot

import (
	"bytes"
	"errors"
	"fmt"
)

// errOrder is what order gives, wrapped.
var errOrder = errors.New("the keys of a layer come in the order of their hashes, each once")

// order holds the keys of one section of one layer to the order of
// CompareNames. The zero value is ready.
type order struct {
	any  bool
	hash uint64
	name []byte // the last one, its own copy
}

// next takes the next key's name.
func (o *order) next(name []byte) error {
	hash := NameHash(name)
	if o.any && (hash < o.hash || (hash == o.hash && bytes.Compare(name, o.name) <= 0)) {
		return fmt.Errorf("comes after key %s: %w", quote(o.name), errOrder)
	}
	o.any, o.hash = true, hash
	o.name = append(o.name[:0], name...)
	return nil
}

// reset begins another section.
func (o *order) reset() { o.any = false }
