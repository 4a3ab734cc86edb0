package api

import (
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyframe/coordinator/config"
)

// program is some requests, made of bytes: who asks, whether all at once, and
// for each which operation and with what.
func (w *world) program(data []byte) (all []request, who config.Key, atOnce bool) {
	d := &dice{data}
	who, atOnce = pick(d, append([]config.Key{testKeys[2], testKeys[1], testKeys[0]}, config.Key{Name: "nobody", Secret: "a-token-of-nobody-here"})), d.n(4) == 3
	for range 1 + d.n(3) {
		r := w.generate(d, pick(d, w.doc.ops), d.n(4) != 0)
		r.token = who.Secret
		if w.safe(r) {
			all = append(all, r)
		}
	}
	return all, who, atOnce
}

// run sends a program and holds every answer, and what is there afterwards,
// against what is promised.
func (w *world) run(t require.TestingT, data []byte) {
	w.heal()
	all, who, atOnce := w.program(data)
	before := w.seen(who.Role)
	answers, errs := make([]answer, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Add(1)
		one := func() {
			defer wg.Done()
			answers[i], errs[i] = w.send(r)
		}
		if atOnce {
			go one()
		} else {
			one()
		}
	}
	wg.Wait()
	for i, r := range all {
		require.NoError(t, errs[i], "%s", r)
		w.judge(t, r, answers[i])
	}
	w.quiet()
	require.Equal(t, before, w.seen(who.Role), "a %s changes nothing that is not its to change: %v", who.Role, all)
	require.NotContains(t, w.logged.String(), "panic", "%v", all)
	list, err := w.send(request{op: w.op("list-jobs"), method: http.MethodGet, target: "/v1/jobs", token: testKeys[0].Secret})
	require.NoError(t, err)
	require.Equal(t, 200, list.status)
	w.judge(t, request{op: w.op("list-jobs"), method: http.MethodGet, token: testKeys[0].Secret}, list)
}

func (w *world) op(id string) *operationSpec {
	for _, op := range w.doc.ops {
		if op.OperationID == id {
			return op
		}
	}
	require.Fail(w.t, "no operation "+id)
	return nil
}

// TestEveryOperationDoesWhatItsDocumentSays makes requests out of the document
// that the server gives: each operation is asked plainly until it succeeds, and
// with anything wrong about it until it refuses, and everything in between is
// held against the document too.
func TestEveryOperationDoesWhatItsDocumentSays(t *testing.T) {
	w := newWorld(t)
	require.Len(t, w.doc.ops, len(allRoutes))
	rng := uint64(7)
	for _, op := range w.doc.ops {
		for try := 0; try < 12 && (w.success[op.OperationID] == 0 || w.refusal[op.OperationID] == 0); try++ {
			w.heal()
			d := &dice{}
			for range 200 * min(try, 1) { // first the plainest of all
				rng = rng*6364136223846793005 + 1442695040888963407
				d.b = append(d.b, byte(rng>>56))
			}
			r := w.generate(d, op, w.success[op.OperationID] > 0)
			if r.token = testKeys[2].Secret; !w.safe(r) {
				continue
			}
			a, err := w.send(r)
			require.NoError(t, err, "%s", r)
			w.judge(t, r, a)
		}
		r := w.generate(&dice{}, op, false)
		r.token = "a-token-of-nobody-here"
		a, err := w.send(r)
		require.NoError(t, err)
		require.Equal(t, 401, a.status, "%s", r)
		w.judge(t, r, a)
	}
	var never []string
	for _, op := range w.doc.ops {
		if w.success[op.OperationID] == 0 {
			never = append(never, op.OperationID+" succeeded")
		}
		if (len(op.Parameters) > 0 || op.RequestBody != nil) && w.refusal[op.OperationID] == 0 {
			never = append(never, op.OperationID+" refused")
		}
	}
	require.Empty(t, never)
}

// TestAnyRequestGetsADocumentedAnswer is the short form of FuzzAPI.
func TestAnyRequestGetsADocumentedAnswer(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(rt *rapid.T) {
		w.run(rt, rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(rt, "program"))
	})
}

// FuzzAPI asks the API anything, as anybody, by its own OpenAPI document.
func FuzzAPI(f *testing.F) {
	w := newWorld(f)
	f.Add([]byte{})
	for op := range byte(len(w.doc.ops)) {
		f.Add([]byte{op % 4, op % 3, 1, op, op % 4, 1, 2, 3, 4, 0, 3, 1, 4, 2, 4, 5, 4, 9, 4, 4, 4, 0, 4, 1, 4, 2, 4, 3, op, op, 4, 4})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w.t = t // f may not be used in here
		defer func() { w.t = f }()
		w.run(t, data)
	})
}

// What is meant for one thing must not reach another by a redirect, whose
// answer would not be of the API's form either.
func TestNoPathIsRedirected(t *testing.T) {
	w := newWorld(t)
	for _, target := range []string{"/v1//jobs", "/v1/../v1/jobs", "/v1/jobs/./flights", "/v1/jobs//checkpoints", "/v1/jobs/twin/../flights", "//v1/jobs", "/v1/jobs/twin/checkpoints/"} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			r := request{op: w.op("list-jobs"), method: method, target: target, token: testKeys[2].Secret}
			a, err := w.send(r)
			require.NoError(t, err, target)
			require.Equal(t, 404, a.status, "%s %s: %s", method, target, a.body)
			w.judge(t, r, a)
		}
	}
	require.Len(t, w.c.Jobs(), 2)
}
