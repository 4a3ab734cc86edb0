package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"keyframe/snapshot"
	"keyframe/statebackend"
)

var _ statebackend.Cutter = (*Backend)(nil)

// Cut pushes the job's state into sink, as [statebackend.Cutter] says, by the
// best grade that the request and the server permit. The rights that it needs
// are listed in cutRights.
func (b *Backend) Cut(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	if err := checkRequest(req); err != nil {
		return statebackend.Cut{}, err
	}
	watched := &watchedSink{to: sink}
	var cut statebackend.Cut
	var err error
	if layers, ok := sink.(snapshot.LayerSink); ok {
		cut, err = b.cutInLayers(ctx, req, &watchedLayers{watched, layers})
	} else {
		cut, err = b.cutPlain(ctx, req, watched)
	}
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

func checkRequest(req statebackend.CutRequest) error {
	if err := req.Job.Validate(); err != nil {
		return err
	}
	switch req.Grade {
	case snapshot.GradeAuto, snapshot.GradePrecopy, snapshot.GradePaused, "":
	default:
		return fmt.Errorf("cut of job %q: %w: grade %q of a Redis store: want %s, %s or %s", req.Job.Root(),
			statebackend.ErrGrade, req.Grade, snapshot.GradeAuto, snapshot.GradePrecopy, snapshot.GradePaused)
	}
	switch {
	case req.MaxPause < 0:
		return fmt.Errorf("longest pause %v: want a positive duration, or 0 for the default", req.MaxPause)
	case req.MaxStall < 0:
		return fmt.Errorf("longest stall %v: want a positive duration, or 0 for the default", req.MaxStall)
	case req.MaxReadRate < 0:
		return fmt.Errorf("reading rate %d: want bytes per second, or 0 for no bound", req.MaxReadRate)
	}
	return nil
}

// Why a cut is no better than it is, where that isn't the trackers' to say.
const (
	whyPlain = "whoever takes this cut takes no layers"
	whyAsked = "grade paused was asked for"
)

// cutPlain is for a sink that takes one instant's keys straight on.
func (b *Backend) cutPlain(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink) (statebackend.Cut, error) {
	if req.Grade == snapshot.GradePrecopy {
		return statebackend.Cut{}, fmt.Errorf("%w: grade %s: %s", statebackend.ErrGrade, req.Grade, whyPlain)
	}
	return b.cutUntracked(ctx, req, sink, whyPlain)
}

// cutUntracked is a cut of grade paused on which none can stand.
func (b *Backend) cutUntracked(ctx context.Context, req statebackend.CutRequest, sink snapshot.Sink, why string) (statebackend.Cut, error) {
	cut, err := b.cutPaused(ctx, req, sink)
	cut.GradeReason = why
	if req.Since != "" {
		cut.FullReason = "writes are not tracked: " + why
		cut.Marked.Reason = why
	}
	return cut, err
}

// cutInLayers is for a sink that takes layers: the better grades need it.
func (b *Backend) cutInLayers(ctx context.Context, req statebackend.CutRequest, sink *watchedLayers) (statebackend.Cut, error) {
	if err := b.reach(ctx); err != nil {
		return statebackend.Cut{}, err
	}
	f, leave, err := b.tracks.enter(ctx, req.Job)
	if err != nil {
		return statebackend.Cut{}, err
	}
	defer leave()
	why, err := b.tracks.attach(ctx, req.Job, f)
	if err != nil {
		return statebackend.Cut{}, err
	}
	precopy := req.Grade != snapshot.GradePaused
	if f.follow == nil {
		return b.cutInstead(ctx, req, sink, why)
	}
	var cut statebackend.Cut
	if precopy {
		cut, err = b.cutPrecopy(ctx, req, f.follow, sink)
	} else {
		why = joinReasons(whyAsked, why)
		cut, err = b.cutPausedTracked(ctx, req, f.follow, sink)
	}
	if errors.Is(err, errFallBack) {
		return b.cutInstead(ctx, req, sink, joinReasons(why, withoutFallBack(err)))
	}
	cut.GradeReason = why
	return cut, err
}

// cutInstead is what is left where writes can't be followed.
func (b *Backend) cutInstead(ctx context.Context, req statebackend.CutRequest, sink *watchedLayers, why string) (statebackend.Cut, error) {
	if req.Grade == snapshot.GradePrecopy {
		return statebackend.Cut{}, fmt.Errorf("%w: grade %s: %s", statebackend.ErrGrade, req.Grade, why)
	}
	return b.cutUntracked(ctx, req, sink.watchedSink, why)
}

// reach tells of a server that can't be reached at once, and by its own error.
func (b *Backend) reach(ctx context.Context) error {
	conn, err := b.dial(ctx)
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return b.mapError(err, "connect")
	}
	return nil
}

func joinReasons(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// withoutFallBack tells why another grade was taken.
func withoutFallBack(err error) string {
	var t *trackingError
	if errors.As(err, &t) {
		return t.why
	}
	return err.Error()
}

// watchedSink remembers a sink's error, so that it is given back as it is.
type watchedSink struct {
	to  snapshot.Sink
	err error
}

var (
	_ snapshot.RunSink    = (*watchedSink)(nil)
	_ snapshot.ExpectSink = (*watchedSink)(nil)
)

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

// Expect passes on.
func (s *watchedSink) Expect(keys uint64) { snapshot.Expect(s.to, keys) }

// Part passes on.
func (s *watchedSink) Part(b []byte) error { return s.keep(s.to.Part(b)) }

// EndKey passes on.
func (s *watchedSink) EndKey(e snapshot.KeyEnd) error { return s.keep(s.to.EndKey(e)) }

// watchedLayers is a watchedSink of a sink that takes layers.
type watchedLayers struct {
	*watchedSink
	layers snapshot.LayerSink
}

var _ snapshot.LayerSink = (*watchedLayers)(nil)

// NextLayer passes on.
func (s *watchedLayers) NextLayer() error { return s.keep(s.layers.NextLayer()) }
