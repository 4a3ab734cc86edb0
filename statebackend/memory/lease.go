package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"keyframe/statebackend"
)

var _ statebackend.Leases = (*Store)(nil)

// fence refuses a write whose lease isn't the current one; the lock is held.
func (s *Store) fence(ctx context.Context, job statebackend.Job) error {
	return s.fenced(statebackend.LeaseOf(ctx, job))
}

func (s *Store) fenced(l statebackend.Lease) error {
	now := s.leases[l.Job]
	if now.Token == l.Token && now.ID == l.Holder {
		return nil
	}
	return &statebackend.FencedError{Job: l.Job, Token: l.Token, Leader: now}
}

// Acquire implements [statebackend.Leases].
func (s *Store) Acquire(ctx context.Context, job statebackend.Job, c statebackend.Claim) (statebackend.Leader, error) {
	if err := c.Validate(); err != nil {
		return statebackend.Leader{}, err
	}
	if err := s.begin(ctx, job); err != nil {
		return statebackend.Leader{}, err
	}
	defer s.mu.Unlock()
	l, now := s.leases[job], s.now()
	free := l.ID == "" || l.ID == c.Owner.ID || !now.Before(l.Until)
	before := c.Owner.Store != "" && l.Store == c.Owner.Store && l.Host == c.Owner.Host && slices.Contains(c.Before, l.ID)
	if !free && !before {
		return statebackend.Leader{}, &statebackend.FencedError{Job: job, Leader: l}
	}
	l = statebackend.Leader{Owner: c.Owner, Token: max(l.Token, c.Floor) + 1, Since: now.UTC(), Until: now.Add(c.TTL).UTC()}
	s.leases[job] = l
	return l, nil
}

// Renew implements [statebackend.Leases].
func (s *Store) Renew(ctx context.Context, l statebackend.Lease, ttl time.Duration) error {
	if ttl < time.Millisecond {
		return fmt.Errorf("lease of %v: want a millisecond at least", ttl)
	}
	if err := s.begin(ctx, l.Job); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.fenced(l); err != nil {
		return err
	}
	now := s.leases[l.Job]
	now.Until = s.now().Add(ttl).UTC()
	s.leases[l.Job] = now
	return nil
}

// Release implements [statebackend.Leases].
func (s *Store) Release(ctx context.Context, l statebackend.Lease) error {
	if err := s.begin(ctx, l.Job); err != nil {
		return err
	}
	defer s.mu.Unlock()
	err := s.fenced(l)
	switch {
	case errors.Is(err, statebackend.ErrNotLeader):
		return nil
	case err != nil:
		return err
	}
	s.leases[l.Job] = statebackend.Leader{Token: l.Token}
	return nil
}

// Leads implements [statebackend.Leases].
func (s *Store) Leads(ctx context.Context, job statebackend.Job) error {
	if err := s.begin(ctx, job); err != nil {
		return err
	}
	defer s.mu.Unlock()
	return s.fence(ctx, job)
}
