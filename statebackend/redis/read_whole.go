package redis

import (
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// askWhole sends the command whose reply is the whole content of a key.
func (r *cutReader) askWhole(k *keyInfo) error {
	switch k.typ {
	case snapshot.TypeString:
		return sendKey(r.conn, k.name, "GET")
	case snapshot.TypeHash:
		return sendKey(r.conn, k.name, "HGETALL")
	case snapshot.TypeList:
		return sendKey(r.conn, k.name, "LRANGE", "0", "-1")
	case snapshot.TypeSet:
		return sendKey(r.conn, k.name, "SMEMBERS")
	case snapshot.TypeZSet:
		return sendKey(r.conn, k.name, "ZRANGE", "0", "-1", "WITHSCORES")
	}
	return sendKey(r.conn, k.name, "DUMP")
}

// takeWhole reads the reply to askWhole into the sink.
func (r *cutReader) takeWhole(k *keyInfo) error {
	switch k.typ {
	case snapshot.TypeHash, snapshot.TypeList, snapshot.TypeSet, snapshot.TypeZSet:
		return r.takeMany(k)
	}
	return r.takeOne(k)
}

func (r *cutReader) takeOne(k *keyInfo) error {
	h, err := r.conn.Next()
	switch {
	case err != nil:
		return err
	case h.Err != nil:
		return r.unlessChanged(k, h.Err)
	case h.Kind == resp.Bulk && h.Nil():
		return r.vanished(k)
	case h.Kind != resp.Bulk:
		return fmt.Errorf("%w: %s where a bulk is due", resp.ErrProtocol, h.Kind)
	}
	if err := r.begin(k, 1); err != nil {
		return err
	}
	if err := r.value(nil, 0, h); err != nil {
		return err
	}
	return r.end(k, 1, 1)
}

func (r *cutReader) takeMany(k *keyInfo) error {
	n, err := r.array()
	if err != nil {
		return r.unlessChanged(k, err)
	}
	if n == 0 {
		return r.vanished(k)
	}
	count := n / width(k.typ)
	if err := r.begin(k, count); err != nil {
		return err
	}
	got, err := r.elements(k, n, 0, nil)
	if err != nil {
		return err
	}
	return r.end(k, count, got)
}

// width is how many bulks one element of a type takes in a reply.
func width(t snapshot.KeyType) int64 {
	if t == snapshot.TypeHash || t == snapshot.TypeZSet {
		return 2
	}
	return 1
}

// checkEvery is how many elements are read between looks at the clock.
const checkEvery = 1024

// elements reads the n bulks of an array as elements of k and gives how many
// went to the sink. rank is the first one's rank. Those that are in seen
// already are left out; nil takes all.
func (r *cutReader) elements(k *keyInfo, n, rank int64, seen *nameSet) (got int64, err error) {
	if n%width(k.typ) != 0 {
		return 0, fmt.Errorf("%w: a %s was answered with %d parts", resp.ErrProtocol, k.typ, n)
	}
	read := r.member
	switch k.typ {
	case snapshot.TypeHash:
		read = r.pair
	case snapshot.TypeZSet:
		read = r.scored
	}
	w := width(k.typ)
	for done, looked := int64(0), int64(0); done < n; {
		if done-looked >= checkEvery*w {
			looked = done
			if err := r.check(); err != nil {
				return got, err
			}
		}
		took, given, err := r.run(k, n-done, seen)
		got += given
		done += took
		if err != nil {
			return got, err
		}
		if took > 0 {
			continue
		}
		one, err := read(k, rank+done/w, seen)
		if err != nil {
			return got, err
		}
		if done += w; one {
			got++
		}
	}
	return got, nil
}

// pair reads a hash's field and value.
func (r *cutReader) pair(_ *keyInfo, _ int64, seen *nameSet) (given bool, err error) {
	field, err := r.field()
	if err != nil {
		return false, err
	}
	h, err := r.bulk()
	if err != nil {
		return false, err
	}
	if seen != nil && !seen.add(field, uint64(len(field))) {
		return false, r.conn.Skip()
	}
	return true, r.value(field, 0, h)
}

// member reads a list's item or a set's member. Of a member longer than one
// part, its beginning and its length tell it from others: two that agree in
// both are taken for one, and the count then fails the cut.
func (r *cutReader) member(_ *keyInfo, _ int64, seen *nameSet) (given bool, err error) {
	h, err := r.bulk()
	if err != nil {
		return false, err
	}
	first, err := r.nextPart()
	if err != nil {
		return false, err
	}
	if seen != nil && !seen.add(first, uint64(h.Len)) {
		return false, r.conn.Skip()
	}
	return true, r.valueFrom(snapshot.Element{Size: uint64(h.Len), Value: first})
}

// scored reads a zset's member and its score, which comes behind it: a member
// longer than one part is left, and read again when its score is known.
func (r *cutReader) scored(k *keyInfo, rank int64, seen *nameSet) (given bool, err error) {
	h, err := r.bulk()
	if err != nil {
		return false, err
	}
	if h.Len > snapshot.MaxPart && !r.loose {
		return r.scoredHuge(k, rank, h.Len)
	}
	if h.Len > snapshot.MaxName {
		return false, fmt.Errorf("%w: a member of %d bytes can't be read while its writers run (up to %d can): only a cut of grade %s can read it",
			statebackend.ErrUnsupported, h.Len, snapshot.MaxName, snapshot.GradePaused)
	}
	r.part = sized(r.part, int(h.Len))
	if _, err = r.conn.ReadBulk(r.part); err != nil {
		return false, err
	}
	score, err := r.score()
	if err != nil || seen != nil && !seen.add(r.part, uint64(len(r.part))) {
		return false, err
	}
	return true, r.split(snapshot.Element{Score: score, Size: uint64(h.Len), Value: r.part})
}

// split gives an element whose value is in memory, however long it is.
func (r *cutReader) split(e snapshot.Element) error {
	rest := e.Value
	e.Value = rest[:min(len(rest), snapshot.MaxPart)]
	err := r.sink.Element(e)
	for rest = rest[len(e.Value):]; err == nil && len(rest) > 0; {
		n := min(len(rest), snapshot.MaxPart)
		err = r.sink.Part(rest[:n])
		rest = rest[n:]
	}
	return err
}

// scoredHuge leaves the open bulk, a long member, and reads it by its rank.
func (r *cutReader) scoredHuge(k *keyInfo, rank, size int64) (given bool, err error) {
	if err := r.conn.Skip(); err != nil {
		return false, err
	}
	score, err := r.score()
	if err != nil {
		return false, err
	}
	return r.hugeMember(k, rank, score, size)
}

// hugeMember reads one zset member by its rank on the second connection. It
// gives none when the key has expired since; the count then tells.
func (r *cutReader) hugeMember(k *keyInfo, rank int64, score float64, size int64) (given bool, err error) {
	conn, err := r.side()
	if err != nil {
		return false, err
	}
	at := fmt.Sprint(rank)
	if err := sendKey(conn, k.name, "ZRANGE", at, at); err != nil {
		return false, err
	}
	if err := conn.Flush(); err != nil {
		return false, err
	}
	aside := stream{conn: conn, sink: r.sink, check: r.check, part: r.part}
	n, err := aside.array()
	if err != nil || n == 0 {
		return false, err
	}
	h, err := aside.bulk()
	if err != nil {
		return false, err
	}
	if n != 1 || h.Len != size {
		return false, fmt.Errorf("%w: member of rank %d had %d bytes, and then %d", statebackend.ErrChanged, rank, size, h.Len)
	}
	return true, aside.value(nil, score, h)
}
