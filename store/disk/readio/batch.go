package readio

import (
	"time"

	"github.com/kvconn/kvconn/store"
)

// batch is one call of Read.
type batch struct {
	done  func(*store.ReadOp)
	ops   []*Read
	left  int           // ops not done; guarded by the mutex of the reader
	ended chan struct{} // has a token when left is 0
	timer *time.Timer
	began time.Time
}

// begin registers a call of Read.
func (r *Reader) begin(ops []*store.ReadOp, done func(*store.ReadOp), now time.Time) (*batch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, store.ErrClosed
	}
	r.calls++
	var b *batch
	if k := len(r.batches); k > 0 {
		b = r.batches[k-1]
		r.batches = r.batches[:k-1]
	} else {
		b = &batch{ended: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	}
	b.done, b.left, b.began = done, len(ops), now
	for _, op := range ops {
		b.ops = append(b.ops, r.adopt(op, b))
	}
	return b, nil
}

func (r *Reader) end(b *batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range b.ops {
		if op.phase != abandoned { // the kernel still has those
			*op = Read{}
			r.idleOps = append(r.idleOps, op)
		}
	}
	clear(b.ops)
	b.done, b.ops = nil, b.ops[:0]
	r.batches = append(r.batches, b)
	if r.calls--; r.calls == 0 {
		r.idle.Broadcast()
	}
}

// adopt begins an op. r.mu is held.
func (r *Reader) adopt(o *store.ReadOp, b *batch) *Read {
	var op *Read
	if k := len(r.idleOps); k > 0 {
		op = r.idleOps[k-1]
		r.idleOps = r.idleOps[:k-1]
	} else {
		op = new(Read)
	}
	o.Err = nil
	o.SetSettled(true)
	op.ReadOp, op.batch = o, b
	return op
}
