package cut

import (
	"context"
	"errors"

	"keyframe/snapshot"
)

var errNoKey = errors.New("the cut pushes content before any key")

// sink is what a cut pushes into: a counter and an encoder, which are made
// when it is known whether a base comes or only what changed over one. A cut
// that begins with NextLayer is the latter.
type sink struct {
	ctx      context.Context
	w        snapshot.ChunkWriter
	base     *Base // that the cut was asked to stand on, nil for none
	tally    func() tally
	names    uint64 // about as many are to come in a base
	progress progress

	over  bool
	count *counter
	enc   *snapshot.Encoder
}

var (
	_ snapshot.LayerSink  = (*sink)(nil)
	_ snapshot.RunSink    = (*sink)(nil)
	_ snapshot.ExpectSink = (*sink)(nil)
)

// begin makes the stages behind.
func (s *sink) begin(over bool) {
	s.over = over
	s.enc = snapshot.NewEncoder(s.ctx, s.w, snapshot.EncoderOptions{Over: over})
	var d *draft
	if over {
		d = draftOver(s.base.ledger)
	} else {
		d = newDraft(s.tally())
		d.expect(s.names)
	}
	s.count = newCounter(s.enc, d, s.progress)
}

// Expect implements snapshot.ExpectSink. The server knows better than the
// checkpoint before, and of a job's first one it alone knows.
func (s *sink) Expect(keys uint64) { s.names = keys }

// NextLayer implements snapshot.LayerSink.
func (s *sink) NextLayer() error {
	switch {
	case s.count != nil:
		return s.count.NextLayer()
	case s.base == nil:
		return errors.New("the cut brings only what has changed, and was not asked to")
	}
	s.begin(true)
	s.count.enter(PhaseRounds)
	return nil
}

// BeginKey implements snapshot.Sink.
func (s *sink) BeginKey(k snapshot.Key) error {
	if s.count == nil {
		s.begin(false)
	}
	return s.count.BeginKey(k)
}

// Element implements snapshot.Sink.
func (s *sink) Element(e snapshot.Element) error {
	if s.count == nil {
		return errNoKey
	}
	return s.count.Element(e)
}

// Elements implements snapshot.RunSink.
func (s *sink) Elements(run []snapshot.Element) error {
	if s.count == nil {
		return errNoKey
	}
	return s.count.Elements(run)
}

// Part implements snapshot.Sink.
func (s *sink) Part(b []byte) error {
	if s.count == nil {
		return errNoKey
	}
	return s.count.Part(b)
}

// EndKey implements snapshot.Sink.
func (s *sink) EndKey(e snapshot.KeyEnd) error {
	if s.count == nil {
		return errNoKey
	}
	return s.count.EndKey(e)
}

// close ends the encoding.
func (s *sink) close() (snapshot.Summary, error) {
	if s.count == nil { // nothing was pushed
		s.begin(false)
	}
	s.count.enter(PhaseStore)
	return s.enc.Close()
}
