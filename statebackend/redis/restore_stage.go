package redis

import (
	"fmt"
	"strconv"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// Bounds of one staging command.
const (
	stageElements = 500
	stageBytes    = 1 << 20
	// stageWhole is the largest value that is gathered with others; longer
	// ones are streamed in a command of their own.
	stageWhole = 64 << 10
	// stageReserve is how many numbers are announced at a time.
	stageReserve = 4096
)

// staging is one restore under way.
type staging struct {
	b       *Backend
	req     statebackend.RestoreRequest
	lease   statebackend.Lease // of the one who began
	prefix  string
	version string
	pipe    *stagePipe
	release func()

	markJSON string
	reserved uint64        // numbers announced for k…
	extras   uint64        // numbers in use for x…
	keys     uint64        // staged so far: k0 to k{keys-1}
	odds     uint64        // of these, keys with an oddEntry
	mapped   batch         // names of the mapping that are not sent yet
	odd      batch         // odd entries that are not sent yet
	payload  payload       // of the key that is being staged
	check    payloadReader // reads it again
	plain    bool          // payloads are not used
	warning  string        // why they are not, "" when they are
	unproved proofs        // what is staged and not yet compared
	hash     codedHash     // the bookkeeping hash that is being staged
	names    codedNames    // of the mapping and the index, not sent yet
	index    stagedNames
	absent   stagedNames       // names of the index without a key
	lapsed   stagedNames       // names of the index whose key had expired
	expired  uint64            // all keys that had, of any section
	registry bool              // the checkpoint has a schema registry
	modes    bool              // the checkpoint has operator state modes
	sources  map[string]uint64 // source keys that are staged, with their number

	cur    stagedKey
	result *statebackend.FlipResult
	ended  bool
}

var _ statebackend.Staging = (*staging)(nil)

// stagedKey is the key that is being staged.
type stagedKey struct {
	open     bool
	skip     skipReason
	key      snapshot.Key // its Name is our own copy
	target   []byte       // k…
	verb     string
	elements uint64
	bytes    uint64 // of the elements that came
	stored   int64  // elements that the server should have (list length)
	gather   bool   // elements go into the payload
	pending  batch
	filler   []byte // a member that isn't the checkpoint's, see keepSign
	left     uint64 // bytes of a streamed value that are to come
	streamed sentCommand
}

func newStaging(b *Backend, conn *resp.Conn, req statebackend.RestoreRequest) *staging {
	return &staging{
		b: b, req: req, prefix: req.Job.Staging(req.ID), plain: req.Plain,
		pipe:    &stagePipe{b: b, conn: conn, prefix: req.Job.Staging(req.ID), reader: stagedReader{conn: conn}},
		sources: make(map[string]uint64),
		index:   stagedNames{key: stageIndex}, absent: stagedNames{key: stageAbsent}, lapsed: stagedNames{key: stageExpire},
	}
}

// Expired is how many keys were not staged because they had expired.
func (s *staging) Expired() uint64 { return s.expired }

// BeginKey opens a key.
func (s *staging) BeginKey(k snapshot.Key) error {
	crashpoint.At(crashpoint.StageKey)
	if err := s.usable(); err != nil {
		return err
	}
	if s.cur.open {
		return s.fail(fmt.Errorf("key %q begins before key %q has ended", k.Name, s.cur.key.Name))
	}
	k.Name = append([]byte(nil), k.Name...)
	pending := s.cur.pending
	s.cur = stagedKey{open: true, key: k, pending: pending.emptied()}
	if err := s.checkKey(k); err != nil {
		return s.fail(&statebackend.KeyError{Key: k.Name, Op: "stage", Err: err})
	}
	if s.cur.skip = s.skips(k); s.cur.skip != skipNot {
		return nil
	}
	s.cur.verb = stageVerbs[k.Type]
	s.cur.target = numbered(s.prefix+stageKeys, s.keys)
	if err := s.gather(k); err != nil {
		return err
	}
	if s.keys < s.reserved {
		return nil
	}
	s.reserved = s.keys + stageReserve
	return s.announce(stageNext, s.reserved)
}

// announce tells the server that numbers below n may be in use, before the
// first of them is.
func (s *staging) announce(name string, n uint64) error {
	return s.pipe.command(sentCommand{verb: "SET", ok: true}, []byte(s.prefix+name), strconv.AppendUint(nil, n, 10))
}

var stageVerbs = map[snapshot.KeyType]string{
	snapshot.TypeString: "SET", snapshot.TypeHash: "HSET", snapshot.TypeList: "RPUSH",
	snapshot.TypeSet: "SADD", snapshot.TypeZSet: "ZADD", snapshot.TypeOpaque: "RESTORE",
}

// Element takes an element of the open key.
func (s *staging) Element(e snapshot.Element) error {
	if err := s.usable(); err != nil {
		return err
	}
	c := &s.cur
	if !c.open || c.left > 0 || uint64(len(e.Value)) > e.Size {
		return s.fail(fmt.Errorf("element of %d bytes of key %q is out of order: %d bytes of the last one are missing", e.Size, c.key.Name, c.left))
	}
	c.elements++
	if err := checkPendingItem(c.key, e); err != nil {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: err})
	}
	if c.skip != skipNot {
		c.left = e.Size - uint64(len(e.Value))
		return nil
	}
	if single(c.key.Type) && c.elements > 1 {
		return s.fail(&statebackend.KeyError{Key: c.key.Name, Op: "stage", Err: fmt.Errorf("a %s with a second element", c.key.Type)})
	}
	c.bytes += e.Size + uint64(len(e.Field))
	negative := c.key.Type == snapshot.TypeZSet && isNegativeZero(e.Score)
	switch {
	case c.gather && s.hash.on && s.hash.fits(e):
		s.hash.add(e)
		return nil
	case c.gather && !s.hash.on && !negative && s.payload.fits(e):
		s.payload.element(c.key.Type == snapshot.TypeHash, e)
		c.left = e.Size - uint64(len(e.Value))
		return nil
	}
	if err := s.leavePayload(); err != nil {
		return err
	}
	if negative {
		if err := s.keepSign(); err != nil {
			return err
		}
	}
	return s.plainElement(e)
}

// plainElement sends an element with others in one command, or alone.
func (s *staging) plainElement(e snapshot.Element) error {
	c := &s.cur
	if e.Size > stageWhole || uint64(len(e.Value)) < e.Size || single(c.key.Type) {
		return s.stream(e)
	}
	switch c.key.Type {
	case snapshot.TypeHash:
		c.pending.add(e.Field)
	case snapshot.TypeZSet:
		c.pending.add(scoreText(e.Score))
	}
	c.pending.add(e.Value)
	c.pending.items++
	if c.pending.items >= stageElements || len(c.pending.bytes) >= stageBytes {
		return s.flushElements()
	}
	return nil
}

func single(t snapshot.KeyType) bool {
	return t == snapshot.TypeString || t == snapshot.TypeOpaque
}

// scoreText is the shortest decimal that the server reads back as the same
// double; it reads inf, -inf and -0 too.
func scoreText(score float64) []byte {
	return strconv.AppendFloat(nil, score, 'g', -1, 64)
}

// Part takes the next bytes of a long value.
func (s *staging) Part(b []byte) error {
	if err := s.usable(); err != nil {
		return err
	}
	c := &s.cur
	if uint64(len(b)) > c.left {
		return s.fail(fmt.Errorf("part of %d bytes of key %q: %d are missing", len(b), c.key.Name, c.left))
	}
	c.left -= uint64(len(b))
	switch {
	case c.skip != skipNot:
		return nil
	case c.gather:
		s.payload.part(b)
		return nil
	}
	if err := s.pipe.write(b); err != nil {
		return err
	}
	if c.left == 0 {
		return s.pipe.end(c.streamed)
	}
	return nil
}

// stream writes one element in a command of its own, its value as it comes.
func (s *staging) stream(e snapshot.Element) error {
	if err := s.flushElements(); err != nil {
		return err
	}
	s.cur.stored++
	cmd, args := s.streamCommand(e)
	if err := s.pipe.begin(2+len(args), cmd.verb); err != nil {
		return err
	}
	for _, a := range args {
		if err := s.pipe.arg(a); err != nil {
			return err
		}
	}
	if err := s.pipe.header(e.Size); err != nil {
		return err
	}
	if err := s.pipe.write(e.Value); err != nil {
		return err
	}
	if s.cur.left = e.Size - uint64(len(e.Value)); s.cur.left == 0 {
		return s.pipe.end(cmd)
	}
	s.cur.streamed = cmd
	return nil
}

// streamCommand gives a command with its arguments before the value.
func (s *staging) streamCommand(e snapshot.Element) (sentCommand, [][]byte) {
	c := &s.cur
	cmd := sentCommand{key: c.key.Name, verb: c.verb, size: int64(len(c.target)+len(e.Field)) + int64(e.Size), want: 1}
	args := [][]byte{c.target}
	switch c.key.Type {
	case snapshot.TypeString:
		cmd.ok = true
	case snapshot.TypeOpaque:
		cmd.ok = true
		cmd.hint = fmt.Sprintf("the payload of type %q was made by server version %s, this server is %s", c.key.TypeName, c.key.Server, s.version)
		args = append(args, []byte("0"))
	case snapshot.TypeHash:
		args = append(args, e.Field)
	case snapshot.TypeZSet:
		args = append(args, scoreText(e.Score))
	case snapshot.TypeList:
		cmd.want = c.stored
	}
	return cmd, args
}

// flushElements sends the gathered elements as one command.
func (s *staging) flushElements() error {
	c := &s.cur
	if c.pending.items == 0 {
		return nil
	}
	c.stored += int64(c.pending.items)
	want := int64(c.pending.items)
	if c.key.Type == snapshot.TypeList {
		want = c.stored
	}
	return s.sendBatch(sentCommand{key: c.key.Name, verb: c.verb, want: want}, c.target, &c.pending)
}

// sendBatch sends verb target args… and empties the batch.
func (s *staging) sendBatch(cmd sentCommand, target []byte, b *batch) error {
	if err := s.pipe.begin(2+len(b.ends), cmd.verb); err != nil {
		return err
	}
	if err := s.pipe.arg(target); err != nil {
		return err
	}
	from := 0
	for _, to := range b.ends {
		if err := s.pipe.arg(b.bytes[from:to]); err != nil {
			return err
		}
		from = to
	}
	cmd.size = int64(len(target) + len(b.bytes))
	*b = b.emptied()
	return s.pipe.end(cmd)
}
