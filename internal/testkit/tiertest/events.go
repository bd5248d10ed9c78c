package tiertest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/kvconn/kvconn/store"
)

// eventLog numbers events and keeps some. The tier's mutex guards it.
type eventLog struct {
	epoch  uint64
	keep   int
	events []store.Event // the last of them has number seq
	seq    uint64
	more   chan struct{} // closed when an event comes, or the log is closed
	closed bool
}

func (l *eventLog) init(keep int) {
	l.epoch, l.keep, l.more = rand.Uint64(), keep, make(chan struct{})
}

func (l *eventLog) add(e store.Event) {
	l.seq++
	e.Seq = l.seq
	l.events = append(l.events, e)
	if l.keep > 0 && len(l.events) > l.keep {
		l.events = l.events[1:]
	}
	l.wake()
}

func (l *eventLog) close() {
	l.closed = true
	l.wake()
}

func (l *eventLog) wake() {
	close(l.more)
	l.more = make(chan struct{})
}

// after returns the events after seq, and whether they are all kept.
func (l *eventLog) after(seq uint64) ([]store.Event, bool) {
	n := l.seq - seq
	if n > uint64(len(l.events)) {
		return nil, false
	}
	return l.events[uint64(len(l.events))-n:], true
}

// Epoch implements [store.Events], as do Subscribe and SubscribeAfter.
func (m *Memory) Epoch() uint64 { return m.log.epoch }

// Subscribe copies what there is.
func (m *Memory) Subscribe(context.Context) (store.Subscription, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, store.ErrClosed
	}
	s := &subscription{m: m, seq: m.log.seq, ended: make(chan struct{})}
	for e := m.used.Back(); e != nil; e = e.Prev() {
		r := e.Value.(*entry)
		s.snapshot = append(s.snapshot, store.Resident{ID: r.ID, Parent: r.Parent})
	}
	return s, nil
}

// SubscribeAfter follows without a snapshot.
func (m *Memory) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, store.ErrClosed
	}
	if _, kept := m.log.after(seq); epoch != m.log.epoch || seq > m.log.seq || !kept {
		return nil, store.ErrLagged
	}
	return &subscription{m: m, seq: seq, ended: make(chan struct{})}, nil
}

// subscription is a [store.Subscription].
type subscription struct {
	m        *Memory
	snapshot []store.Resident
	seq      uint64
	ended    chan struct{}
	closed   bool // guarded by the tier's mutex
}

// Snapshot implements [store.Subscription], as do the methods below.
func (s *subscription) Snapshot(ctx context.Context, f func(store.Resident) error) error {
	list := s.snapshot
	s.snapshot = nil
	for _, r := range list {
		s.m.mu.Lock()
		_, kept := s.m.log.after(s.seq)
		s.m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !kept:
			return store.ErrLagged
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *subscription) Seq() uint64 { return s.seq }

func (s *subscription) Next(ctx context.Context) ([]store.Event, error) {
	for {
		s.m.mu.Lock()
		events, kept := s.m.log.after(s.seq)
		more, closed := s.m.log.more, s.m.log.closed || s.closed
		s.m.mu.Unlock()
		switch {
		case !kept:
			return nil, store.ErrLagged
		case closed:
			return nil, store.ErrClosed
		case len(events) > 0:
			s.seq = events[len(events)-1].Seq
			return append([]store.Event(nil), events...), nil
		}
		select {
		case <-more:
		case <-s.ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for events: %w: %w", store.ErrTimeout, context.Cause(ctx))
		}
	}
}

func (s *subscription) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
	s.snapshot = nil
	return nil
}
