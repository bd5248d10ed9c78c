// Package eventlog keeps the last events of a tier for those who follow them. It keeps a
// fixed number of them for followers that lost their connection, and more, up to a bound in
// bytes, only while a follower has yet to read them: one that reads a snapshot of millions
// of records meanwhile loses nothing, and nobody pays for that afterwards.
package eventlog

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Event is what is kept of an event. Its number is where it stands.
type Event struct {
	Key, Parent connector.Key
	Namespace   uint32
	Shard       connector.Shard
	Kind        uint8
}

const (
	// EventBytes is the memory of an event.
	EventBytes = 40
	// chunkEvents is how many events are kept and let go of together.
	chunkEvents = 4096
	// leastChunks are kept whether somebody needs them or not.
	leastChunks = 16
)

// LeastBytes is the smallest bound that a log accepts.
const LeastBytes = leastChunks * chunkEvents * EventBytes

type chunk [chunkEvents]Event

// Log is a log of events. Nothing is kept until someone follows it. It is safe for
// concurrent use.
type Log struct {
	mu   sync.Mutex
	seq  uint64 // of the last event
	kept bool
	// first is the number of the first event of chunks[0]. All chunks but the last are full.
	first  uint64
	chunks []*chunk
	spare  *chunk // the last one let go of
	most   int

	followers []*Follower
	closed    bool
}

// New makes a log of at most that many bytes.
func New(bytes int64) *Log {
	return &Log{first: 1, most: max(leastChunks, int(bytes/(chunkEvents*EventBytes)))}
}

// Publish appends events. It allocates only while the log grows.
func (l *Log) Publish(events []Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kept {
		l.seq += uint64(len(events))
		l.first = l.seq + 1
		return
	}
	for len(events) > 0 {
		at := l.seq + 1 - l.first
		if at == uint64(len(l.chunks)*chunkEvents) {
			l.grow()
			at = l.seq + 1 - l.first
		}
		n := copy(l.chunks[at/chunkEvents][at%chunkEvents:], events)
		events, l.seq = events[n:], l.seq+uint64(n)
	}
	l.wake()
}

// Skip has every follower begin again with a snapshot: what the numbers in earlier events
// mean has changed.
func (l *Log) Skip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	l.first, l.chunks = l.seq+1, nil
	l.wake()
}

// grow lets go of what nobody needs, or what is too much, and adds a chunk.
func (l *Log) grow() {
	needed := l.seq + 1
	for _, f := range l.followers {
		if f.seq+1 >= l.first { // else it has lost events already
			needed = min(needed, f.seq+1)
		}
	}
	for len(l.chunks) >= leastChunks && (needed >= l.first+chunkEvents || len(l.chunks) >= l.most) {
		l.spare = l.chunks[0]
		l.chunks = slices.Delete(l.chunks, 0, 1)
		l.first += chunkEvents
	}
	next := l.spare
	if l.spare = nil; next == nil {
		next = new(chunk)
	}
	l.chunks = append(l.chunks, next)
}

// wake wakes the followers that wait. l.mu is held.
func (l *Log) wake() {
	for _, f := range l.followers {
		if f.waiting {
			f.waiting = false
			select {
			case f.more <- struct{}{}:
			default: // it has not taken the last one: it will look again
			}
		}
	}
}

// Close says that no more events come. Followers can still read those that are kept.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

// Bytes is the memory that events take.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.chunks)) * chunkEvents * EventBytes
}

// Follower reads events in order. Seq and Lagged may be called by any goroutine, the others
// by one. Close it: what it has not read is kept for it.
type Follower struct {
	log     *Log
	seq     uint64 // of the last event that was read
	waiting bool
	closed  bool
	more    chan struct{}
}

// Follow follows the events after the last one.
func (l *Log) Follow() *Follower {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.follow(l.seq)
}

// FollowAfter follows the events after number seq. It fails with [store.ErrLagged] if some of
// them are no longer kept, or there never was an event seq.
func (l *Log) FollowAfter(seq uint64) (*Follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.has(seq); err != nil {
		return nil, err
	}
	return l.follow(seq), nil
}

// follow has events kept from now on. l.mu is held.
func (l *Log) follow(seq uint64) *Follower {
	l.kept = true
	f := &Follower{log: l, seq: seq, more: make(chan struct{}, 1)}
	l.followers = append(l.followers, f)
	return f
}

// has fails if not all events after seq are kept. l.mu is held.
func (l *Log) has(seq uint64) error {
	if seq+1 < l.first || seq > l.seq {
		return fmt.Errorf("events after %d, kept are %d to %d: %w", seq, l.first, l.seq, store.ErrLagged)
	}
	return nil
}

// Seq is the number of the last event that was read.
func (f *Follower) Seq() uint64 {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return f.seq
}

// Lagged fails with [store.ErrLagged] if events that were not read are no longer kept.
func (f *Follower) Lagged() error {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return f.log.has(f.seq)
}

// Next waits for events and appends them to buf, at most its capacity. first is the number
// of the first of them.
func (f *Follower) Next(ctx context.Context, buf []Event) (first uint64, out []Event, err error) {
	for {
		first, out, err = f.take(buf)
		if err != nil || len(out) > len(buf) {
			return first, out, err
		}
		select {
		case <-f.more:
		case <-ctx.Done():
			return 0, buf, fmt.Errorf("wait for events: %w: %w", store.ErrTimeout, context.Cause(ctx))
		}
	}
}

func (f *Follower) take(buf []Event) (first uint64, out []Event, err error) {
	l := f.log
	l.mu.Lock()
	defer l.mu.Unlock()
	switch err := l.has(f.seq); {
	case f.closed:
		return 0, buf, store.ErrClosed
	case err != nil:
		return 0, buf, err
	case f.seq == l.seq && l.closed:
		return 0, buf, store.ErrClosed
	case f.seq == l.seq:
		f.waiting = true
		return 0, buf, nil
	}
	first = f.seq + 1
	for f.seq < l.seq && len(buf) < cap(buf) {
		at := f.seq + 1 - l.first
		c := l.chunks[at/chunkEvents]
		from := at % chunkEvents
		n := min(chunkEvents-from, l.seq-f.seq, uint64(cap(buf)-len(buf)))
		buf = append(buf, c[from:from+n]...)
		f.seq += n
	}
	return first, buf, nil
}

// Close ends the following. What waits in Next ends, too.
func (f *Follower) Close() {
	l := f.log
	l.mu.Lock()
	defer l.mu.Unlock()
	f.closed = true
	if i := slices.Index(l.followers, f); i >= 0 {
		l.followers = slices.Delete(l.followers, i, i+1)
	}
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// Stored is the event of a record that was added.
func Stored(namespace uint16, shard connector.Shard, key, parent connector.Key) Event {
	return Event{Key: key, Parent: parent, Namespace: uint32(namespace), Shard: shard, Kind: uint8(store.EventStored)}
}

// Removed is the event of a record that is gone.
func Removed(namespace uint16, shard connector.Shard, key connector.Key) Event {
	return Event{Key: key, Namespace: uint32(namespace), Shard: shard, Kind: uint8(store.EventRemoved)}
}
