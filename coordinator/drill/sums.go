package drill

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

// Bounds of a comparison: keys are summed in buckets, and only those that need
// a look of their own are remembered.
const (
	buckets = 1 << 14
	// specialMost is how many keys that expire or are opaque are compared one
	// by one: about 100 bytes each. Above it an expiry is compared like the
	// rest, and a key that expires during the drill is a difference.
	specialMost = 500_000
	// shown is how many differences are told by name.
	shown = 20
)

// content is what a job's keys hold, whatever their order: for each bucket of
// names the sum over its keys of a hash of name, section, type, expiry, count
// and digest. Equal sums mean equal content but for an accident of 2^-64.
type content struct {
	job     statebackend.Job
	seed    maphash.Seed
	wanted  *[buckets]bool // only these buckets are remembered key by key; nil for none
	sums    [buckets]uint64
	keys    uint64 // that exist
	names   uint64 // of the index
	all     uint64 // elements
	special map[string]entry
	like    map[string]entry // nil, or the names that are special: the other side's
	listed  map[string]entry // of wanted buckets

	open bool
	key  snapshot.Key // Name is our own copy
	d    snapshot.Digester
	buf  []byte
}

// entry is what one key holds.
type entry struct {
	section  snapshot.Section
	typ      snapshot.KeyType
	expireAt int64
	count    uint64
	digest   uint64
	server   string // of an opaque key
}

var (
	_ snapshot.Sink    = (*content)(nil)
	_ snapshot.RunSink = (*content)(nil)
)

func newContent(job statebackend.Job, seed maphash.Seed) *content {
	return &content{job: job, seed: seed, special: map[string]entry{}, listed: map[string]entry{}}
}

// BeginKey implements snapshot.Sink. What a restore into a scratch job doesn't
// bring is left out: sources, the assignment, and keys under names that aren't
// the job's.
func (c *content) BeginKey(k snapshot.Key) error {
	state := k.Section == snapshot.SectionKeyed || k.Section == snapshot.SectionOperator
	if state {
		c.names++
	}
	c.open = state && c.job.Owns(k.Name) ||
		k.Section == snapshot.SectionMeta && string(k.Name) != c.job.Assignment() && k.Type != snapshot.TypeMissing
	if !c.open {
		return nil
	}
	name := append(c.key.Name[:0], k.Name...)
	c.key = k
	c.key.Name = name
	c.d.Reset(k.Type)
	return nil
}

// Element implements snapshot.Sink.
func (c *content) Element(e snapshot.Element) error {
	if c.open {
		c.d.Element(e)
	}
	return nil
}

// Elements implements snapshot.RunSink.
func (c *content) Elements(run []snapshot.Element) error {
	for i := range run {
		if c.open {
			c.d.Element(run[i])
		}
	}
	return nil
}

// Part implements snapshot.Sink.
func (c *content) Part(b []byte) error {
	if c.open {
		c.d.Part(b)
	}
	return nil
}

// EndKey implements snapshot.Sink.
func (c *content) EndKey(end snapshot.KeyEnd) error {
	if !c.open {
		return nil
	}
	e := entry{section: c.key.Section, typ: c.key.Type, expireAt: c.key.ExpireAt, count: c.d.Count(), digest: c.d.Sum(), server: c.key.Server}
	if end.Expired || e.typ == snapshot.TypeMissing {
		e = entry{section: e.section, typ: snapshot.TypeMissing, expireAt: e.expireAt}
	}
	if e.typ != snapshot.TypeMissing {
		c.keys++
		c.all += e.count
	}
	c.add(e)
	return nil
}

// add books the open key.
func (c *content) add(e entry) {
	name := c.key.Name
	if c.apart(e) {
		c.special[string(name)] = e
		return
	}
	at := maphash.Bytes(c.seed, name) % buckets
	if c.wanted != nil && c.wanted[at] {
		c.listed[string(name)] = e
	}
	b := append(c.buf[:0], byte(e.section), byte(e.typ))
	for _, n := range []uint64{uint64(e.expireAt), e.count, e.digest} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	c.buf = append(b, name...)
	c.sums[at] += maphash.Bytes(c.seed, c.buf)
}

// apart tells whether the open key is compared one by one.
func (c *content) apart(e entry) bool {
	if c.like != nil {
		_, ok := c.like[string(c.key.Name)]
		return ok
	}
	return (e.expireAt != 0 || e.typ == snapshot.TypeOpaque) && len(c.special) < specialMost
}

// differing gives the buckets whose sums differ; none when all are equal.
func (c *content) differing(o *content) (which *[buckets]bool, n int) {
	which = new([buckets]bool)
	for i := range c.sums {
		if c.sums[i] != o.sums[i] {
			which[i] = true
			n++
		}
	}
	return which, n
}

// say describes an entry for people.
func (e entry) say() string {
	if e.typ == snapshot.TypeMissing {
		if e.section.Valid() {
			return "a name in the index without a key"
		}
		return "nothing"
	}
	text := fmt.Sprintf("a %s of %d elements with digest %016x", e.typ, e.count, e.digest)
	if e.expireAt != 0 {
		text += fmt.Sprintf(" that expires at %d ms", e.expireAt)
	}
	return text
}
