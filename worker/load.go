package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Causes of blocks that are never looked for.
var (
	errSlot      = errors.New("block id outside of the registered memory")
	errUnplanned = errors.New("the leader has not planned the load: it does not know the request, or the step's plan is full")
)

// loadBlock is one block of a load: a record and where it goes.
type loadBlock struct {
	group  *groupMemory
	slot   uint32
	parent connector.Key
	key    connector.Key
	proof  connector.Proof
}

// load is one request's load on one rank. It ends exactly once: when its last block is
// done, or when its deadline passes.
type load struct {
	w       *Worker
	mem     *memory
	call    uint64 // number of the engine's call on mem
	request string
	blocks  []loadBlock
	// lost counts slots that nothing is loaded into: they have failed from the beginning.
	lost   int
	ctx    context.Context
	cancel context.CancelFunc
	began  time.Time

	// fence is held for reading while blocks are copied to engine memory.
	fence  sync.RWMutex
	fenced bool

	// arrived holds what waits to be copied, all of it once complete is set. A change wakes
	// the copiers.
	arrivedMu sync.Mutex
	more      sync.Cond
	arrived   []arrival
	complete  bool

	mu        sync.Mutex
	done      []bool
	remaining int
	failed    []uint32
	cause     error // of the first block that failed
	ended     bool
}

// errLate is the cause of a load that its deadline ended.
var errLate = errors.New("blocks were not there by the deadline")

// arrival is a verified block in host memory.
type arrival struct {
	index int
	slot  *host.Slot
}

// size is the number of blocks that the load counts as.
func (l *load) size() int { return len(l.blocks) + l.lost }

func (w *Worker) newLoad(mem *memory, call uint64, request string, blocks []loadBlock, lost []uint32) *load {
	l := &load{
		w: w, mem: mem, call: call, request: request, blocks: blocks, lost: len(lost), began: time.Now(),
		done: make([]bool, len(blocks)), remaining: len(blocks), failed: lost,
	}
	if len(lost) > 0 {
		l.cause = errUnplanned
		w.counters.failedBlocks.Add(uint64(len(lost)))
	}
	l.more.L = &l.arrivedMu
	l.ctx, l.cancel = context.WithTimeoutCause(w.ctx, w.opts.LoadTimeout, errLate)
	return l
}

// start begins the load. One without blocks ends at once.
func (l *load) start() {
	if l.remaining == 0 {
		l.expire()
		return
	}
	context.AfterFunc(l.ctx, l.expire)
	l.w.moves.Add(1)
	go func() {
		defer l.w.moves.Add(-1)
		l.run()
	}()
}

// run fetches the blocks and copies what has arrived.
func (l *load) run() {
	shape := l.mem.shape
	var copiers sync.WaitGroup
	for range min(shape.Calls, len(l.blocks)) {
		copiers.Go(func() { l.copyArrivals(shape.BatchBytes) })
	}
	f := fetch{
		ctx: l.ctx, readCtx: l.ctx, store: l.w.store, account: l.w.opts.Account, count: len(l.blocks),
		record: l.record, done: l.fetched,
	}
	f.run()
	l.arrivedMu.Lock()
	l.complete = true
	l.arrivedMu.Unlock()
	l.more.Broadcast()
	copiers.Wait()
}

// record says what block i is.
func (l *load) record(i int) (store.Record, int, error) {
	b := &l.blocks[i]
	if b.slot >= b.group.layout.Blocks {
		return store.Record{}, 0, errSlot
	}
	return store.Record{
		ID:     store.RecordID{Namespace: l.w.opts.Namespace, Shard: b.group.shard, Key: b.key},
		Parent: b.parent, Proof: b.proof,
	}, b.group.blockBytes, nil
}

// fetched takes in a block that is in host memory, or never will be.
func (l *load) fetched(i int, s *host.Slot, err error) {
	if err != nil {
		l.blockDone(i, err)
		return
	}
	l.arrivedMu.Lock()
	l.arrived = append(l.arrived, arrival{i, s})
	l.arrivedMu.Unlock()
	l.more.Signal()
}

// copyArrivals copies what has arrived to engine memory until there is no more to come.
func (l *load) copyArrivals(batchBytes int) {
	var batch []arrival
	var copies []blockCopy
	for batch = l.take(batch, batchBytes); len(batch) > 0; batch = l.take(batch, batchBytes) {
		copies = copies[:0]
		for _, a := range batch {
			b := &l.blocks[a.index]
			copies = append(copies, blockCopy{group: b.group, slot: b.slot, buf: a.slot.Bytes()})
		}
		err := l.copyIn(copies)
		for _, a := range batch {
			a.slot.Release()
			l.blockDone(a.index, err)
		}
	}
}

// take waits for arrivals and moves one call's worth of them to batch, none when all have
// been taken.
func (l *load) take(batch []arrival, batchBytes int) []arrival {
	l.arrivedMu.Lock()
	defer l.arrivedMu.Unlock()
	for len(l.arrived) == 0 && !l.complete {
		l.more.Wait()
	}
	batch = batch[:0]
	for bytes := 0; len(batch) < len(l.arrived) && bytes < batchBytes; {
		a := l.arrived[len(batch)]
		batch = append(batch, a)
		bytes += len(a.slot.Bytes())
	}
	rest := copy(l.arrived, l.arrived[len(batch):])
	l.arrived = l.arrived[:rest]
	return batch
}

// copyIn copies verified blocks to engine memory, unless the load has ended. The rank's
// loads take turns.
func (l *load) copyIn(blocks []blockCopy) error {
	select {
	case l.mem.turns <- struct{}{}:
		defer func() { <-l.mem.turns }()
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
	l.fence.RLock()
	defer l.fence.RUnlock()
	// An engine whose deadline has passed while this process stood still has been told
	// that the load failed, or will be.
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	if l.fenced {
		return errFenced
	}
	began := time.Now()
	err := l.mem.copy(l.ctx, gpu.Load, l.call, blocks)
	took := time.Since(began)
	l.w.counters.copyNanos.Add(uint64(took))
	if err == nil {
		bytes := 0
		for i := range blocks {
			bytes += len(blocks[i].buf)
		}
		l.w.opts.Meter.add(bytes, took)
	}
	return err
}

// blockDone notes the end of one block and, with the last, of the load.
func (l *load) blockDone(index int, err error) {
	l.mu.Lock()
	if l.ended || l.done[index] {
		l.mu.Unlock()
		return
	}
	l.w.countBlock(l, index, err)
	l.done[index] = true
	l.remaining--
	if err != nil {
		l.failed = append(l.failed, l.blocks[index].slot)
		if l.cause == nil {
			l.cause = err
		}
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

// expire ends the load by its deadline, or because it is not wanted any more: the blocks
// that are not there are reported as failed, and none of them is written from here on.
func (l *load) expire() {
	l.stopCopies()
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	if l.cause == nil {
		l.cause = errLate
	}
	for i, done := range l.done {
		if !done {
			l.failed = append(l.failed, l.blocks[i].slot)
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

// remedy is what a person can do about loads that fail for a cause again and again.
func remedy(cause error) string {
	switch {
	case errors.Is(cause, errLate), errors.Is(cause, store.ErrTimeout):
		return "the disk is slow or hangs: look at the queues in kvconnd status and at the kernel's log; raise load_timeout if it is only slow"
	case errors.Is(cause, store.ErrCorrupt), errors.Is(cause, store.ErrIO):
		return "look for I/O errors in the kernel's log; if it goes on, replace the disk"
	case errors.Is(cause, store.ErrGone):
		return "none if it is rare: the record was dropped since it was offered"
	case errors.Is(cause, errFenced):
		return "none if it is rare: the engine took its memory back"
	case errors.Is(cause, gpu.ErrLost):
		return "restart the engine"
	}
	return "none if it is rare; else report the cause"
}
