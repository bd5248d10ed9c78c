package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Causes of failed blocks.
var (
	errSlot      = errors.New("block id outside of the registered memory")
	errUnplanned = errors.New("the leader has not planned the load: it does not know the request, or the step's plan is full")
	errLate      = errors.New("blocks were not there by the deadline")
)

// load is one request's load on one rank. It ends exactly once: when its last block is done, when
// a block has failed and all before it are done, or when its deadline passes. An engine recomputes
// everything from the first failed block on, so what follows it is not waited for. A load by key ends
// once that is so in each of its stretches.
type load struct {
	w         *Worker
	mem       *memory
	call      uint64 // number of the engine's call on mem
	request   string
	stretches []stretch
	// apart is set if each stretch is of use without the others: the engine keeps what has arrived.
	apart bool
	// lost counts slots that nothing is loaded into: they have failed from the beginning.
	lost   int
	ctx    context.Context
	cancel context.CancelFunc
	began  time.Time
	// waited is the time in nanoseconds until the first block was in memory, 0 before.
	waited atomic.Int64

	// copying is held for reading while blocks are copied to engine memory. Once fenced is set,
	// none is.
	copying sync.RWMutex
	fenced  bool

	// arrived are the records that are in memory and wait to be copied. It has room for all, and is
	// closed once no more will come.
	arrived chan *host.Item

	mu   sync.Mutex
	done []bool
	// missing are the blocks that are not done, awaited those of them that are before their stretch's
	// cut.
	missing, awaited int
	failed           []uint32
	tiers            []connector.TierBlocks // of the other blocks that are done
	cause            error                  // of the first block that failed
	ended            bool
	// unwanted is set at the end of a load that nobody waits for any more.
	unwanted bool
	// good marks the blocks that are in their slots, and over is closed at the end; both are nil unless
	// a call waits for the load. Poll does not report it then.
	good []bool
	over chan struct{}
}

// size is the number of blocks that the load counts as.
func (l *load) size() int { return len(l.done) + l.lost }

func (w *Worker) newLoad(
	mem *memory, call uint64, request string, stretches []stretch, lost []uint32, timeout time.Duration,
) *load {
	blocks := 0
	for i := range stretches {
		stretches[i].first, stretches[i].cut = blocks, len(stretches[i].blocks)
		blocks += len(stretches[i].blocks)
	}
	l := &load{
		w: w, mem: mem, call: call, request: request, stretches: stretches, lost: len(lost), began: time.Now(),
		arrived: make(chan *host.Item, blocks), done: make([]bool, blocks), missing: blocks, awaited: blocks,
		failed: lost,
	}
	if len(lost) > 0 {
		l.cause = errUnplanned
		w.counters.failedBlocks.Add(uint64(len(lost)))
	}
	l.ctx, l.cancel = context.WithTimeoutCause(w.ctx, timeout, errLate)
	return l
}

// start begins the load. One without blocks ends at once.
func (l *load) start() {
	if l.missing == 0 {
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

// run brings the blocks into memory and copies them as they arrive.
func (l *load) run() {
	shape := l.mem.shape
	var copiers sync.WaitGroup
	for range min(shape.Calls, len(l.done)) {
		copiers.Go(func() { l.copyArrived(shape.BatchBytes) })
	}
	l.w.opts.Cache.Load(l.ctx, l.ctx, l.w.opts.Account, len(l.done), l.want, l.arrive)
	close(l.arrived)
	copiers.Wait()
}

// want says which record an item is.
func (l *load) want(it *host.Item) error {
	s, i := find(l.stretches, it.Index)
	if s.blocks[i].Slot >= s.group.layout.Blocks {
		return errSlot
	}
	it.Record, it.PayloadBytes = s.record(l.w.opts.Namespace, i), s.group.blockBytes
	return nil
}

// arrive passes a block on that is in memory, and notes the end of one that never will be.
func (l *load) arrive(it *host.Item) {
	if it.Err != nil {
		l.blockDone(it, it.Err)
		return
	}
	if l.waited.Load() == 0 {
		l.waited.CompareAndSwap(0, max(1, int64(time.Since(l.began))))
	}
	l.arrived <- it
}

// copyArrived copies arrived blocks to engine memory until no more will come.
func (l *load) copyArrived(batchBytes int) {
	var batch []*host.Item
	var copies []blockCopy
	for batch = l.take(batch, batchBytes); len(batch) > 0; batch = l.take(batch, batchBytes) {
		copies = copies[:0]
		for _, it := range batch {
			s, i := find(l.stretches, it.Index)
			copies = append(copies, blockCopy{group: s.group, slot: s.blocks[i].Slot, buf: it.Slot.Bytes()})
		}
		err := l.copyIn(copies)
		for _, it := range batch {
			it.Slot.Release()
			l.blockDone(it, err)
		}
	}
}

// take waits for arrivals and moves one call's worth of them to batch, none when all have
// been taken.
func (l *load) take(batch []*host.Item, batchBytes int) []*host.Item {
	clear(batch)
	batch = batch[:0]
	it, more := <-l.arrived
	for bytes := 0; more; {
		batch = append(batch, it)
		if bytes += it.PayloadBytes; bytes >= batchBytes {
			break
		}
		select {
		case it, more = <-l.arrived:
		default:
			return batch
		}
	}
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
	l.copying.RLock()
	defer l.copying.RUnlock()
	// An engine whose deadline passed while this process was suspended was told that the load
	// failed, or will be.
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	if l.fenced {
		return errFenced
	}
	took, err := l.mem.copy(l.ctx, gpu.Load, l.call, blocks)
	l.w.counters.copyNanos.Add(uint64(took))
	if err == nil {
		bytes := 0
		for i := range blocks {
			bytes += len(blocks[i].buf)
		}
		l.w.opts.Cache.Copied(bytes, took)
	}
	return err
}

// blockDone notes the end of one block and, with the last that is waited for, of the load.
func (l *load) blockDone(it *host.Item, err error) {
	index := it.Index
	s, i := find(l.stretches, index)
	l.mu.Lock()
	if l.ended || l.done[index] {
		l.mu.Unlock()
		return
	}
	l.w.countBlock(s, i, err)
	l.done[index] = true
	l.missing--
	if i < s.cut {
		l.awaited--
	}
	if err != nil {
		l.failed = append(l.failed, s.blocks[i].Slot)
		if l.cause == nil {
			l.cause = err
		}
		l.giveUp(s, i)
	} else {
		l.cameFrom(it)
		if l.good != nil {
			l.good[index] = true
		}
	}
	l.ended = l.missing == 0
	ended, useless := l.ended, l.awaited == 0
	l.mu.Unlock()
	switch {
	case ended:
		l.end()
	case useless:
		l.cancel() // the load expires
	}
}

// giveUp gives up the blocks after block i of a stretch, which failed. If the other stretches are of no
// use without it, it is not known which of their blocks come before it in the prompt, so all are given
// up. l.mu is held.
func (l *load) giveUp(s *stretch, i int) {
	if l.apart || len(l.stretches) == 1 {
		l.cutAt(s, i)
		return
	}
	for n := 0; n < len(l.stretches) && l.awaited > 0; n++ {
		l.cutAt(&l.stretches[n], 0)
	}
}

// cutAt stops waiting for a stretch's blocks from block i on. l.mu is held.
func (l *load) cutAt(s *stretch, i int) {
	for ; s.cut > i; s.cut-- {
		if !l.done[s.first+s.cut-1] {
			l.awaited--
		}
	}
}

// cameFrom counts a block by the tier that it came from: the host tier if nothing had to be read for
// this load. l.mu is held.
func (l *load) cameFrom(it *host.Item) {
	tier := it.From
	if tier == "" {
		tier = l.w.opts.Cache.Name()
	}
	i := slices.IndexFunc(l.tiers, func(t connector.TierBlocks) bool { return t.Tier == tier })
	if i < 0 {
		i = len(l.tiers)
		l.tiers = append(l.tiers, connector.TierBlocks{Tier: tier})
	}
	l.tiers[i].Blocks++
	l.tiers[i].Bytes += int64(it.PayloadBytes)
}

// expire ends the load by its deadline, or because the rest of it is not wanted any more: the blocks
// that are not there are reported as failed, and none of them is written from here on.
func (l *load) expire() {
	l.copying.Lock() // waits for copies under way
	l.fenced = true
	l.copying.Unlock()
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	if l.cause == nil {
		l.cause = errLate
	}
	for i := range l.stretches {
		s := &l.stretches[i]
		for j := range s.blocks {
			if !l.done[s.first+j] {
				l.failed = append(l.failed, s.blocks[j].Slot)
				l.w.counters.failedBlocks.Add(1)
			}
		}
	}
	l.mu.Unlock()
	l.end()
}

// end reports the load. It runs once.
func (l *load) end() {
	l.cancel()
	l.w.finish(l)
	if l.over != nil {
		close(l.over)
	}
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
	case errors.Is(cause, gpu.ErrAgain):
		return "none if it is rare: the rank registers again; else look at the GPUs in kvconnd status"
	case errors.Is(cause, gpu.ErrLost):
		return "restart the engine"
	}
	return "none if it is rare; else report the cause"
}

// causeKind is one word for a cause, "" for none.
func causeKind(cause error) string {
	for _, k := range [...]struct {
		kind string
		of   error
	}{
		{"", nil}, {"timeout", errLate}, {"timeout", store.ErrTimeout}, {"corrupt", store.ErrCorrupt}, {"io", store.ErrIO}, {"gone", store.ErrGone},
		{"fenced", errFenced}, {"device", gpu.ErrAgain}, {"device", gpu.ErrLost}, {"unplanned", errUnplanned},
	} {
		if errors.Is(cause, k.of) {
			return k.kind
		}
	}
	return "_OTHER" // as OpenTelemetry names it
}
