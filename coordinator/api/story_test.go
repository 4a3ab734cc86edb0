package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator"
	"keyframe/coordinator/fault"
	"keyframe/coordinator/rescaler"
	"keyframe/coordinator/restore"
	"keyframe/keygroups"
	"keyframe/snapshot"
)

func TestTheWholeStoryOverTheAPI(t *testing.T) {
	s := newService(t)
	s.write("flights", 150, "old")
	s.apply("flights")
	require.Equal(t, Version{Version: "1.2.3-test", Go: versionOf("").Go, Format: snapshot.FormatVersion}, call[Version](s, "GET", "/version", nil))

	cp := s.done("/jobs/flights/checkpoints", CreateCheckpoint{Note: "first"}).Checkpoint
	require.Equal(t, snapshot.ID(1), cp.ID)
	require.Equal(t, snapshot.KindCheckpoint, cp.Kind)
	sp := s.done("/jobs/flights/checkpoints", CreateCheckpoint{Name: "before it", Grade: snapshot.GradeSnapshot}).Checkpoint
	require.Equal(t, snapshot.KindSavepoint, sp.Kind)

	history := call[List[snapshot.Checkpoint]](s, "GET", "/jobs/flights/checkpoints", nil).Items
	require.Equal(t, []snapshot.ID{1, 2}, []snapshot.ID{history[0].ID, history[1].ID})
	for _, which := range []string{"2", "latest", "before%20it"} {
		d := call[Detail](s, "GET", "/jobs/flights/checkpoints/"+which, nil)
		require.Equal(t, snapshot.ID(2), d.ID, which)
		require.EqualValues(t, 1500, d.Elements)
		require.Equal(t, 10, d.KeyGroups.MaxParallelism)
		require.NotEmpty(t, d.States)
	}
	require.True(t, call[snapshot.Checkpoint](s, "POST", "/jobs/flights/checkpoints/1/pin", nil).Pinned)
	refusal{"DELETE", "/v1/jobs/flights/checkpoints/1", "", nil, 409, fault.Refused, "pinned"}.check(t, s)
	require.False(t, call[snapshot.Checkpoint](s, "POST", "/jobs/flights/checkpoints/1/unpin", nil).Pinned)
	require.True(t, s.done("/jobs/flights/checkpoints/before%20it/verify", nil).Verify.OK)

	s.write("flights", 170, "new")
	plan := call[restore.Plan](s, "POST", "/jobs/flights/restore/plan", Restore{Checkpoint: "latest"})
	require.Equal(t, snapshot.ID(2), plan.Checkpoint)
	res := s.done("/jobs/flights/restore", Restore{Checkpoint: "before it"}).Restore
	require.Equal(t, `"old-7"`, s.read("flights", 3, 7))
	require.Empty(t, s.read("flights", 3, 160))
	refusal{"POST", "/v1/jobs/flights/undo?checkpoint=99", "", nil, 409, fault.Refused, "checkpoint 3 by now, not 99"}.check(t, s)
	undone := s.done("/jobs/flights/undo?checkpoint="+res.Undo.String(), nil).Restore
	require.Equal(t, res.Undo, undone.Checkpoint)
	require.Equal(t, `"new-160"`, s.read("flights", 3, 160))

	change := call[rescaler.Plan](s, "POST", "/jobs/flights/rescale/plan", Rescale{Parallelism: 3})
	require.Len(t, change.Ranges, 3)
	require.Equal(t, 3, s.done("/jobs/flights/rescale", Rescale{Parallelism: 3}).Rescale.To)
	require.Equal(t, 3, call[Job](s, "GET", "/jobs/flights", nil).Parallelism)

	require.True(t, call[Job](s, "POST", "/jobs/flights/pause", nil).Paused)
	require.False(t, call[Job](s, "POST", "/jobs/flights/resume", nil).Paused)
	stats := call[snapshot.StoreStats](s, "GET", "/store", nil)
	require.Equal(t, 1, stats.Jobs)
	require.Positive(t, stats.LiveBytes)
	require.True(t, call[StoreCheck](s, "POST", "/store/verify", nil).OK)

	kinds := map[coordinator.EventKind]int{}
	for _, e := range call[List[coordinator.Event]](s, "GET", "/events?job=flights", nil).Items {
		kinds[e.Kind]++
	}
	require.Equal(t, 2, kinds[coordinator.EventRestoreCompleted])
	require.Equal(t, 1, kinds[coordinator.EventRescaleCompleted])
	require.Empty(t, call[List[coordinator.Event]](s, "GET", "/events?job=other", nil).Items)
	ops := call[List[Operation]](s, "GET", "/operations?job=flights", nil).Items
	require.Equal(t, coordinator.OpRescale, ops[0].Kind, "newest first")

	call[none](s, "DELETE", "/jobs/flights/checkpoints/1?force=true", nil)
	call[none](s, "DELETE", "/jobs/flights?purge=true", nil)
	refusal{"GET", "/v1/jobs/flights", "", nil, 404, fault.NoJob, "flights"}.check(t, s)
	refusal{"GET", "/v1/jobs/flights/checkpoints", "", nil, 404, fault.NoJob, "flights"}.check(t, s)
	require.Equal(t, `"new-160"`, s.read("flights", 3, 160), "its state is left alone")
}

func TestEmptyListsAreListsInJSON(t *testing.T) {
	s := newService(t)
	for _, path := range []string{"/v1/jobs", "/v1/operations", "/v1/events"} {
		require.JSONEq(t, `{"items":[]}`, s.ask("GET", path, "").body, path)
	}
	s.write("flights", 130, "v")
	s.apply("flights")
	require.JSONEq(t, `{"items":[]}`, s.ask("GET", "/v1/jobs/flights/checkpoints", "").body)
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	for _, path := range []string{"/v1/jobs/flights", "/v1/jobs/flights/checkpoints", "/v1/jobs/flights/checkpoints/1", "/v1/operations", "/v1/events"} {
		require.NotContains(t, s.ask("GET", path, "").body, "null", path)
	}
	for path, body := range map[string]string{"restore": `{}`, "rescale": `{"parallelism":2}`} {
		a := s.ask("POST", "/v1/jobs/flights/"+path+"/plan", body)
		var plan map[string]any
		require.NoError(t, json.Unmarshal([]byte(a.body), &plan))
		for name, v := range plan {
			require.False(t, v == nil && name != "assignment", "%s of %s is null", name, path)
		}
	}
}

// strangeNames are names that a path, a pattern or a shell could take for
// something else.
var strangeNames = []string{
	"a b", "a/b", "a:b", "a%b", "a%2Fb", "a*", "[x]", `a\b`, "a?b", "a?b=c&d", ".", "..", "a/../b", "//", "a#b", "a+b", "a;b",
	"日本", "ü", "\u202ex", "😀", "a\nb", "a\tb", " ", "'", `"`, "a,b", "{job}", "checkpoints", "plan", "latest", "-x", "--", "a\x00b",
}

func TestStrangeNames(t *testing.T) {
	s := newService(t)
	for _, name := range strangeNames {
		s.write(name, 5, "of "+name)
		call[Job](s, "PUT", "/jobs/"+Segment(name), testJob(name))
	}
	for _, name := range strangeNames {
		s.health(name, coordinator.HealthOK)
		at := "/jobs/" + Segment(name)
		require.Equal(t, name, call[Job](s, "GET", at, nil).Name)
		savepoint := name
		if name == "latest" {
			savepoint = "the latest"
		}
		cp := s.done(at+"/checkpoints", CreateCheckpoint{Name: savepoint}).Checkpoint
		require.Equal(t, name, cp.Job)
		d := call[Detail](s, "GET", at+"/checkpoints/"+Segment(savepoint), nil)
		require.Equal(t, savepoint, d.Name)
		require.EqualValues(t, 50, d.Elements)
		require.Len(t, call[List[snapshot.Checkpoint]](s, "GET", at+"/checkpoints", nil).Items, 1)
		require.Len(t, call[List[Operation]](s, "GET", "/operations?job="+url.QueryEscape(name), nil).Items, 1)
		places := call[List[KeyPlace]](s, "GET", at+"/keygroups?"+url.Values{"key": {name, ""}}.Encode(), nil).Items
		require.Equal(t, name, places[0].Key)
		require.Equal(t, KeyPlace{Key: "", Hash: 0, Group: 0, Subtask: 0}, places[1])
	}
	// What is done to one leaves the others alone.
	call[none](s, "DELETE", "/jobs/"+Segment("a*")+"?purge=true", nil)
	require.Len(t, call[List[Job]](s, "GET", "/jobs", nil).Items, len(strangeNames)-1)
	for _, name := range strangeNames {
		if name != "a*" {
			require.Len(t, call[List[snapshot.Checkpoint]](s, "GET", "/jobs/"+Segment(name)+"/checkpoints", nil).Items, 1, name)
		}
	}
}

func TestLongPoll(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	release := s.state.holdCuts()
	t.Cleanup(release)
	op := call[Operation](s, "POST", "/jobs/flights/checkpoints", CreateCheckpoint{})
	<-s.state.entered
	for _, wait := range []string{"", "?wait=0s", "?wait=5ms"} {
		require.Equal(t, coordinator.OpRunning, call[Operation](s, "GET", "/operations/"+op.ID+wait, nil).State)
	}
	polled := make(chan Operation, 1)
	go func() {
		var got Operation
		if err := s.client.Call(context.Background(), "GET", "/operations/"+op.ID+"?wait=20s", nil, &got); err == nil {
			polled <- got
		}
		close(polled)
	}()
	release()
	got, ok := <-polled
	require.True(t, ok)
	require.Equal(t, coordinator.OpDone, got.State, "it answers at the end, not after 20 s")
	require.NotNil(t, got.Checkpoint)

	// A caller who leaves doesn't hold anything.
	hold := s.state.holdCuts()
	t.Cleanup(hold)
	op = call[Operation](s, "POST", "/jobs/flights/checkpoints", CreateCheckpoint{})
	<-s.state.entered
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the caller leaves")
	ended := make(chan error, 1)
	go func() {
		_, err := s.client.Follow(ctx, op, nil)
		ended <- err
	}()
	cancel(left)
	require.ErrorIs(t, <-ended, left)
	aborted := call[Operation](s, "DELETE", "/operations/"+op.ID, nil)
	require.Equal(t, op.ID, aborted.ID)
	aborted, err := s.client.Follow(t.Context(), op, nil)
	require.Equal(t, fault.Failed, fault.CodeOf(err))
	require.Equal(t, snapshot.FailAborted, aborted.Checkpoint.Failure.Reason)
}

func TestAnOperationThatWaitsCanBeAborted(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	release := s.state.holdCuts()
	t.Cleanup(release)
	first := call[Operation](s, "POST", "/jobs/flights/checkpoints", CreateCheckpoint{})
	<-s.state.entered
	second := call[Operation](s, "POST", "/jobs/flights/checkpoints", CreateCheckpoint{Name: "second"})
	require.Equal(t, coordinator.OpQueued, second.State)
	call[Operation](s, "DELETE", "/operations/"+second.ID, nil)
	release()
	_, err := s.client.Follow(t.Context(), first, nil)
	require.NoError(t, err)
	_, err = s.client.Follow(t.Context(), second, nil)
	require.Equal(t, fault.Failed, fault.CodeOf(err))
	for _, cp := range call[List[snapshot.Checkpoint]](s, "GET", "/jobs/flights/checkpoints", nil).Items {
		require.NotEqual(t, snapshot.StateCompleted, map[bool]snapshot.State{true: cp.State}[cp.Name == "second"])
	}
}

func TestVerifyTellsTheJobsLastGoodCheckpoint(t *testing.T) {
	s := newService(t)
	s.write("flights", 130, "v")
	s.apply("flights")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	s.write("flights", 140, "w")
	s.done("/jobs/flights/checkpoints", CreateCheckpoint{})
	require.Equal(t, snapshot.ID(2), call[Job](s, "GET", "/jobs/flights", nil).Good.ID)

	m, err := s.c.Manifest(t.Context(), "flights", 2)
	require.NoError(t, err)
	s.damaged.Store(m.Chunks[0].ID, true)
	v := s.done("/jobs/flights/checkpoints/2/verify", nil).Verify
	require.False(t, v.OK)
	require.NotEmpty(t, v.Problems)
	j := call[Job](s, "GET", "/jobs/flights", nil)
	require.Equal(t, snapshot.ID(1), j.Good.ID)
	require.Equal(t, snapshot.ID(2), j.Last.ID)
	require.NotEmpty(t, j.Last.Bad)
	require.Equal(t, snapshot.ID(1), call[Detail](s, "GET", "/jobs/flights/checkpoints/latest", nil).ID, "a damaged one is not offered")
	refusal{"POST", "/v1/jobs/flights/restore/plan", `{"checkpoint":"2"}`, nil, 422, fault.Corrupt, "2"}.check(t, s)

	s.damaged.Clear()
	require.True(t, s.done("/jobs/flights/checkpoints/2/verify", nil).Verify.OK)
	require.Equal(t, snapshot.ID(2), call[Job](s, "GET", "/jobs/flights", nil).Good.ID)
}

func TestEventLogIsARing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l EventLog
		n := rapid.IntRange(0, 2*rememberedEvents+10).Draw(t, "events")
		for i := range n {
			l.OnEvent(coordinator.Event{Job: []string{"a", "b", "c"}[i%3], ID: snapshot.ID(i)})
		}
		for _, job := range []string{"", "b", "none"} {
			var want, got []snapshot.ID
			for i := n - 1; i >= max(0, n-rememberedEvents); i-- {
				if job == "" || []string{"a", "b", "c"}[i%3] == job {
					want = append(want, snapshot.ID(i))
				}
			}
			for _, e := range l.Newest(job) {
				got = append(got, e.ID)
			}
			if !slices.Equal(want, got) {
				t.Fatalf("job %q of %d events: got %d, want %d: %v", job, n, len(got), len(want), got)
			}
		}
	})
}

func TestPlaces(t *testing.T) {
	rule := keygroups.Rule{MaxParallelism: 10}.WithDefaults()
	places, err := Places(rule, 3, []string{"a", "", "s:a"})
	require.NoError(t, err)
	// The documents' own example: "a" is 97, group 7 of 10.
	require.Equal(t, KeyPlace{Key: "a", Hash: 97, Group: 7, Subtask: 2}, places[0])
	require.Equal(t, KeyPlace{Key: "", Hash: 0, Group: 0, Subtask: 0}, places[1])
	require.Len(t, places, 3)
	_, err = Places(rule, 11, []string{"a"})
	require.Equal(t, fault.Usage, fault.CodeOf(err))
	require.Contains(t, err.Error(), "11")
}

func TestSegmentKeepsANameOneSegment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.SampledFrom(strangeNames)).Filter(func(s string) bool { return s != "" }).Draw(t, "name")
		segment := Segment(name)
		require.NotContains(t, segment, "/")
		require.NotContains(t, segment, "?")
		require.NotContains(t, []string{".", ".."}, segment)
		back, err := url.PathUnescape(segment)
		require.NoError(t, err)
		require.Equal(t, name, back)
		req, err := http.NewRequest("GET", "http://h/v1/jobs/"+segment+"/checkpoints", nil)
		require.NoError(t, err)
		require.Equal(t, 4, strings.Count(req.URL.EscapedPath(), "/"))
	})
}
