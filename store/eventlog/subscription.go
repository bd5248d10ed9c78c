package eventlog

import (
	"context"
	"errors"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Snapshot is what a tier held at one time.
type Snapshot interface {
	// Records calls f for each record, until it fails.
	Records(f func(store.Resident) error) error
	// Close lets go of it.
	Close() error
}

// Subscription is a consistent view of what a tier holds: a snapshot, and every event
// after it. It is for one goroutine; Close it: what it has not read is kept for it.
type Subscription struct {
	list     *Subscriptions
	follower *Follower
	packed   []Event
	buf      []store.Event

	mu       sync.Mutex // held while the snapshot is read or closed
	snapshot Snapshot
}

// Subscriptions are those of a log. They know whose snapshot is open: what it is of cannot close
// before it. It may be used by any number of goroutines.
type Subscriptions struct {
	// Log is what they follow, Digest the namespace that a number is of.
	Log    *Log
	Digest func(namespace uint16) connector.NamespaceDigest

	mu     sync.Mutex
	open   map[*Subscription]bool
	closed bool
}

func (l *Subscriptions) stopping() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// New returns a subscription that begins with a snapshot, and the follower that was made at the
// same time. Both are the subscription's from now on.
func (l *Subscriptions) New(snapshot Snapshot, follower *Follower) (store.Subscription, error) {
	u := &Subscription{list: l, snapshot: snapshot, follower: follower}
	l.mu.Lock()
	closed := l.closed
	if l.open == nil {
		l.open = make(map[*Subscription]bool)
	}
	l.open[u] = true
	l.mu.Unlock()
	if closed {
		return nil, errors.Join(store.ErrClosed, u.Close())
	}
	return u, nil
}

// After returns a subscription to what follows the event with that number. It fails with
// [store.ErrLagged] if some of that is no longer kept.
func (l *Subscriptions) After(seq uint64) (store.Subscription, error) {
	f, err := l.Log.FollowAfter(seq)
	if err != nil {
		return nil, err
	}
	return &Subscription{list: l, follower: f}, nil
}

// Close ends the reading of snapshots and closes them.
func (l *Subscriptions) Close() error {
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

// Snapshot implements [store.Subscription].
func (u *Subscription) Snapshot(ctx context.Context, f func(store.Resident) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.snapshot == nil {
		return nil
	}
	n := 0
	err := u.snapshot.Records(func(r store.Resident) error {
		if n++; n%1024 == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if u.list.stopping() {
				return store.ErrClosed
			}
			if err := u.follower.Lagged(); err != nil {
				return err
			}
		}
		return f(r)
	})
	return errors.Join(err, u.closeSnapshot())
}

// Seq implements [store.Subscription].
func (u *Subscription) Seq() uint64 { return u.follower.Seq() }

// Next implements [store.Subscription].
func (u *Subscription) Next(ctx context.Context) ([]store.Event, error) {
	if u.buf == nil {
		u.packed, u.buf = make([]Event, 0, eventBatch), make([]store.Event, 0, eventBatch)
	}
	first, list, err := u.follower.Next(ctx, u.packed[:0])
	if err != nil {
		return nil, err
	}
	u.buf = u.buf[:0]
	for i := range list {
		e := &list[i]
		u.buf = append(u.buf, store.Event{
			Seq: first + uint64(i), Kind: store.EventKind(e.Kind), Parent: e.Parent,
			ID: store.RecordID{Namespace: u.list.Digest(uint16(e.Namespace)), Shard: e.Shard, Key: e.Key},
		})
	}
	return u.buf, nil
}

// Close implements [store.Subscription].
func (u *Subscription) Close() error {
	u.follower.Close()
	return u.dropSnapshot()
}

// dropSnapshot lets go of the snapshot, and waits for its reader.
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
	u.list.mu.Lock()
	delete(u.list.open, u)
	u.list.mu.Unlock()
	return s.Close()
}
