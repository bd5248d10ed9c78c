package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// readBatch is the most records asked of the store at once: enough to keep any disk
// busy, small enough that the first blocks are copied while the rest is read.
const readBatch = 16

// fetch brings records into the host tier: they are there already, someone else reads
// them, or they are read from disk. Its done is called once for each record, in any order
// and from any goroutine: with a pinned slot that the callee releases, or with an error.
type fetch struct {
	// ctx bounds the waits for memory and for others' reads, readCtx those for the disk.
	ctx, readCtx context.Context

	store   Store
	account *host.Account
	// count is the number of records; record says what record i is, and its payload size, or
	// why it is not wanted.
	count  int
	record func(i int) (store.Record, int, error)
	done   func(i int, slot *host.Slot, err error)

	others sync.WaitGroup
}

// item is one record on its way.
type item struct {
	store.ReadOp
	slot  host.Slot
	index int
}

// run returns when done was called for every record.
func (f *fetch) run() {
	defer f.others.Wait()
	for next := 0; next < f.count; {
		next = f.batch(next)
	}
}

// batch begins with as many records from next on as make one batch of reads, one at
// least, and returns the first that is left.
func (f *fetch) batch(next int) int {
	items := make([]item, min(readBatch, f.count-next))
	reads := make([]*item, 0, len(items))
	taken := 0
	for ; taken < len(items); taken++ {
		it := &items[taken]
		it.index = next + taken
		// To wait for memory with unread slots in hand could be for ever.
		outcome, err := f.acquire(it, len(reads) == 0)
		if errors.Is(err, host.ErrFull) && len(reads) > 0 {
			break
		}
		switch {
		case err != nil:
			f.done(it.index, nil, err)
		case outcome == host.Hit:
			f.done(it.index, &it.slot, nil)
		case outcome == host.Pending:
			f.others.Go(func() { f.await(it) })
		default:
			reads = append(reads, it)
		}
	}
	if len(reads) > 0 {
		f.others.Go(func() { f.read(reads) })
	}
	return next + taken
}

func (f *fetch) acquire(it *item, wait bool) (host.Outcome, error) {
	rec, payloadBytes, err := f.record(it.index)
	if err != nil {
		return host.Full, err
	}
	for {
		if f.ctx.Err() != nil {
			return host.Full, context.Cause(f.ctx)
		}
		outcome, err := f.account.Acquire(f.ctx, &it.slot, rec, payloadBytes, wait)
		// Another's read may have ended without the record while this one waited for memory.
		if !errors.Is(err, host.ErrFillFailed) {
			return outcome, err
		}
	}
}

// await waits for a record that someone else reads, and reads it where they gave up.
func (f *fetch) await(it *item) {
	err := it.slot.Wait(f.ctx)
	for errors.Is(err, host.ErrFillFailed) {
		var outcome host.Outcome
		switch outcome, err = f.acquire(it, true); {
		case err != nil:
		case outcome == host.Fill:
			f.read([]*item{it})
			return
		case outcome == host.Pending:
			err = it.slot.Wait(f.ctx)
		}
	}
	if err != nil {
		f.done(it.index, nil, err)
		return
	}
	f.done(it.index, &it.slot, nil)
}

// read reads records into the slots that they were given.
func (f *fetch) read(items []*item) {
	ops := make([]*store.ReadOp, len(items))
	for i, it := range items {
		rec, _, _ := f.record(it.index)
		it.ReadOp = store.ReadOp{Record: rec, Payload: it.slot.Bytes()}
		it.OnSettled = func(*store.ReadOp) { it.slot.Release() }
		ops[i] = &it.ReadOp
	}
	f.store.Read(f.readCtx, ops, func(r *store.ReadOp) {
		for _, it := range items {
			if &it.ReadOp == r {
				f.arrived(it)
			}
		}
	})
}

// arrived passes a record on that was read, and verified, or not.
func (f *fetch) arrived(it *item) {
	if err := it.Err; err != nil {
		if it.Settled() {
			it.slot.Release()
		}
		f.done(it.index, nil, err)
		return
	}
	rec, _, _ := f.record(it.index)
	it.slot.Publish(rec)
	f.done(it.index, &it.slot, nil)
}
