package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// readBatch is the most records asked of the store at once: enough to keep any disk
// busy, small enough that the first blocks are copied while the rest is read.
const readBatch = 16

var (
	errFenced = errors.New("engine memory was given back")
	errSlot   = errors.New("block id outside of the registered memory")
)

// load is one request's load on one rank. It ends exactly once: when its last block is
// done, or when its deadline passes.
type load struct {
	w       *Worker
	mem     *memory
	request string
	t       connector.Transfer
	ctx     context.Context
	cancel  context.CancelFunc
	began   time.Time

	// fence is held for reading while a block is copied to engine memory.
	fence  sync.RWMutex
	fenced bool

	mu        sync.Mutex
	done      []bool
	remaining int
	failed    []uint32
	ended     bool
}

// start begins the load. A transfer without blocks ends at once.
func (l *load) start() {
	l.done = make([]bool, len(l.t.Blocks))
	l.remaining = len(l.t.Blocks)
	if l.remaining == 0 {
		l.expire()
		return
	}
	l.mem.users.Add(1)
	l.w.moves.Add(1)
	context.AfterFunc(l.ctx, l.expire)
	go func() {
		defer l.w.moves.Add(-1)
		defer l.mem.users.Done()
		l.run()
	}()
}

// run feeds the store with batches as staging slots come free.
func (l *load) run() {
	var reads sync.WaitGroup
	defer reads.Wait()
	parent := l.t.Parent
	for next := 0; next < len(l.t.Blocks); {
		ops := l.batch(next, parent)
		if len(ops) == 0 {
			return // the deadline has passed; expire reports the rest
		}
		next += len(ops)
		parent = l.t.Blocks[next-1].Key
		reads.Go(func() { l.read(ops) })
	}
}

// blockRead is the read of one block of the transfer into a staging slot.
type blockRead struct {
	store.ReadOp
	index int
	// released makes sure that the slot is put back once: the store may report that the
	// kernel has let go of it while the read's end is still being handled.
	released atomic.Bool
}

// batch takes staging slots for the blocks from next on: one at least, unless the load
// has ended.
func (l *load) batch(next int, parent connector.Key) []*blockRead {
	var ops []*blockRead
	for i := next; i < len(l.t.Blocks) && len(ops) < readBatch && l.ctx.Err() == nil; i++ {
		buf := l.mem.takeLoad(l.ctx, len(ops) == 0)
		if buf == nil {
			break
		}
		b := &l.t.Blocks[i]
		op := &blockRead{index: i, ReadOp: store.ReadOp{
			ID:     store.RecordID{Namespace: l.w.opts.Namespace, Shard: l.w.opts.Shard, Key: b.Key},
			Parent: parent, Proof: b.Proof, Payload: buf,
		}}
		op.OnSettled = func(*store.ReadOp) { l.release(op) }
		ops = append(ops, op)
		parent = b.Key
	}
	return ops
}

// release puts a read's staging slot back.
func (l *load) release(op *blockRead) {
	if op.released.CompareAndSwap(false, true) {
		l.mem.putLoad(op.Payload)
	}
}

// read runs one batch to its end.
func (l *load) read(ops []*blockRead) {
	reads := make([]*store.ReadOp, len(ops))
	for i, op := range ops {
		reads[i] = &op.ReadOp
	}
	l.w.store.Read(l.ctx, reads, func(r *store.ReadOp) {
		for _, op := range ops {
			if &op.ReadOp != r {
				continue
			}
			err := r.Err
			if err == nil {
				err = l.copyIn(op)
			}
			if r.Settled() {
				l.release(op)
			}
			l.blockDone(op.index, err)
		}
	})
}

// copyIn copies a verified block to engine memory, unless the load has ended.
func (l *load) copyIn(op *blockRead) error {
	l.fence.RLock()
	defer l.fence.RUnlock()
	// An engine whose deadline has passed while this process stood still has been told
	// that the load failed, or will be.
	if l.fenced || l.ctx.Err() != nil {
		return errFenced
	}
	slot := l.t.Blocks[op.index].Slot
	if slot >= l.mem.layout.Blocks {
		return errSlot
	}
	return l.mem.move(l.ctx, slot, op.Payload, l.mem.driver.CopyIn)
}

// blockDone notes the end of one block and, with the last, of the load.
func (l *load) blockDone(index int, err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.w.countBlock(l, index, err)
	l.done[index] = true
	l.remaining--
	if err != nil {
		l.failed = append(l.failed, l.t.Blocks[index].Slot)
	}
	l.ended = l.remaining == 0
	ended := l.ended
	l.mu.Unlock()
	if ended {
		l.end()
	}
}

// stopCopies returns once no more bytes of this load can reach engine memory.
func (l *load) stopCopies() {
	l.fence.Lock()
	l.fenced = true
	l.fence.Unlock()
}

// expire ends the load by its deadline, or because its session ends: the blocks that
// are not there are reported as failed, and none of them is written from here on.
func (l *load) expire() {
	l.stopCopies()
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	for i, done := range l.done {
		if !done {
			l.failed = append(l.failed, l.t.Blocks[i].Slot)
			l.w.counters.failedBlocks.Add(1)
		}
	}
	l.mu.Unlock()
	l.end()
}

// end reports the load. It runs once.
func (l *load) end() {
	l.cancel()
	l.w.finish(l)
}
