package store

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// EventKind says what happened to a record.
type EventKind uint8

// The kinds of events.
const (
	EventStored EventKind = iota + 1
	EventRemoved
)

// Event says that a record came or went. It is published after the index has changed:
// what an event calls stored can be read, unless a later event has removed it.
type Event struct {
	// Seq numbers the events of one epoch without gaps, from 1 on.
	Seq  uint64
	Kind EventKind
	ID   RecordID
	// Parent is the key of the chain's previous block; only for stored records.
	Parent connector.Key
}

// ErrLagged says that a subscriber fell so far behind that events it has not seen are no
// longer kept. It must subscribe anew and begin with a snapshot.
var ErrLagged = errors.New("store: subscriber fell behind")

// eventsKept is how many of the last events a subscriber may be behind.
const eventsKept = 1 << 16

// eventLog keeps the last events. Nothing is kept until someone subscribes.
type eventLog struct {
	mu     sync.Mutex
	seq    uint64  // of the last event
	ring   []Event // event i is at i modulo its length; nil before the first subscription
	first  uint64  // oldest event in the ring
	more   chan struct{}
	closed bool
}

func (l *eventLog) init() { l.more = make(chan struct{}) }

// keep starts to keep events and returns the number of the last one.
func (l *eventLog) keep() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		l.ring, l.first = make([]Event, eventsKept), l.seq+1
	}
	return l.seq
}

// publish appends events, numbering them.
func (l *eventLog) publish(events []Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		l.seq += uint64(len(events))
		return
	}
	for _, e := range events {
		l.seq++
		e.Seq = l.seq
		l.ring[l.seq%eventsKept] = e
	}
	if l.seq >= l.first+eventsKept {
		l.first = l.seq - eventsKept + 1
	}
	close(l.more)
	l.more = make(chan struct{})
}

// after appends the events after seq to buf, at most its capacity. If there are none, more
// is closed when there are.
func (l *eventLog) after(seq uint64, buf []Event) (out []Event, more <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case seq+1 < l.first || seq > l.seq: // not kept any more, or never was
		return buf, nil, fmt.Errorf("events after %d, kept are %d to %d: %w", seq, l.first, l.seq, ErrLagged)
	case seq == l.seq && l.closed:
		return buf, nil, ErrClosed
	}
	for ; seq < l.seq && len(buf) < cap(buf); seq++ {
		buf = append(buf, l.ring[(seq+1)%eventsKept])
	}
	return buf, l.more, nil
}

// skip has every subscriber begin again with a snapshot: what the numbers in earlier events
// mean has changed.
func (l *eventLog) skip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	l.first = l.seq + 1
	close(l.more)
	l.more = make(chan struct{})
}

func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.more)
	l.more = make(chan struct{})
}

// Subscription is a consistent view of what the store holds: a snapshot, and every event
// after it. It is for one goroutine; Close it.
type Subscription struct {
	s   *Store
	seq uint64
	buf []Event

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
		err = errors.Join(err, u.Close())
	}
	return err
}

// eventBatch is how many events Next returns at most.
const eventBatch = 1024

// Epoch is the random number of this opening of the store. Events of two epochs have
// nothing to do with each other.
func (s *Store) Epoch() uint64 { return s.epoch }

// Subscribe takes a snapshot of what the store holds and follows what happens after it.
// Memory does not grow with the number of records, nor with how slow the subscriber is.
func (s *Store) Subscribe(ctx context.Context) (*Subscription, error) {
	job := &subscribeJob{done: make(chan struct{})}
	if !s.commits.tryPush(commit{kind: commitSubscribe, subscribe: job}) {
		return nil, ErrClosed
	}
	select {
	case <-job.done:
	case <-ctx.Done():
		go func() { // the committer will still do it
			<-job.done
			if job.snapshot != nil {
				_ = job.snapshot.Close()
			}
		}()
		return nil, fmt.Errorf("subscribe: %w: %w", ErrTimeout, context.Cause(ctx))
	}
	if job.err != nil {
		return nil, fmt.Errorf("subscribe: %w: %w", ErrIO, job.err)
	}
	u := &Subscription{s: s, snapshot: job.snapshot, seq: job.seq}
	if !s.subscriptions.add(u) {
		return nil, errors.Join(ErrClosed, job.snapshot.Close())
	}
	return u, nil
}

// SubscribeAfter follows the events after seq of the store's present epoch, without a
// snapshot: for a subscriber that lost its connection and nothing else. It fails with
// [ErrLagged] if some of them are no longer kept.
func (s *Store) SubscribeAfter(epoch, seq uint64) (*Subscription, error) {
	if epoch != s.epoch {
		return nil, fmt.Errorf("epoch %d, not %d: %w", epoch, s.epoch, ErrLagged)
	}
	s.events.keep()
	if _, _, err := s.events.after(seq, nil); err != nil {
		return nil, err
	}
	return &Subscription{s: s, seq: seq}, nil
}

type subscribeJob struct {
	snapshot *journal.Snapshot
	seq      uint64
	err      error
	done     chan struct{}
}

// runSubscribe runs in the committer, between two batches.
func (s *Store) runSubscribe(job *subscribeJob) {
	defer close(job.done)
	job.seq = s.events.keep()
	job.snapshot, job.err = s.journal.Snapshot()
}

// Resident is a record of a snapshot.
type Resident struct {
	ID     RecordID
	Parent connector.Key
}

// Snapshot calls f for every record that the store held when the subscription was made,
// and lets go of the snapshot. A second call does nothing.
func (u *Subscription) Snapshot(ctx context.Context, f func(Resident) error) error {
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
				return ErrClosed
			}
		}
		if !r.Readable() {
			return nil
		}
		return f(Resident{
			ID:     RecordID{Namespace: NamespaceID(r.Namespace), Shard: r.Shard, Key: r.Key},
			Parent: r.Parent,
		})
	})
	return errors.Join(err, u.closeSnapshot())
}

// Seq is the number of the last event that Next returned or that the snapshot includes.
func (u *Subscription) Seq() uint64 { return u.seq }

// Next waits for events and returns them in order. The slice is valid until the next
// call. It fails with [ErrLagged] if the subscriber is too far behind, with [ErrTimeout]
// when ctx ends and with [ErrClosed] when the store has closed.
func (u *Subscription) Next(ctx context.Context) ([]Event, error) {
	if u.buf == nil {
		u.buf = make([]Event, 0, eventBatch)
	}
	for {
		events, more, err := u.s.events.after(u.seq, u.buf[:0])
		if err != nil {
			return nil, err
		}
		if len(events) > 0 {
			u.seq = events[len(events)-1].Seq
			return events, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for events: %w: %w", ErrTimeout, context.Cause(ctx))
		}
	}
}

// Close lets go of the snapshot.
func (u *Subscription) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closeSnapshot()
}

// closeSnapshot is Close; u.mu is held.
func (u *Subscription) closeSnapshot() error {
	if u.snapshot == nil {
		return nil
	}
	s := u.snapshot
	u.snapshot = nil
	u.s.subscriptions.remove(u)
	return s.Close()
}
