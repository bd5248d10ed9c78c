package store

import (
	"context"

	"github.com/kvconn/kvconn/connector"
)

// EventKind says what happened to a record.
type EventKind uint8

// The kinds of events.
const (
	EventStored EventKind = iota + 1
	EventRemoved
)

// Event says that a record came or went. It is published afterwards: a record that was stored can be
// read, unless a later event has removed it.
type Event struct {
	// Seq numbers the events of one epoch without gaps, from 1 on.
	Seq  uint64
	Kind EventKind
	ID   RecordID
	// Parent is the key of the chain's previous block; only for stored records.
	Parent connector.Key
}

// Resident is a record of a snapshot.
type Resident struct {
	ID     RecordID
	Parent connector.Key
}

// Events tell which records a tier has, and which come and go.
type Events interface {
	// Epoch is a random number of this opening of the tier. Events of two epochs have nothing to
	// do with each other.
	Epoch() uint64
	// Subscribe takes a snapshot of what the tier holds and follows the events after it.
	Subscribe(ctx context.Context) (Subscription, error)
	// SubscribeAfter follows the events after seq of the present epoch, without a snapshot: for
	// a subscriber that lost its connection and nothing else. It fails with [ErrLagged] if some
	// of them are no longer kept.
	SubscribeAfter(epoch, seq uint64) (Subscription, error)
}

// Subscription is a consistent view of what a tier holds: a snapshot, and every event after it.
type Subscription interface {
	// Snapshot calls f for every record that the tier held when the subscription was made, and
	// lets go of the snapshot. A second call does nothing. It fails with [ErrLagged] as soon as
	// events that follow the snapshot are no longer kept, since it is of no use then.
	Snapshot(ctx context.Context, f func(Resident) error) error
	// Next waits for events and returns them by number. The slice is valid until the next call.
	// It fails with [ErrLagged] if the subscriber is too slow, with [ErrTimeout] when ctx ends
	// and with [ErrClosed] when the tier or the subscription has closed.
	Next(ctx context.Context) ([]Event, error)
	// Seq is the number of the last event that Next returned or that the snapshot includes.
	Seq() uint64
	// Close lets go of the snapshot and of the events that were not read.
	Close() error
}
