package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/eventlog"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// events numbers what happens and keeps it for subscribers.
type events struct {
	log *eventlog.Log
}

func (l *events) init(bytes int64) { l.log = eventlog.New(bytes) }

// stored is the event of a record that was added.
func stored(id index.ID, parent connector.Key) eventlog.Event {
	return eventlog.Event{Key: id.Key, Parent: parent, Namespace: uint32(id.Namespace), Shard: id.Shard, Kind: uint8(store.EventStored)}
}

// removed is the event of a record that is gone.
func removed(id index.ID) eventlog.Event {
	return eventlog.Event{Key: id.Key, Namespace: uint32(id.Namespace), Shard: id.Shard, Kind: uint8(store.EventRemoved)}
}

// eventError is an error of the log as subscribers know it.
func eventError(err error) error {
	switch {
	case errors.Is(err, eventlog.ErrLagged):
		return fmt.Errorf("%w: %w", store.ErrLagged, err)
	case errors.Is(err, eventlog.ErrClosed):
		return store.ErrClosed
	}
	return fmt.Errorf("wait for events: %w: %w", store.ErrTimeout, err)
}

// Subscription is a consistent view of what the store holds: a snapshot, and every event
// after it. It is for one goroutine; Close it: what it has not read is kept for it.
type Subscription struct {
	s        *Store
	follower *eventlog.Follower
	packed   []eventlog.Event
	buf      []store.Event

	mu       sync.Mutex // held while the snapshot is read or closed
	snapshot *journal.Snapshot
}

// subscriptions are those whose snapshot is open: the journal cannot close before them.
type subscriptions struct {
	mu     sync.Mutex
	open   map[*Subscription]bool
	closed bool
}

// add reports false if the store is closing.
func (l *subscriptions) add(u *Subscription) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.open == nil {
		l.open = make(map[*Subscription]bool)
	}
	l.open[u] = true
	return true
}

func (l *subscriptions) remove(u *Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, u)
}

// stopping reports whether the store is closing.
func (l *subscriptions) stopping() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// close ends the reading of snapshots and closes them.
func (l *subscriptions) close() error {
	l.mu.Lock()
	l.closed = true
	open := l.open
	l.open = nil
	l.mu.Unlock()
	var err error
	for u := range open {
		err = errors.Join(err, u.dropSnapshot())
	}
	return err
}

// eventBatch is how many events Next returns at most.
const eventBatch = 1024

// Epoch is the random number of this opening of the store. Events of two epochs have
// nothing to do with each other.
func (s *Store) Epoch() uint64 { return s.epoch }

// Subscribe takes a snapshot of what the store holds and follows what happens after it.
// Memory does not grow with the number of records, and with how slow the subscribers are
// only up to [Options].EventBytes, for all of them together.
func (s *Store) Subscribe(ctx context.Context) (store.Subscription, error) {
	var snapshot *journal.Snapshot
	var follower *eventlog.Follower
	var failed error
	job := &task{done: make(chan struct{}), run: func(*committing) {
		if snapshot, failed = s.journal.Snapshot(); failed == nil {
			follower = s.events.log.Follow()
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
	u := &Subscription{s: s, snapshot: snapshot, follower: follower}
	if !s.subscriptions.add(u) {
		return nil, errors.Join(store.ErrClosed, u.Close())
	}
	return u, nil
}

// SubscribeAfter follows the events after seq of the store's present epoch, without a
// snapshot: for a subscriber that lost its connection and nothing else. It fails with
// [store.ErrLagged] if some of them are no longer kept.
func (s *Store) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	if epoch != s.epoch {
		return nil, fmt.Errorf("epoch %d, not %d: %w", epoch, s.epoch, store.ErrLagged)
	}
	f, err := s.events.log.FollowAfter(seq)
	if err != nil {
		return nil, eventError(err)
	}
	return &Subscription{s: s, follower: f}, nil
}

// Snapshot calls f for every record that the store held when the subscription was made,
// and lets go of the snapshot. A second call does nothing. It fails with [store.ErrLagged] as soon
// as events that follow the snapshot are no longer kept, since it is of no use then.
func (u *Subscription) Snapshot(ctx context.Context, f func(store.Resident) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.snapshot == nil {
		return nil
	}
	n := 0
	err := u.snapshot.Records(func(r *journal.Record) error {
		if n++; n%1024 == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if u.s.subscriptions.stopping() {
				return store.ErrClosed
			}
			if err := u.follower.Lagged(); err != nil {
				return eventError(err)
			}
		}
		ns := u.s.namespaces.Digest(r.Namespace)
		if !r.Readable() || ns == (connector.NamespaceDigest{}) {
			return nil
		}
		return f(store.Resident{
			ID:     store.RecordID{Namespace: ns, Shard: r.Shard, Key: r.Key},
			Parent: r.Parent,
		})
	})
	return errors.Join(err, u.closeSnapshot())
}

// Seq is the number of the last event that Next returned or that the snapshot includes.
func (u *Subscription) Seq() uint64 { return u.follower.Seq() }

// Next waits for events and returns them in order. The slice is valid until the next
// call. It fails with [store.ErrLagged] if the subscriber is too far behind, with [store.ErrTimeout]
// when ctx ends and with [store.ErrClosed] when the store or the subscription has closed.
func (u *Subscription) Next(ctx context.Context) ([]store.Event, error) {
	if u.buf == nil {
		u.packed, u.buf = make([]eventlog.Event, 0, eventBatch), make([]store.Event, 0, eventBatch)
	}
	first, list, err := u.follower.Next(ctx, u.packed[:0])
	if err != nil {
		return nil, eventError(err)
	}
	u.buf = u.buf[:0]
	for i := range list {
		e := &list[i]
		u.buf = append(u.buf, store.Event{
			Seq: first + uint64(i), Kind: store.EventKind(e.Kind), Parent: e.Parent,
			ID: store.RecordID{Namespace: u.s.namespaces.Digest(uint16(e.Namespace)), Shard: e.Shard, Key: e.Key},
		})
	}
	return u.buf, nil
}

// Close lets go of the snapshot and of the events that were not read.
func (u *Subscription) Close() error {
	u.follower.Close()
	return u.dropSnapshot()
}

// dropSnapshot lets go of the snapshot, and waits for who reads it.
func (u *Subscription) dropSnapshot() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closeSnapshot()
}

// closeSnapshot is dropSnapshot; u.mu is held.
func (u *Subscription) closeSnapshot() error {
	if u.snapshot == nil {
		return nil
	}
	s := u.snapshot
	u.snapshot = nil
	u.s.subscriptions.remove(u)
	return s.Close()
}
