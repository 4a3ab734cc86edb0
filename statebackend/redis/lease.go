package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

var (
	//go:embed fence.lua
	fenceScript string
	//go:embed lease_acquire.lua
	acquireScript string
	//go:embed lease_keep.lua
	keepLua string
	//go:embed cut_mark.lua
	cutMarkLua string
)

var (
	keepScript    = fenceScript + keepLua
	cutMarkScript = fenceScript + cutMarkLua
)

var _ statebackend.Leases = (*Backend)(nil)

// tokenWord is a lease's token as the scripts take it.
func tokenWord(l statebackend.Lease) string { return strconv.FormatUint(l.Token, 10) }

// cutMark is the command that marks a cut in the record.
func cutMark(l statebackend.Lease, attempt snapshot.ID) []string {
	return []string{"EVAL", cutMarkScript, "2", l.Job.Record(), l.Job.Lease(), l.Holder, tokenWord(l), attempt.String()}
}

// leaderFields are the fields of the lease's hash, in the order of the scripts.
var leaderFields = []string{"token", "holder", "host", "pid", "address", "store", "since", "until"}

// leaderOf reads the words of leaderFields; what can't be read is left out,
// since it is only told.
func leaderOf(words []string) statebackend.Leader {
	at := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(at(i), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	l := statebackend.Leader{Token: uint64(max(number(0), 0)), Owner: statebackend.Owner{
		ID: at(1), Host: at(2), PID: int(number(3)), Address: at(4), Store: at(5)}}
	l.Since, l.Until = momentOf(number(6)), momentOf(number(7))
	return l
}

// mostMoment is the end of the year 9999 in ms since 1970: JSON has no form for
// later times, and nothing that holds one could be shown.
const mostMoment = 253402300799999

// momentOf is a time in ms since 1970; the zero time for none.
func momentOf(ms int64) time.Time {
	if ms <= 0 || ms > mostMoment {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// deposed is what a script's answer {"deposed", …} means.
func deposed(l statebackend.Lease, v resp.Value) error {
	var words []string
	for i := 1; i < len(v.Array); i++ {
		words = append(words, v.Array[i].String())
	}
	return &statebackend.FencedError{Job: l.Job, Token: l.Token, Leader: leaderOf(words)}
}

// fence refuses when the lease of ctx isn't the current one, as fence.lua
// does. A write is fenced by it in a transaction that watches the lease.
func (b *Backend) fence(ctx context.Context, c redis.Cmdable, job statebackend.Job) error {
	got, err := c.HMGet(ctx, job.Lease(), leaderFields...).Result()
	if err != nil {
		return &statebackend.KeyError{Key: []byte(job.Lease()), Op: "read", Err: b.mapError(err, "the job's lease")}
	}
	words := make([]string, len(got))
	for i, v := range got {
		words[i], _ = v.(string) // nil where there is none
	}
	l := statebackend.LeaseOf(ctx, job)
	never := len(got) == 0 || got[0] == nil
	if never && l.Token == 0 || len(words) > 1 && words[0] == tokenWord(l) && words[1] == l.Holder {
		return nil
	}
	return &statebackend.FencedError{Job: job, Token: l.Token, Leader: leaderOf(words)}
}

// askLeader asks for a job's leader.
func (b *Backend) askLeader(conn *resp.Conn, job statebackend.Job) (statebackend.Leader, error) {
	v, err := conn.Call(smallReply, append([]string{"HMGET", job.Lease()}, leaderFields...)...)
	if err != nil {
		return statebackend.Leader{}, &statebackend.KeyError{Key: []byte(job.Lease()), Op: "read", Err: b.mapError(err, "HMGET")}
	}
	var words []string
	for _, part := range v.Array {
		words = append(words, part.String())
	}
	return leaderOf(words), nil
}

// leaseScript runs one of the lease's scripts and gives the words that it answers.
func (b *Backend) leaseScript(ctx context.Context, job statebackend.Job, script string, args ...any) ([]string, error) {
	words, err := b.client.Eval(ctx, script, []string{job.Lease()}, args...).StringSlice()
	if err == nil && len(words) == 0 {
		err = errors.New("the script gave no answer")
	}
	if err != nil {
		return nil, &statebackend.KeyError{Key: []byte(job.Lease()), Op: "lease", Err: b.mapError(err, "EVAL of the lease's script")}
	}
	return words, nil
}

// Acquire begins a new term in one script.
func (b *Backend) Acquire(ctx context.Context, job statebackend.Job, c statebackend.Claim) (statebackend.Leader, error) {
	if err := errors.Join(job.Validate(), c.Validate()); err != nil {
		return statebackend.Leader{}, err
	}
	o := c.Owner
	args := []any{o.ID, o.Host, o.PID, o.Address, o.Store, c.TTL.Milliseconds(), c.Floor}
	for _, id := range c.Before {
		args = append(args, id)
	}
	words, err := b.leaseScript(ctx, job, acquireScript, args...)
	if err != nil {
		return statebackend.Leader{}, err
	}
	switch words[0] {
	case "ok":
		return leaderOf(words[1:]), nil
	case "held":
		return statebackend.Leader{}, &statebackend.FencedError{Job: job, Leader: leaderOf(words[1:])}
	}
	return statebackend.Leader{}, &statebackend.KeyError{Key: []byte(job.Lease()), Op: "lease", Err: fmt.Errorf(
		"%w: its token, until and ttl are %q: want whole numbers; delete the key when no coordinator leads the job", statebackend.ErrDamaged, words[1:])}
}

// Renew lets the lease last longer. A pause of the writers, ours or somebody
// else's, holds the script, and everybody else's claims too: then the lease is
// only looked at, which a pause doesn't hold.
func (b *Backend) Renew(ctx context.Context, l statebackend.Lease, ttl time.Duration) error {
	if ttl < time.Millisecond {
		return fmt.Errorf("lease of %v: want a millisecond at least", ttl)
	}
	short, cancel := context.WithTimeout(ctx, renewPatience(ctx, ttl))
	defer cancel()
	err := b.keep(short, l, ttl.Milliseconds())
	if err == nil || ctx.Err() != nil || saidNo(err) {
		return err
	}
	// Whatever else kept it from writing. That the wait is over is not asked of
	// short: the connection's deadline is the same moment, and may be told first.
	return b.fence(statebackend.WithLease(ctx, l), b.client, l.Job)
}

// saidNo reports whether the server has answered a renewal with no: that is not
// a pause, and the lease runs out.
func saidNo(err error) bool {
	for _, no := range []error{statebackend.ErrNotLeader, statebackend.ErrPermission, statebackend.ErrAuth, statebackend.ErrReadOnly,
		statebackend.ErrDamaged, statebackend.ErrWrongType} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// renewPatience is how long a renewal waits for its script before it looks.
func renewPatience(ctx context.Context, ttl time.Duration) time.Duration {
	if until, ok := ctx.Deadline(); ok {
		return max(time.Until(until)/2, time.Millisecond)
	}
	return ttl / 6
}

// Release ends the term.
func (b *Backend) Release(ctx context.Context, l statebackend.Lease) error {
	err := b.keep(ctx, l, 0)
	if errors.Is(err, statebackend.ErrNotLeader) {
		return nil
	}
	return err
}

// Leads asks for the lease. It is a read, which no pause of writers holds.
func (b *Backend) Leads(ctx context.Context, job statebackend.Job) error {
	if err := job.Validate(); err != nil {
		return err
	}
	return b.fence(ctx, b.client, job)
}

func (b *Backend) keep(ctx context.Context, l statebackend.Lease, ms int64) error {
	if err := l.Job.Validate(); err != nil {
		return err
	}
	words, err := b.leaseScript(ctx, l.Job, keepScript, l.Holder, tokenWord(l), ms)
	if err == nil && words[0] != "ok" {
		err = &statebackend.FencedError{Job: l.Job, Token: l.Token, Leader: leaderOf(words[1:])}
	}
	return err
}
