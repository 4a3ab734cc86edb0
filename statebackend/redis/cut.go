package redis

import (
	"context"
	"errors"
	"fmt"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var _ statebackend.Cutter = (*Backend)(nil)

// cutStrategy holds a job's state still in its own way, and pushes it through
// a cutReader, which is the same for all.
type cutStrategy func(b *Backend, ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error)

// strategyFor chooses how a cut of that grade is made. GradeAuto is the best
// that there is.
func strategyFor(g snapshot.Grade) (cutStrategy, error) {
	switch g {
	case snapshot.GradeAuto, snapshot.GradePaused, "":
		return (*Backend).cutPaused, nil
	}
	return nil, fmt.Errorf("%w: grade %q of a Redis store: want %s or %s",
		statebackend.ErrGrade, g, snapshot.GradeAuto, snapshot.GradePaused)
}

// Cut pushes the job's state into sink, as [statebackend.Cutter] says. The
// rights that it needs are listed in cutRights.
func (b *Backend) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	if err := req.Job.Validate(); err != nil {
		return statebackend.Cut{}, err
	}
	if req.MaxPause < 0 {
		return statebackend.Cut{}, fmt.Errorf("longest pause %v: want a positive duration, or 0 for the default", req.MaxPause)
	}
	strategy, err := strategyFor(req.Grade)
	if err != nil {
		return statebackend.Cut{}, err
	}
	watched := &watchedSink{to: sink}
	cut, err := strategy(b, ctx, req, watched)
	switch {
	case err == nil:
		return cut, nil
	case watched.err != nil:
		return statebackend.Cut{}, watched.err
	case ctx.Err() != nil && !errors.Is(err, statebackend.ErrPauseExpired):
		// What the connection said of being cut off is not what happened.
		return statebackend.Cut{}, fmt.Errorf("cut of job %q: %w (%v)", req.Job.Root(), context.Cause(ctx), err)
	}
	return statebackend.Cut{}, fmt.Errorf("cut of job %q: %w", req.Job.Root(), err)
}

// watchedSink remembers a sink's error, so that it is given back as it is.
type watchedSink struct {
	to  snapshot.Sink
	err error
}

var _ snapshot.RunSink = (*watchedSink)(nil)

func (s *watchedSink) keep(err error) error {
	if err != nil && s.err == nil {
		s.err = err
	}
	return err
}

// BeginKey passes on.
func (s *watchedSink) BeginKey(k snapshot.Key) error { return s.keep(s.to.BeginKey(k)) }

// Element passes on.
func (s *watchedSink) Element(e snapshot.Element) error { return s.keep(s.to.Element(e)) }

// Elements passes on.
func (s *watchedSink) Elements(run []snapshot.Element) error {
	return s.keep(snapshot.PushElements(s.to, run))
}

// Part passes on.
func (s *watchedSink) Part(b []byte) error { return s.keep(s.to.Part(b)) }

// EndKey passes on.
func (s *watchedSink) EndKey(e snapshot.KeyEnd) error { return s.keep(s.to.EndKey(e)) }
