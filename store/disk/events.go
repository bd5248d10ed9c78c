package disk

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/residents"
	"github.com/kvconn/kvconn/store/eventlog"
)

// Epoch implements [store.Events].
func (s *Store) Epoch() uint64 { return s.epoch }

// Subscribe implements [store.Events]. Memory does not grow with the number of records, and with how
// slow the subscribers are only up to [Options].EventBytes, for all of them together.
func (s *Store) Subscribe(ctx context.Context) (store.Subscription, error) {
	var snapshot *journal.Snapshot
	var follower *eventlog.Follower
	var failed error
	job := &task{done: make(chan struct{}), run: func(*committing) {
		if snapshot, failed = s.journal.Snapshot(); failed == nil {
			follower = s.events.Follow()
		}
	}}
	if !s.commits.TryPush(job) {
		return nil, store.ErrClosed
	}
	select {
	case <-job.done:
	case <-ctx.Done():
		go func() { // the committer will still do it
			<-job.done
			if failed == nil {
				follower.Close()
				_ = snapshot.Close()
			}
		}()
		return nil, fmt.Errorf("subscribe: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	if failed != nil {
		return nil, fmt.Errorf("subscribe: %w: %w", store.ErrIO, failed)
	}
	return s.subscriptions.New(residents.Snapshot{Snapshot: snapshot, Digest: s.namespaces.Digest, Opener: &s.opener}, follower)
}

// SubscribeAfter implements [store.Events].
func (s *Store) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	if epoch != s.epoch {
		return nil, fmt.Errorf("epoch %d, not %d: %w", epoch, s.epoch, store.ErrLagged)
	}
	return s.subscriptions.After(seq)
}
