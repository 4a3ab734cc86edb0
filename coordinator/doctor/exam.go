package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyframe/statebackend"
)

// exam is one examination: what has been seen so far.
type exam struct {
	req    Request
	limits Limits
	found  *findings
	mark   *statebackend.Mark

	keys, indexed uint64
	state         uint64        // keys of the job's state
	untouched     time.Duration // since the youngest use of any state key; -1 when it isn't told
	expiring      uint64        // state keys with an expiry
	big           topKeys
	hot           topKeys
	places        *places
	shards        *shards
	sisters       *sisters
	nested        nested
	own           *ownKeys
	unlooked      []string // what was not looked at, and why
	current       place    // of the key whose elements come
}

var _ statebackend.InspectSink = (*exam)(nil)

func newExam(req Request) *exam {
	limits := req.Limits.or()
	f := &findings{most: limits.Where, root: req.Job.Root(), byKey: map[findingKey]*Finding{}}
	return &exam{
		req: req, limits: limits, found: f, untouched: -1,
		big: topKeys{most: limits.Where}, hot: topKeys{most: limits.Where},
		places:  &places{req: req, found: f, most: limits.Misplaced, states: limits.States, first: map[identity]int{}, windows: map[stateID]struct{}{}},
		shards:  &shards{found: f, where: limits.Where, most: limits.Sample, states: limits.States, byState: map[stateID]*sharding{}},
		sisters: &sisters{found: f, most: limits.States, where: limits.Where, byState: map[stateID]*family{}},
		nested:  nested{found: f},
		own:     newOwnKeys(req.Job, f),
	}
}

// look reads the job's own keys.
func (e *exam) look(ctx context.Context, store Store) error {
	g, err := store.Look(ctx, e.req.Job)
	if errors.Is(err, statebackend.ErrWrongType) && !errors.Is(err, statebackend.ErrDamaged) {
		e.own.general = err.Error()
		return nil
	}
	if errors.Is(err, statebackend.ErrDamaged) {
		e.found.say(CodeBookkeeping, Error, e.req.Job.Root(), "the job's own keys are damaged: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if e.mark = g.Record.Restore; e.mark != nil {
		e.found.add(CodeMarked, Warning, e.req.Job.Record())
	}
	if g.Indexed == 0 {
		e.found.add(CodeNoState, Warning, e.req.Job.Index())
	}
	return nil
}

// Key is called for each key under the root, and says whether its elements
// are wanted.
func (e *exam) Key(k statebackend.KeyFacts) (bool, error) {
	e.keys++
	job, name := e.req.Job, string(k.Name)
	if staged := job.Root() + ":coordinator:stage:"; strings.HasPrefix(name, staged) {
		if e.mark == nil || !strings.HasPrefix(name, job.Staging(e.mark.ID)) {
			e.found.add(CodeStaged, Warning, name)
		}
		return false, nil
	}
	if !job.Owns(k.Name) {
		e.own.take(name, k.Type)
		if k.ExpireAt != 0 && !e.mayExpire(name) {
			e.found.say(CodeExpiry, Error, name, "bookkeeping of the job expires at %s", instant(k.ExpireAt))
		}
		return false, nil
	}
	if !strings.HasPrefix(name, job.Root()+":cg:") {
		e.nested.take(name, k)
		return false, nil
	}
	if !k.Indexed {
		e.found.add(CodeUnindexed, Error, name)
	}
	e.use(name, k)
	return e.parse(name, k), nil
}

// mayExpire tells bookkeeping that is made to expire (a lease) from what never
// is.
func (e *exam) mayExpire(name string) bool {
	return !slices.Contains([]string{
		e.req.Job.Index(), e.req.Job.Registry(), e.req.Job.OperatorStates(), e.req.Job.Assignment(), e.req.Job.Record(),
	}, name)
}

// use notes size and accesses of a state key.
func (e *exam) use(name string, k statebackend.KeyFacts) {
	e.state++
	if k.ExpireAt != 0 {
		e.expiring++
	}
	if k.Idle >= 0 && (e.untouched < 0 || k.Idle < e.untouched) {
		e.untouched = k.Idle
	}
	if k.Bytes >= e.limits.BigBytes {
		e.big.take(name, k.Bytes)
	}
	if k.Freq >= e.limits.HotFreq {
		e.hot.take(name, int64(k.Freq))
	}
}

// parse takes the name apart, and says whether the elements of the key have
// key groups of their own.
func (e *exam) parse(name string, k statebackend.KeyFacts) bool {
	p, ok := statebackend.ParseKey(e.req.Job, k.Name, statebackend.Known{})
	e.current = place{key: name, Parsed: p}
	if !ok {
		e.found.add(CodeUnparsed, Info, name)
		return false
	}
	e.sisters.take(p, k, name)
	if want := typesOf(p); !slices.Contains(want, k.Type) {
		e.found.say(CodeKeyType, Error, name, "keys of type %s where a state of kind %s is %s", k.Type, p.Kind, strings.Join(want, ", "))
		return false
	}
	switch {
	case p.Kind == statebackend.KindOperator || isSolo(p):
		return p.Shard >= 0
	case p.TypedKey != "":
		e.places.take(e.current, p.TypedKey, "", nil)
		return false
	}
	return true
}

// typesOf are the Redis types that a key of the layout may have.
func typesOf(p statebackend.Parsed) []string {
	switch {
	case p.Kind == statebackend.KindWindowDue:
		return []string{"zset"}
	case p.Kind == statebackend.KindOperator:
		return []string{"list", "hash"}
	case p.TypedKey != "":
		return []string{"hash", "list", "set"}
	}
	return []string{"hash"}
}

// isSolo tells un-keyed use: its one key belongs to partition 0 by definition.
func isSolo(p statebackend.Parsed) bool {
	s := statebackend.Solo
	return p.Group == s.Group && p.Topic == s.Topic && p.Operator == s.Operator && p.Partition == s.Partition
}

// Element is called for each field or member of a value state or of its
// windows.
func (e *exam) Element(member []byte) error {
	p := e.current
	if !isSolo(p.Parsed) {
		e.places.element(p, member)
	}
	if p.Kind == statebackend.KindState {
		e.shards.take(p, string(member))
	}
	return nil
}

// Name is called for each name of the index or the registry.
func (e *exam) Name(n statebackend.NameFacts) error {
	name := string(n.Name)
	if n.Unlisted {
		if !n.Exists { // of a key that is there it is told that the index lacks it
			e.found.add(CodeSchemaStale, Warning, name)
		}
		return nil
	}
	e.indexed++
	if !e.req.Job.Owns(n.Name) {
		e.found.add(CodeForeignName, Warning, name)
		return nil
	}
	if !n.Exists {
		e.found.add(CodeMissing, Warning, name)
	}
	switch _, err := statebackend.ParseSchema(string(n.Schema)); {
	case n.Schema == nil && n.Exists:
		e.found.add(CodeSchemaMissing, Warning, name)
	case n.Schema != nil && err != nil:
		e.found.add(CodeSchemaMalformed, Error, name)
	}
	return nil
}

// finish judges what only the whole tells.
func (e *exam) finish(seen statebackend.Inspection) {
	e.nested.finish()
	e.sisters.finish()
	e.shards.finish()
	e.big.tell(e.found, CodeBigKey, Warning, fmt.Sprintf("keys of %d bytes or more in the server's memory", e.limits.BigBytes), " (%d bytes)")
	e.hot.tell(e.found, CodeHotKey, Info, fmt.Sprintf("keys that are used very often, by OBJECT FREQ (%d or more of 255, reads too)", e.limits.HotFreq), " (%d)")
	e.hotWrites(seen.Activity)
	e.idle(seen.Activity)
	e.server(seen.Server)
	e.own.finish(e.req.Job, seen.Broken)
	for _, u := range seen.Untold {
		e.found.say(CodeUntold, Info, "", "not known: %s", u)
	}
}

func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// nested are keys under the root that are none of the layout: they may belong
// to a job whose name begins with this one's name and a colon.
type nested struct {
	found *findings
	roots []string
	names []string
	bytes int // of all names
	more  uint64
}

// nestedMost bounds the names that are kept until the end.
const nestedMost = 10000

func (n *nested) take(name string, k statebackend.KeyFacts) {
	root, index := strings.CutSuffix(name, ":stateKeys")
	index = index && k.Type == "set"
	switch {
	case k.Indexed:
		// In the index, whatever its name: it is covered.
	case index && n.keep(len(n.roots), name):
		n.roots = append(n.roots, root+":")
	case !index && n.keep(len(n.names), name):
		n.names = append(n.names, name)
	default:
		n.more++
	}
}

// keep tells whether one more name may be kept.
func (n *nested) keep(have int, name string) bool {
	if have >= nestedMost || n.bytes+len(name) > misplacedBytes {
		return false
	}
	n.bytes += len(name)
	return true
}

func (n *nested) finish() {
	for _, name := range n.names {
		if !slices.ContainsFunc(n.roots, func(root string) bool { return strings.HasPrefix(name, root) }) {
			n.found.add(CodeUnindexed, Error, name)
		}
	}
	if n.more > 0 {
		n.found.put(CodeBounded, Info, fmt.Sprintf("%s: more than %d keys under the job's prefix, or 16 MiB of their names, are no keys of its layout; the others were not looked at", CodeUnindexed, nestedMost), "", n.more)
	}
}
