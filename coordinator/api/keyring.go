package api

import (
	"sync/atomic"

	"keyframe/coordinator/config"
)

// Keyring holds the tokens that callers may come with, and can be given others
// while requests are served. Safe for concurrent use.
type Keyring struct {
	now atomic.Pointer[keyring]
}

// NewKeyring makes a keyring.
func NewKeyring(keys []config.Key) *Keyring {
	k := &Keyring{}
	k.Replace(keys)
	return k
}

// Replace has the tokens be these from now on: a request that begins with
// another is refused. Those that are under way go on. That no token is left
// opens nothing: see gate.
func (k *Keyring) Replace(keys []config.Key) {
	ring := newKeyring(keys)
	k.now.Store(&ring)
}

func (k *Keyring) owner(token string) (Principal, bool) { return k.now.Load().owner(token) }
