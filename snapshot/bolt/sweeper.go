package bolt

import (
	"context"
	"sync"
)

// sweeper removes the chunks of deleted checkpoints and of attempts that
// failed, in the background: whoever deletes need not wait, and writers get
// their turn between any two of its small transactions.
//
// A removal that fails is nobody's failure: the chunks stay on the list of
// garbage for the next time it is woken, or for the next Open.
type sweeper struct {
	db   *DB
	stop context.CancelFunc
	work chan struct{} // holds one request at most

	mu     sync.Mutex
	asked  uint64 // how often it was woken
	served uint64 // up to which of these it has swept
	ended  chan struct{}
}

// start sets the sweeper going until end is called.
func (s *sweeper) start(db *DB) {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.db, s.work, s.ended = db, make(chan struct{}, 1), make(chan struct{})
	go s.run(ctx)
}

func (s *sweeper) run(ctx context.Context) {
	defer close(s.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.work:
		}
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		_ = s.db.sweep(ctx) // see sweeper
		s.mu.Lock()
		s.served = asked
		s.mu.Unlock()
	}
}

// wake has the garbage of now removed soon.
func (s *sweeper) wake() {
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	select {
	case s.work <- struct{}{}:
	default: // a request waits, and will find all there is
	}
}

// end stops the sweeper after the transaction that is under way.
func (s *sweeper) end() {
	s.stop()
	<-s.ended
}
