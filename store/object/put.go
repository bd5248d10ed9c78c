package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// maxNames is how often an object is given another name because somebody has its own.
	maxNames = 3
	// listPauseEach is how much longer lists wait for each node that writes.
	listPauseEach = 8 * time.Millisecond
)

// send writes an object, and hands it to the lister, which reports the writes.
func (t *Tier) send(id format.BucketID, p *packed) {
	o, err := t.put(id, p)
	if err != nil {
		t.writes.end(p.writes, writeError(fmt.Errorf("write %d records to the bucket: %w", len(p.writes), err)))
		return
	}
	if !t.lister.add(listed{id, o, p}) {
		t.writes.end(p.writes, store.ErrClosed)
	}
}

// put writes an object, under another name if its own is taken.
func (t *Tier) put(id format.BucketID, p *packed) (*format.Object, error) {
	ctx, cancel := context.WithTimeout(t.ctx, t.o.PutTimeout)
	defer cancel()
	select {
	case t.writes.slots <- struct{}{}:
		defer func() { <-t.writes.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := t.describe(ctx, id, p.ns); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		d, err := t.build(id, p, t.outbox.NextID())
		if err != nil {
			return nil, err
		}
		_, err = t.bucket.Put(ctx, format.DataName(d.object.ID).String(), &d.body, d.body.bytes, bucket.Condition{Absent: true})
		if err == nil {
			return &d.object, nil
		}
		if !errors.Is(err, bucket.ErrCondition) || n == maxNames {
			return nil, err
		}
		t.outbox.Collided(d.object.ID.Writer())
	}
}

// lister has objects that are in the bucket and in no list yet.
type lister struct {
	more chan struct{}

	mu    sync.Mutex
	wait  []listed
	ended bool // nobody takes more
}

type listed struct {
	bucket format.BucketID
	object *format.Object
	*packed
}

// add reports false if the tier has closed.
func (l *lister) add(x listed) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.wait = append(l.wait, x)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return true
}

// take takes what waits. With last nothing can be added from then on.
func (l *lister) take(last bool) []listed {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.wait
	l.wait, l.ended = nil, last
	return all
}

// list tells the other nodes of objects, those of some time together, until the tier closes.
func (t *Tier) list() {
	var last time.Time
	for {
		select {
		case <-t.ctx.Done():
			t.listed(t.lister.take(true), store.ErrClosed)
			return
		case <-t.lister.more:
		}
		pause := t.o.ListPause + time.Duration(t.outbox.Stats().Writers)*listPauseEach
		select {
		case <-time.After(pause - time.Since(last)):
		case <-t.closing: // nobody waits for more
		case <-t.ctx.Done():
		}
		all := t.lister.take(false)
		for _, x := range all {
			t.outbox.Add(*x.object)
		}
		ctx, cancel := context.WithTimeout(t.ctx, t.o.PutTimeout)
		err := t.outbox.Flush(ctx)
		cancel()
		last = time.Now()
		t.listed(all, err)
	}
}

// listed reports the writes of objects whose list was written, or was not.
func (t *Tier) listed(all []listed, err error) {
	now, _ := t.follower.Bucket()
	for _, x := range all {
		cause := err
		if cause == nil && x.bucket != now {
			cause = errors.New("the bucket was emptied meanwhile")
		}
		if cause == nil {
			t.catalog.Apply(&format.List{Name: format.InName(x.object.ID.Writer(), 0), Bucket: now, Objects: []format.Object{*x.object}})
			t.probed.note(&store.ReadOp{Record: x.writes[0].op.Record, Payload: x.writes[0].op.Payload})
		} else {
			cause = fmt.Errorf("write the list of %d records to the bucket: %w", len(x.writes), cause)
		}
		t.writes.end(x.writes, writeError(cause))
	}
}
