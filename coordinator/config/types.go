// Package config is the coordinator's configuration: its YAML file, and the
// definition of a job, which the API takes too.
package config

import (
	"time"

	"path/filepath"

	"keyframe/keygroups"
	"keyframe/rescale"
	"keyframe/snapshot"
	"keyframe/statebackend"
)

// File is the whole configuration (design §9).
type File struct {
	Redis Redis `yaml:"redis"`
	Store Store `yaml:"store"`
	API   API   `yaml:"api"`
	Log   Log   `yaml:"log"`
	Drill Drill `yaml:"drill"`
	Audit Audit `yaml:"audit"`
	// Alarms says who is told when something goes wrong.
	Alarms Alarms `yaml:"alarms"`
	Lease  Lease  `yaml:"lease"`
	Jobs   []Job  `yaml:"jobs"`
}

// Redis says where the state is. A password may stand in a file or in an
// environment variable instead of the URL.
type Redis struct {
	URL          string `yaml:"url"`
	PasswordFile string `yaml:"passwordFile"`
	PasswordEnv  string `yaml:"passwordEnv"`
	CAFile       string `yaml:"caFile"`
	CertFile     string `yaml:"certFile"`
	KeyFile      string `yaml:"keyFile"`
	// Tracking says how it is found out what jobs write while they are read
	// and between two checkpoints.
	Tracking Tracking `yaml:"tracking"`
}

// Tracking is how writes are tracked.
type Tracking string

// The ways. TrackAuto takes fields where the server's version and the rights
// permit it, then keys, then none.
const (
	TrackAuto   Tracking = "auto"
	TrackFields Tracking = "fields" // by a replication stream without data
	TrackKeys   Tracking = "keys"   // by invalidations
	TrackOff    Tracking = "off"
)

// Store says where checkpoints are kept.
type Store struct {
	Path string `yaml:"path"`
	// CompactAbove is from which ratio of the file to what is live in it on
	// the file is compacted by itself, 0 for never.
	CompactAbove float64 `yaml:"compactAbove"`
	// OnDamage is what happens when the file is found damaged at start.
	OnDamage OnDamage `yaml:"onDamage"`
	// Copies are where each completed checkpoint is also kept, as a file.
	Copies []Copy `yaml:"copies"`
	// CheckCopies is how they are read again.
	CheckCopies CopyCheck `yaml:"checkCopies"`
}

// OnDamage is what happens when the store is found damaged at start.
type OnDamage string

// The two policies. Both leave the damaged file and the state in Redis as they
// are.
const (
	// DamageSalvage keeps the file aside and goes on with a new store that has
	// every checkpoint that is whole: what a coordinator protects is not left
	// without checkpoints until somebody wakes up.
	DamageSalvage OnDamage = "salvage"
	// DamageRefuse doesn't start.
	DamageRefuse OnDamage = "refuse"
)

// Copy is one place of second copies: a directory that exists, best on another
// disk.
type Copy struct {
	Path string `yaml:"path"`
}

// CopyPaths are the directories of second copies.
func (s Store) CopyPaths() []string {
	var all []string
	for _, c := range s.Copies {
		all = append(all, filepath.Clean(c.Path))
	}
	return all
}

// API says where the coordinator listens. Any address but loopback or a unix
// socket ("unix:/path") needs a token.
type API struct {
	Listen    string `yaml:"listen"`
	TokenFile string `yaml:"tokenFile"`
	TokenEnv  string `yaml:"tokenEnv"`
	CertFile  string `yaml:"certFile"`
	KeyFile   string `yaml:"keyFile"`
	// Tokens are further tokens, each with a name and a role.
	Tokens []Token `yaml:"tokens"`
	// ClientCAFile asks callers for a certificate of its authority; without
	// ClientCerts it is wanted beside a token.
	ClientCAFile string       `yaml:"clientCAFile"`
	ClientCerts  []ClientCert `yaml:"clientCerts"`
	// MaxImport is the largest archive that may be imported: it lies beside the
	// store until it has been verified.
	MaxImport Size `yaml:"maxImport"`
}

// Drill says where checkpoints are restored on trial: in a server of its own,
// or beside the state where redis.url is left out.
type Drill struct {
	Redis Redis `yaml:"redis"`
}

// Lease says how one of several coordinators leads a job.
type Lease struct {
	// TTL is how long a leader may be silent before another one takes over.
	TTL Duration `yaml:"ttl"`
}

// The bounds of a lease: below, a slow network deposes leaders; above, a dead
// one is missed for too long.
const (
	leastLease = Duration(time.Second)
	mostLease  = Duration(10 * time.Minute)
)

// Log says how much is logged and how.
type Log struct {
	Level string `yaml:"level"` // trace, debug, info, warn, error
	JSON  bool   `yaml:"json"`
}

// Job defines one job. Zero fields get their defaults by WithDefaults. The
// tags minimum, maximum, enum and doc make the API's schema.
type Job struct {
	Name           string        `yaml:"name" json:"name" minLength:"1" doc:"Name of the job"`
	Prefix         string        `yaml:"prefix" json:"prefix,omitempty" doc:"Beginning of every key of the job, streaming:runtime when left out"`
	Parallelism    int           `yaml:"parallelism" json:"parallelism,omitempty" minimum:"1" maximum:"32768" doc:"Number of subtasks, 1 when left out"`
	MaxParallelism int           `yaml:"maxParallelism" json:"maxParallelism,omitempty" minimum:"1" maximum:"32768" doc:"Number of key groups; fixed while state exists"`
	KeyGroups      KeyGroups     `yaml:"keyGroups" json:"keyGroups,omitzero" doc:"How keys are laid out over key groups and subtasks"`
	OperatorState  OperatorState `yaml:"operatorState" json:"operatorState,omitzero" doc:"How operator state is redistributed"`
	Checkpoint     Checkpoint    `yaml:"checkpoint" json:"checkpoint,omitzero" doc:"When and how checkpoints are taken"`
	Retention      Retention     `yaml:"retention" json:"retention,omitzero" doc:"Which checkpoints are kept"`
	Recovery       Recovery      `yaml:"recovery" json:"recovery,omitzero" doc:"What happens when the state is lost"`
	Drill          DrillPlan     `yaml:"drill" json:"drill,omitzero" doc:"When the newest checkpoint is restored on trial"`
	Sources        []Source      `yaml:"sources" json:"sources,omitempty" doc:"Redis Streams whose positions are part of every checkpoint"`
}

// KeyGroups is the rule of design §5.
type KeyGroups struct {
	Hash    keygroups.Hash    `yaml:"hash" json:"hash,omitempty" enum:"java,flink" doc:"Rule that turns a key into a key group"`
	KeyType keygroups.KeyType `yaml:"keyType" json:"keyType,omitempty" enum:"string,int,long" doc:"What a number key is hashed as"`
	Ranges  keygroups.Ranges  `yaml:"ranges" json:"ranges,omitempty" enum:"leading,flink" doc:"Rule that gives each subtask its key groups"`
}

// OperatorState says how list state is cut when the parallelism changes.
type OperatorState struct {
	Split rescale.Split `yaml:"split" json:"split,omitempty" enum:"each,even" doc:"How list state is cut"`
}

// Checkpoint says when and how checkpoints are taken.
type Checkpoint struct {
	// Schedule is "" for on demand only.
	Schedule string `yaml:"schedule" json:"schedule,omitempty" doc:"Five cron fields, a descriptor or @every; empty for on demand only"`
	// MinPause is the least time from the end of one to the start of the next.
	MinPause Duration `yaml:"minPause" json:"minPause,omitempty" doc:"Least time between two checkpoints"`
	// Timeout is how long an attempt may take.
	Timeout Duration `yaml:"timeout" json:"timeout,omitempty" doc:"How long a checkpoint may take"`
	// MaxPause is how long writers may be held at most.
	MaxPause Duration `yaml:"maxPause" json:"maxPause,omitempty" doc:"How long writers may be held at most"`
	// Grade is how cuts are made.
	Grade snapshot.Grade `yaml:"grade" json:"grade,omitempty" enum:"auto,precopy,paused" doc:"How the cut is made"`
	// Incremental lets a checkpoint read and store only what has changed since
	// the one before, where the state store can tell. nil is true.
	Incremental *bool `yaml:"incremental" json:"incremental,omitempty" doc:"Read and store only what has changed, true when left out"`
	// MaxStall is how long writers may be held by the last reads of precopy.
	MaxStall Duration `yaml:"maxStall" json:"maxStall,omitempty" doc:"How long writers may be held by precopy, 50ms when left out"`
	// OnStall is what happens when that isn't enough.
	OnStall statebackend.StallPolicy `yaml:"onStall" json:"onStall,omitempty" enum:"wait,fail" doc:"When writers write faster than maxStall allows: hold them longer, or fail"`
	// MaxReadRate bounds the reading outside the pause; 0 is no bound.
	MaxReadRate Rate `yaml:"maxReadRate" json:"maxReadRate,omitempty" doc:"Most bytes a second that are read while writers run, such as 50MB; no bound when left out"`
	// SelfCheckEvery: each time the id passes a multiple of it, a checkpoint
	// reads everything and compares it with what tracking believed; 0 is
	// never. nil is DefaultSelfCheck.
	SelfCheckEvery *int `yaml:"selfCheckEvery" json:"selfCheckEvery,omitempty" minimum:"0" doc:"Every so many checkpoints everything is read and compared with what tracking believed, 100 when left out, 0 for never"`
	// TolerableMisses: the alarm is raised when no good checkpoint was completed
	// by the time at which, after the last one, one more than this many were due
	// and had their timeout. nil is DefaultMisses.
	TolerableMisses *int `yaml:"tolerableMisses" json:"tolerableMisses,omitempty" minimum:"0" maximum:"100" doc:"How many checkpoints of the schedule in a row may be missed before that is an alarm, 2 when left out"`
	// Shrink is how much less than the one before a checkpoint may hold.
	Shrink Shrink `yaml:"shrink" json:"shrink,omitzero" doc:"From which loss on a checkpoint is flagged, and nothing older is removed until a person accepts it"`
}

// DefaultMisses is how many checkpoints in a row may be missed.
const DefaultMisses = 2

// Misses is how many checkpoints in a row may be missed before that is an
// alarm.
func (c Checkpoint) Misses() int {
	if c.TolerableMisses == nil {
		return DefaultMisses
	}
	return *c.TolerableMisses
}

// DefaultSelfCheck is every how many checkpoints tracking is checked.
const DefaultSelfCheck = 100

// Increments reports whether checkpoints may be incremental.
func (c Checkpoint) Increments() bool { return c.Incremental == nil || *c.Incremental }

// SelfCheck is every how many checkpoints tracking is checked, 0 for never.
func (c Checkpoint) SelfCheck() int {
	if c.SelfCheckEvery == nil {
		return DefaultSelfCheck
	}
	return *c.SelfCheckEvery
}

// Retention says how many checkpoints are kept, and for how long.
type Retention struct {
	Keep   int      `yaml:"keep" json:"keep,omitempty" minimum:"1" doc:"How many completed checkpoints are kept, 5 when left out; savepoints, pinned and imported ones don't count, and stay until they are deleted"`
	MaxAge Duration `yaml:"maxAge" json:"maxAge,omitempty" doc:"How long checkpoints are kept; no limit when left out"` // 0 for no limit
}

// OnStateLoss is what happens when the state is found lost.
type OnStateLoss string

// The two policies.
const (
	LossRestore OnStateLoss = "restore"
	LossHold    OnStateLoss = "hold"
)

// Recovery is the policy for lost state.
type Recovery struct {
	OnStateLoss OnStateLoss `yaml:"onStateLoss" json:"onStateLoss,omitempty" enum:"restore,hold" doc:"restore the newest good checkpoint by itself, or hold and wait for a person"`
}

// DrillPlan says when the newest checkpoint is restored on trial.
type DrillPlan struct {
	// Schedule is "" for on demand only.
	Schedule string `yaml:"schedule" json:"schedule,omitempty" doc:"Five cron fields, a descriptor or @every; empty for on demand only"`
}

// Source is a Redis Streams source of the job.
type Source struct {
	Topic string `yaml:"topic" json:"topic" minLength:"1" doc:"Topic of the streams stream:topic:{topic}:p:{n}"`
	Group string `yaml:"group" json:"group" minLength:"1" doc:"Consumer group of the job"`
}

// Rule is the job's key group rule.
func (j Job) Rule() keygroups.Rule {
	return keygroups.Rule{
		Hash: j.KeyGroups.Hash, KeyType: j.KeyGroups.KeyType,
		Ranges: j.KeyGroups.Ranges, MaxParallelism: j.MaxParallelism,
	}
}

// Key is where the job's state lies.
func (j Job) Key() statebackend.Job { return statebackend.Job{Prefix: j.Prefix, Name: j.Name} }
