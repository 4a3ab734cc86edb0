package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"keyframe/internal/crashpoint"
	"keyframe/snapshot"
	"keyframe/statebackend"
	"keyframe/statebackend/redis/resp"
)

// The scripts. Each is one atomic step of a restore.
var (
	//go:embed mark.lua
	markLua string
	//go:embed owns.lua
	ownsScript string
	//go:embed flip_look.lua
	flipLook string
	//go:embed flip_write.lua
	flipWrite string
	//go:embed resolve.lua
	resolveLua string
)

// Those that write are fenced. flipScript is one script: it looks at
// everything, then writes.
var (
	markScript    = fenceScript + markLua
	flipScript    = ownsScript + fenceScript + flipLook + flipWrite
	resolveScript = fenceScript + resolveLua
)

// smallReply bounds the replies of scripts and of single values, in bytes of
// memory: names are at most snapshot.MaxName.
const smallReply = snapshot.MaxName + 1<<20

var restoreID = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// What a restore keeps under Job.Staging(id). Everything but the fixed names
// is numbered, and the numbers in use are announced before they are used, so
// that a crash leaves nothing that can't be found.
const (
	stageKeys   = "k"         // k0.0, k0.1…: the keys in the order of the mapping, see numbered
	stageExtras = "x"         // x0.0, x0.1…: copies of unchanged keys
	stageNext   = "next"      // string: all k… in use are below it
	stageMore   = "extras"    // string: all x… in use are below it
	stageMap    = "map"       // list: the live name of each k…
	stageOdd    = "odd"       // list: what else there is to know of some k…, see oddEntry
	stageIndex  = "index"     // set: names of the index
	stageAbsent = "absent"    // set: names of the index that have no key
	stageExpire = "expired"   // set: names whose key had expired when it was staged
	stageAssign = "assign"    // string: the assignment
	stageOps    = "ops"       // hash: operator states (ScopeOperator)
	stageSchema = "schemas"   // hash: registry entries (ScopeOperator)
	stageFixed  = "unchanged" // list: type and name of each x… copy (ScopeOperator)
	stageProbe  = "probe"     // a key that tells whether the server takes payloads of ours; gone before the first k…
)

var stageNames = []string{stageMap, stageOdd, stageIndex, stageAbsent, stageExpire, stageAssign, stageOps, stageSchema, stageFixed, stageProbe, stageMore, stageNext}

// numbered is the name of staged key n: thousands and rest apart, so that the
// flip's script, which holds up the server, has little text to make.
func numbered(prefix string, n uint64) []byte {
	name := strconv.AppendUint([]byte(prefix), n/1000, 10)
	return strconv.AppendUint(append(name, '.'), n%1000, 10)
}

// stageClient is the connection name by which a restore's writes are found,
// so that none of them comes after the cleaning.
func stageClient(id string) string { return clientName + "-stage-" + id }

// Stage marks the job and opens the staging. The context bounds the staging
// until Prove or Flip brings another one.
func (b *Backend) Stage(ctx context.Context, req statebackend.RestoreRequest) (statebackend.Staging, error) {
	if err := checkRestore(req); err != nil {
		return nil, err
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := newStaging(b, conn, req)
	s.lease = statebackend.LeaseOf(ctx, req.Job)
	s.release = s.pipe.bind(ctx)
	if err := s.open(ctx); err != nil {
		s.hangUp()
		return nil, err
	}
	return s, nil
}

func checkRestore(req statebackend.RestoreRequest) error {
	if err := req.Job.Validate(); err != nil {
		return err
	}
	if !restoreID.MatchString(req.ID) {
		return fmt.Errorf("restore id %q: want 1 to 64 lower-case letters and digits", req.ID)
	}
	if req.Scope != statebackend.ScopeAll && req.Scope != statebackend.ScopeOperator {
		return fmt.Errorf("restore scope %q: want %s or %s", req.Scope, statebackend.ScopeAll, statebackend.ScopeOperator)
	}
	if req.NewEpoch <= req.Epoch {
		return fmt.Errorf("new epoch %d of a restore has to be greater than the epoch %d", req.NewEpoch, req.Epoch)
	}
	if req.Incarnation == "" {
		return errors.New("a restore without an incarnation: give a random one")
	}
	return checkPositions(req.Positions)
}

// open asks for the server's version and our rights, then marks the job.
func (s *staging) open(ctx context.Context) error {
	version, err := s.b.serverVersion(ctx)
	if err != nil {
		return err
	}
	s.version = version
	if v, err := s.pipe.ask(smallReply, "CLIENT", "SETNAME", stageClient(s.req.ID)); err != nil && !resp.IsCode(err, "NOPERM") {
		return s.b.mapError(err, "name the connection "+v.String())
	}
	if err := s.checkRights(); err != nil {
		return err
	}
	if err := s.mark(); err != nil {
		return err
	}
	crashpoint.At(crashpoint.StageMarked)
	return s.probePayloads()
}

func (s *staging) mark() error {
	kind := "restore"
	if s.req.Scope == statebackend.ScopeOperator {
		kind = "rescale"
	}
	mark, err := statebackend.EncodeMark(statebackend.Mark{
		ID: s.req.ID, Kind: kind, Checkpoint: s.req.Checkpoint, StartedAt: s.req.StartedAt, Token: s.lease.Token,
	})
	if err != nil {
		return err
	}
	s.markJSON = string(mark)
	v, err := s.pipe.ask(smallReply, "EVAL", markScript, "2", s.req.Job.Record(), s.req.Job.Lease(),
		s.req.ID, strconv.FormatUint(s.req.Epoch, 10), s.markJSON, s.lease.Holder, tokenWord(s.lease))
	if err != nil {
		return s.b.mapError(err, "mark the record "+strconv.Quote(s.req.Job.Record()))
	}
	return s.verdict(v)
}

// verdict turns a script's refusal into an error; {"ok", …} is none.
func (s *staging) verdict(v resp.Value) error {
	word, detail := part(v, 0), part(v, 1)
	job := s.req.Job.Root()
	switch word {
	case "ok":
		return nil
	case "deposed":
		return deposed(s.lease, v)
	case "marked":
		return fmt.Errorf("job %q: %w: %s; wait for it, or let the coordinator resolve it", job, statebackend.ErrMarked, detail)
	case "used":
		return fmt.Errorf("job %q: restore %s has gone live already: a restore needs an id of its own", job, s.req.ID)
	case "unmarked":
		return fmt.Errorf("job %q: %w: the mark of restore %s is gone, so somebody else has ended it", job, statebackend.ErrFenced, s.req.ID)
	case "fenced":
		return fmt.Errorf("job %q: %w: it is %s, and the restore began at %d", job, statebackend.ErrFenced, detail, s.req.Epoch)
	case "denied":
		return fmt.Errorf("job %q: %w: %s on key %q: grant it with ACL SETUSER (+%s, and the key's pattern)",
			job, statebackend.ErrPermission, detail, part(v, 2), strings.ToLower(detail))
	case "changed":
		return &statebackend.KeyError{Key: []byte(detail), Op: "compare", Err: statebackend.ErrChanged}
	case "gone":
		return &statebackend.KeyError{Key: []byte(detail), Op: "flip", Err: fmt.Errorf(
			"%w: what was staged for it is gone (evicted, or deleted by somebody)", statebackend.ErrMismatch)}
	case "type":
		return &statebackend.KeyError{Key: []byte(detail), Op: "flip", Err: fmt.Errorf(
			"%w: it is a %s where a %s is needed", statebackend.ErrWrongType, part(v, 2), part(v, 3))}
	}
	return fmt.Errorf("job %q: unexpected answer of a script: %q %q", job, word, detail)
}

// part is the i-th element of a script's answer as text, "" when it has none.
func part(v resp.Value, i int) string {
	if i >= len(v.Array) {
		return ""
	}
	return v.Array[i].String()
}
