package upload

import (
	"context"
	"errors"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store"
)

const (
	// gatherRecords are looked up in the target, and queued, at one time.
	gatherRecords = 1024
	// followPause is waited for before the next snapshot if the last one was of no use.
	followPause = time.Second
)

// follow offers what the source has and what comes to it, until ctx ends or the source closes.
func (u *Uploader) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := u.target.Ready(ctx)
		if err == nil {
			err = u.subscribe(ctx)
		}
		switch {
		case errors.Is(err, store.ErrClosed):
			return
		case errors.Is(err, context.Canceled) && ctx.Err() == nil:
			continue // OfferAll
		case errors.Is(err, store.ErrLagged):
			u.o.Logger.Info("upload: events of the first tier were missed; its records are offered again")
		case ctx.Err() == nil:
			u.o.Logger.Warn("upload: cannot follow the first tier", "error", err)
		}
		sleep.For(ctx, followPause, nil)
	}
}

// subscribe takes a snapshot and follows the events after it.
func (u *Uploader) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	u.session = cancel
	u.mu.Unlock()
	sub, err := u.source.Subscribe(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() { _ = sub.Close() }() // nothing was written
	u.missed.Store(false)
	u.mu.Lock()
	u.count.Snapshots++
	u.mu.Unlock()
	g := gatherer{u: u}
	if err := sub.Snapshot(ctx, func(r store.Resident) error {
		g.stored(r.ID, r.Parent)
		return nil
	}); err != nil {
		return ended(ctx, err)
	}
	g.flush()
	for {
		events, err := sub.Next(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		for i := range events {
			if e := &events[i]; e.Kind == store.EventStored {
				g.stored(e.ID, e.Parent)
			} else {
				g.removed(e.ID)
			}
		}
		g.flush()
	}
}

// ended is the error of a call that may have ended with ctx.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Canceled
	}
	return err
}

// gatherer gathers consecutive records of one lane.
type gatherer struct {
	u     *Uploader
	id    laneID
	items []item
	keys  []connector.Key
	at    []bool
}

// stored offers a record, unless its namespace's are not uploaded before their second use.
func (g *gatherer) stored(id store.RecordID, parent connector.Key) {
	if to := (laneID{id.Namespace, id.Shard}); to != g.id || len(g.items) == gatherRecords {
		g.flush()
		g.id = to
	}
	g.items = append(g.items, item{key: id.Key, parent: parent})
}

// removed takes a record back.
func (g *gatherer) removed(id store.RecordID) {
	g.flush()
	g.u.mu.Lock()
	defer g.u.mu.Unlock()
	if g.u.q.drop(id) {
		g.u.count.Gone++
	}
}

func (g *gatherer) flush() {
	if len(g.items) > 0 && g.u.policies.of(g.id.ns).policy == All {
		g.offer()
	}
	g.items = g.items[:0]
}

// offer queues the records that the target does not have.
func (g *gatherer) offer() {
	u := g.u
	payloadBytes := u.source.PayloadBytes(g.id.ns, g.id.shard)
	if payloadBytes == 0 { // all have gone
		return
	}
	g.keys = keys(g.keys, g.items)
	g.at = append(g.at[:0], make([]bool, len(g.keys))...)
	u.target.Has(g.id.ns, g.id.shard, g.keys, g.at)
	since, dropped := u.now(), uint64(0)
	u.mu.Lock()
	l := u.q.lane(g.id, payloadBytes)
	idle := l.oldest == 0
	for i, it := range g.items {
		it.since = since
		switch {
		case g.at[i]:
			u.count.Deduplicated++
		case !u.q.add(l, it):
			dropped++
		}
	}
	first := dropped > 0 && !u.missed.Swap(true)
	u.count.Dropped += dropped
	wake := idle && l.oldest != 0 || len(l.byKey) >= l.perObject(u.o.ObjectBytes)
	u.q.forget(l)
	u.mu.Unlock()
	if wake {
		u.look()
	}
	if first {
		u.o.Logger.Warn("upload: the queue is full; records stay on this node until they are used again or the daemon starts",
			"queue_bytes", u.o.QueueBytes, "queue_records", u.o.QueueRecords)
	}
}
