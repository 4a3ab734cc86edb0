// Package config is the coordinator's configuration: its YAML file, and the
// definition of a job, which the API takes too.
package config

import (
	"encoding/json"
	"fmt"
	"time"

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
	Jobs  []Job `yaml:"jobs"`
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
}

// Store says where checkpoints are kept.
type Store struct {
	Path string `yaml:"path"`
}

// API says where the coordinator listens. Any address but loopback or a unix
// socket ("unix:/path") needs a token.
type API struct {
	Listen    string `yaml:"listen"`
	TokenFile string `yaml:"tokenFile"`
	TokenEnv  string `yaml:"tokenEnv"`
	CertFile  string `yaml:"certFile"`
	KeyFile   string `yaml:"keyFile"`
}

// Log says how much is logged and how.
type Log struct {
	Level string `yaml:"level"` // trace, debug, info, warn, error
	JSON  bool   `yaml:"json"`
}

// Job defines one job. Zero fields get their defaults by WithDefaults.
type Job struct {
	Name           string        `yaml:"name" json:"name"`
	Prefix         string        `yaml:"prefix" json:"prefix,omitempty"`
	Parallelism    int           `yaml:"parallelism" json:"parallelism,omitempty"`
	MaxParallelism int           `yaml:"maxParallelism" json:"maxParallelism,omitempty"`
	KeyGroups      KeyGroups     `yaml:"keyGroups" json:"keyGroups,omitzero"`
	OperatorState  OperatorState `yaml:"operatorState" json:"operatorState,omitzero"`
	Checkpoint     Checkpoint    `yaml:"checkpoint" json:"checkpoint,omitzero"`
	Retention      Retention     `yaml:"retention" json:"retention,omitzero"`
	Recovery       Recovery      `yaml:"recovery" json:"recovery,omitzero"`
	Sources        []Source      `yaml:"sources" json:"sources,omitempty"`
}

// KeyGroups is the rule of design §5.
type KeyGroups struct {
	Hash    keygroups.Hash    `yaml:"hash" json:"hash,omitempty"`
	KeyType keygroups.KeyType `yaml:"keyType" json:"keyType,omitempty"`
	Ranges  keygroups.Ranges  `yaml:"ranges" json:"ranges,omitempty"`
}

// OperatorState says how list state is cut when the parallelism changes.
type OperatorState struct {
	Split rescale.Split `yaml:"split" json:"split,omitempty"`
}

// Checkpoint says when and how checkpoints are taken.
type Checkpoint struct {
	Schedule string         `yaml:"schedule" json:"schedule,omitempty"` // "" for on demand only
	MinPause Duration       `yaml:"minPause" json:"minPause,omitempty"`
	Timeout  Duration       `yaml:"timeout" json:"timeout,omitempty"`
	MaxPause Duration       `yaml:"maxPause" json:"maxPause,omitempty"`
	Grade    snapshot.Grade `yaml:"grade" json:"grade,omitempty"`
}

// Retention says how many checkpoints are kept, and for how long.
type Retention struct {
	Keep   int      `yaml:"keep" json:"keep,omitempty"`
	MaxAge Duration `yaml:"maxAge" json:"maxAge,omitempty"` // 0 for no limit
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
	OnStateLoss OnStateLoss `yaml:"onStateLoss" json:"onStateLoss,omitempty"`
}

// Source is a Redis Streams source of the job.
type Source struct {
	Topic string `yaml:"topic" json:"topic"`
	Group string `yaml:"group" json:"group"`
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

// Duration is a time.Duration that YAML and JSON write as "1m30s".
type Duration time.Duration

// String is the form of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes the string form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads the string form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: want a string such as \"30s\"", b)
	}
	return d.UnmarshalText([]byte(s))
}

// UnmarshalText reads "1m30s"; the empty text is 0.
func (d *Duration) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as 30s, 5m or 168h", b)
	}
	*d = Duration(v)
	return nil
}
