package object

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// write is a record that is being written.
type write struct {
	op   *store.WriteOp
	done func(*store.WriteOp)
	// joined are writes of the same record that came meanwhile. The mutex of writes guards it.
	joined []*write
}

// writes are those under way.
type writes struct {
	most  int64         // bytes
	slots chan struct{} // one for each object that is sent at one time

	mu     sync.Mutex
	bytes  int64
	flying map[store.RecordID]*write
	ended  sync.Cond // some have
	ends   sync.WaitGroup
}

func (w *writes) init(o *Options) {
	w.most, w.slots, w.flying = o.WriteBytes, make(chan struct{}, o.Writes), make(map[store.RecordID]*write)
	w.ended.L = &w.mu
}

// drain waits until all writes have ended, but not for longer than a time.
func (w *writes) drain(most time.Duration) error {
	late := false
	timer := time.AfterFunc(most, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		late = true
		w.ended.Broadcast()
	})
	defer timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.flying) > 0 && !late {
		w.ended.Wait()
	}
	if n := len(w.flying); n > 0 {
		return fmt.Errorf("close object tier: %d records were not written: %w", n, store.ErrTimeout)
	}
	return nil
}

// wait waits until nothing calls a done any more.
func (w *writes) wait() { w.ends.Wait() }

// Write implements [store.Writer]. The records of one call become objects by namespace and shard, in the sequence
// given: consecutive blocks are best given one after the other, and as many as an object has at one time. done
// comes when the list with the object is written. Nothing is taken while the bucket cannot be used, or is full.
func (t *Tier) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (accepted int, err error) {
	usable := t.Writable()
	bucket, _ := t.follower.Bucket()
	var batch []*write
	for _, op := range ops {
		var w *write
		if w, err = t.accept(usable, op, done); err != nil {
			break
		}
		accepted++
		if w != nil {
			batch = append(batch, w)
		}
	}
	for _, p := range pack(batch, t.o.ObjectBytes) {
		go t.send(bucket, p)
	}
	return accepted, err
}

// Writable reports whether the bucket could be written when this node last tried, and others can be expected to have the
// key that it would be written with.
func (t *Tier) Writable() bool {
	_, usable := t.follower.Bucket()
	return usable && !t.readOnly.Load() && t.bucket.Available() && t.follower.Lacks() == nil
}

// accept checks a write and counts it. It returns nil if another write is to report it, or it is done.
func (t *Tier) accept(usable bool, op *store.WriteOp, done func(*store.WriteOp)) (*write, error) {
	if err := store.CheckBuffer(op.Payload); err != nil {
		return nil, err
	}
	n := &t.namespaces
	n.mu.Lock()
	err := n.known[op.ID.Namespace].checkSize(op.ID.Namespace, op.ID.Shard, len(op.Payload))
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	bytes := takes(op)
	w := &t.writes
	w.mu.Lock()
	defer w.mu.Unlock()
	other, there := w.flying[op.ID], false
	if other == nil { // a write that has ended is in the catalog before it leaves
		there = t.has(&op.ID, len(op.Payload))
	}
	switch {
	case t.closed.Load():
		return nil, store.ErrClosed
	case !usable:
		return nil, fmt.Errorf("the bucket cannot be written now: %w", store.ErrBusy)
	case other != nil:
		other.joined = append(other.joined, &write{op: op, done: done})
		return nil, nil
	case there:
		op.Err = nil
		w.ends.Go(func() { done(op) })
		return nil, nil
	case w.bytes > 0 && w.bytes+bytes > w.most:
		return nil, fmt.Errorf("%d bytes wait to be written: %w", w.bytes, store.ErrBusy)
	case t.catalog.Stats().Bytes+w.bytes+bytes > t.o.MaxBytes:
		return nil, fmt.Errorf("the bucket has reached its cap of %d bytes: %w", t.o.MaxBytes, store.ErrBusy)
	}
	w.bytes += bytes
	w.ends.Add(1)
	x := &write{op: op, done: done}
	w.flying[op.ID] = x
	return x, nil
}

// end reports writes.
func (w *writes) end(batch []*write, err error) {
	var all []*write
	w.mu.Lock()
	for _, x := range batch {
		w.bytes -= takes(x.op)
		delete(w.flying, x.op.ID)
		all = append(append(all, x), x.joined...)
	}
	w.mu.Unlock()
	for _, x := range all {
		x.op.Err = err
		x.done(x.op)
	}
	w.ended.Broadcast()
	w.ends.Add(-len(batch))
}

// has reports whether a record of that size is offered in the bucket.
func (t *Tier) has(id *store.RecordID, payloadBytes int) bool {
	at := []bool{false}
	t.catalog.Present(id.Namespace, id.Shard, []connector.Key{id.Key}, at)
	return at[0] && t.catalog.PayloadBytes(id.Namespace, id.Shard) == payloadBytes
}

// takes is what a record takes in the bucket at most: its slot, and its part of lists and the end of an object.
func takes(op *store.WriteOp) int64 { return format.SlotBytes(len(op.Payload)) + 512 }

// writeError is what a write reports.
func writeError(err error) error {
	if err == nil || errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrBusy) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrIO, err)
}
