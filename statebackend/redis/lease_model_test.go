package redis

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"keyframe/snapshot"
)

// slackNs is how much longer or shorter than its TTL a lease may last: the
// server's times are whole milliseconds, and its clock may be slewed.
const slackNs = int64(5 * time.Millisecond)

// unknownNs is when a call returned whose answer nobody saw.
const unknownNs = int64(1) << 61

// The calls of a history. runOut is the test's own hand in the lease: it makes
// the current one run out, as time does.
const (
	callAcquire = "acquire"
	callRenew   = "renew"
	callRelease = "release"
	callLeads   = "leads"
	callNote    = "note" // writes the attempt, checked under WATCH
	callMark    = "mark" // writes the cut, checked in a script; lengthens the lease
	callRead    = "read"
	callRunOut  = "run out"
	callIdle    = "idle" // several calls, for longer than a lease lasts
)

// leaseIn is what a call brings. Times are in ns since the history began, by
// one monotonic clock.
type leaseIn struct {
	what   string
	id     string // of who calls
	token  uint64 // that it brings
	ttl    int64  // ns
	floor  uint64
	store  string
	before string // the id of a process with the same store that has ended
	value  snapshot.ID
	call   int64
}

// The answers.
const (
	gotOK      = "ok"
	gotFenced  = "fenced"
	gotCrowded = "crowded" // others changed the record each time; nothing was written
	gotNothing = "nothing" // whoever called was killed: it may have happened or not
)

// leaseOut is what came back: who leads and with which token for a refusal, the
// new token for a grant, the record for a reading.
type leaseOut struct {
	got          string
	token        uint64
	leader       string
	attempt, cut snapshot.ID
	ret          int64
}

// leaseState is a job's lease and what is written under it. The lease was last
// lengthened between from and to, and gone says that it was made to run out.
type leaseState struct {
	token        uint64
	holder       string
	store        string
	from, to     int64
	ttl          int64
	gone         bool
	attempt, cut snapshot.ID
}

// leaseModel is what leases are to be, one call after the other: tokens grow by
// one with each term, there is one holder, only the holder of the current token
// writes or lengthens, and a lease is taken from somebody else only when it has
// run out. When that is by the clock isn't known to the nanosecond: a call whose
// interval touches the moment may be answered either way, any other may not.
var leaseModel = porcupine.Model{
	Init: func() any { return leaseState{} },
	Step: func(state, in, out any) (bool, any) {
		s, ok := state.(leaseState).step(in.(leaseIn), out.(leaseOut))
		return ok, s
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

func (s leaseState) step(in leaseIn, out leaseOut) (leaseState, bool) {
	switch in.what {
	case callAcquire:
		return s.acquire(in, out)
	case callRead:
		return s, out.attempt == s.attempt && out.cut == s.cut
	case callRunOut:
		s.gone = s.holder != ""
		return s, true
	case callRelease: // of a lease that isn't ours it does nothing
		if s.ours(in) {
			s.holder, s.store, s.gone = "", "", false
		}
		return s, out.got != gotFenced
	}
	switch out.got {
	case gotFenced:
		return s, !s.ours(in) && s.told(out)
	case gotCrowded:
		return s, in.what == callNote
	case gotNothing:
		if !s.ours(in) {
			return s, true
		}
	}
	return s.written(in, out), s.ours(in)
}

// ours reports whether a call brings the current lease, or needs none.
func (s leaseState) ours(in leaseIn) bool {
	return in.token == s.token && (in.id == s.holder || s.token == 0)
}

// told reports whether a refusal names the leader.
func (s leaseState) told(out leaseOut) bool { return out.token == s.token && out.leader == s.holder }

// written is the state after a call that was let through.
func (s leaseState) written(in leaseIn, out leaseOut) leaseState {
	switch in.what {
	case callNote:
		s.attempt = in.value
	case callMark:
		s.cut = in.value
	}
	if in.what == callRenew || in.what == callMark && s.token != 0 {
		s.from, s.to, s.gone = in.call, out.ret, false
	}
	if in.what == callRenew {
		s.ttl = in.ttl
	}
	return s
}

func (s leaseState) acquire(in leaseIn, out leaseOut) (leaseState, bool) {
	free := s.holder == "" || s.holder == in.id || s.gone || in.before != "" && in.before == s.holder && in.store == s.store
	may := free || out.ret >= s.from+s.ttl-slackNs
	must := free || in.call > s.to+s.ttl+slackNs
	next := leaseState{
		token: max(s.token, in.floor) + 1, holder: in.id, store: in.store,
		from: in.call, to: out.ret, ttl: in.ttl, attempt: s.attempt, cut: s.cut,
	}
	switch {
	case out.got == gotFenced:
		return s, !must && s.told(out)
	case out.got == gotNothing && !may:
		return s, true
	case out.got == gotNothing:
		return next, true
	}
	return next, may && out.token == next.token
}
