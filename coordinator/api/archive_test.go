package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/snapshot"
	"keyframe/snapshot/archive"
	"keyframe/statebackend"
)

// fill writes n fields of different noise, each of size bytes, to a job.
func (s *service) fill(job string, n, size int) {
	s.t.Helper()
	s.write(job, 1, "v")
	key := testJob(job).Key().StateKey(statebackend.Scope{Group: "g", Topic: "in", Partition: 3, Operator: "count"}, "total")
	for i := range n {
		b := make([]byte, size)
		rand.Read(b) // never fails
		_, err := s.state.Do(s.t.Context(), statebackend.Command(statebackend.OpHSet, key, fmt.Sprintf("s:noise-%d", i), string(b)))
		require.NoError(s.t, err)
	}
}

func (s *service) download(job, which string) []byte {
	s.t.Helper()
	var b bytes.Buffer
	require.NoError(s.t, s.client.Download(s.t.Context(), "/jobs/"+Segment(job)+"/checkpoints/"+Segment(which)+"/archive", &b))
	return b.Bytes()
}

func (s *service) upload(b []byte, query string) (Operation, error) {
	s.t.Helper()
	var op Operation
	if err := s.client.Upload(s.t.Context(), "/import"+query, bytes.NewReader(b), int64(len(b)), &op); err != nil {
		return op, err
	}
	return s.client.Follow(s.t.Context(), op, nil)
}

func spooled(t *testing.T, s *service, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing of an import is left")
}

// An archive is larger than what other requests may have.
func TestAnArchiveGoesThroughTheAPIBothWays(t *testing.T) {
	dir := t.TempDir()
	s := newService(t, func(o *Options) { o.Spool = dir })
	s.fill("flights", 150, 20_000)
	s.apply("flights")
	s.write("twin", 1, "other")
	s.apply("twin")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{Name: "gold"})
	b := s.download("flights", "gold")
	require.Greater(t, len(b), 2*maxBody)
	a, err := archive.New(bytes.NewReader(b), int64(len(b)), "download")
	require.NoError(t, err)
	problems, err := a.Verify(t.Context())
	require.NoError(t, err)
	require.Empty(t, problems)

	op, err := s.upload(b, "?job=twin&note=visiting")
	require.NoError(t, err)
	require.Equal(t, coordinator.OpImport, op.Kind)
	require.Equal(t, "twin", op.Import.Job)
	d := call[Detail](s, http.MethodGet, "/jobs/twin/checkpoints/gold", nil)
	require.Equal(t, op.Import.Checkpoint, d.ID)
	require.Contains(t, d.Note, "visiting; imported from checkpoint 1")
	spooled(t, s, dir)
	again := s.download("twin", "gold")
	c, err := archive.New(bytes.NewReader(again), int64(len(again)), "download")
	require.NoError(t, err)
	require.Equal(t, archive.Fingerprint(a.Manifest()), archive.Fingerprint(c.Manifest()))
	require.Equal(t, a.Manifest().Chunks, c.Manifest().Chunks)
}

func TestWhatIsNoWholeArchiveIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := newService(t, func(o *Options) { o.Spool = dir })
	s.write("flights", 150, "v")
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	b := s.download("flights", "latest")
	flipped := bytes.Clone(b)
	flipped[300] ^= 2
	for what, body := range map[string][]byte{"cut short": b[:len(b)-9], "damaged": flipped, "no archive": []byte(`{"json": true}`), "empty": {}} {
		_, err := s.upload(body, "?job=flights")
		require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%s: %v", what, err)
		spooled(t, s, dir)
	}
	// A sender that breaks off leaves nothing.
	err := s.client.Upload(t.Context(), "/import", io.MultiReader(bytes.NewReader(b[:1000]), failing{}), int64(len(b)), new(Operation))
	require.Error(t, err)
	spooled(t, s, dir)
	require.Len(t, call[List[snapshot.Checkpoint]](s, http.MethodGet, "/jobs/flights/checkpoints", nil).Items, 1)
	for path, code := range map[string]fault.Code{
		"/jobs/nobody/checkpoints/latest/archive": fault.NoJob, "/jobs/flights/checkpoints/7/archive": fault.NoCheckpoint,
	} {
		require.Equal(t, code, fault.CodeOf(s.client.Download(t.Context(), path, io.Discard)))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }

// A store that turns out damaged in the middle of an export ends the answer:
// what was sent has no footer, and no client takes it for whole.
func TestAnExportThatFailsHalfWayIsNotTakenForWhole(t *testing.T) {
	s := newService(t)
	s.fill("flights", 150, 20_000)
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	m, err := s.c.Manifest(t.Context(), "flights", 1)
	require.NoError(t, err)
	require.Greater(t, len(m.Chunks), 2)
	get := func() ([]byte, error) {
		var b bytes.Buffer
		err := s.client.Download(t.Context(), "/jobs/flights/checkpoints/1/archive", &b)
		return b.Bytes(), err
	}
	last := m.Chunks[len(m.Chunks)-1].ID
	s.damaged.Store(last, true)
	b, err := get()
	require.Error(t, err)
	require.NotEmpty(t, b)
	_, err = archive.New(bytes.NewReader(b), int64(len(b)), "half")
	require.ErrorIs(t, err, archive.ErrUnfinished)
	s.damaged.Delete(last)
	b, err = get()
	require.NoError(t, err)
	_, err = archive.New(bytes.NewReader(b), int64(len(b)), "whole")
	require.NoError(t, err)
	// Before the first bytes it is an answer like any other.
	s.damaged.Store(m.Chunks[0].ID, true)
	b, err = get()
	require.Empty(t, b)
	require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
}

// Nobody who is gone keeps a checkpoint from being deleted.
func TestAClientThatGoesAwayLetsTheCheckpointGo(t *testing.T) {
	s := newService(t)
	s.fill("flights", 300, 40_000)
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	s.write("flights", 130, "small")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	ctx, cancel := context.WithCancel(t.Context())
	err := s.client.Download(ctx, "/jobs/flights/checkpoints/1/archive", writer(func(b []byte) (int, error) {
		cancel()
		return len(b), nil
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return s.c.DeleteCheckpoint(t.Context(), "flights", 1, true) == nil }, 10*time.Second, 5*time.Millisecond)
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
