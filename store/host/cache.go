package host

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/kvconn/kvconn/store"
)

// Cache is the host tier: a read-through cache in front of a tier, or of a chain of tiers, in the
// memory of an arena. Everything that moves blocks reads and writes records through it. It is
// safe for concurrent use.
type Cache struct {
	*Arena
	tier store.Tier
}

// NewCache returns a cache in a's memory of what t keeps. The arena and the tier stay the caller's to close.
func NewCache(a *Arena, t store.Tier) *Cache { return &Cache{a, t} }

// Tier is what the cache reads from and writes to.
func (c *Cache) Tier() store.Tier { return c.tier }

// Item is one record on its way into memory.
type Item struct {
	// ReadOp says what the record must be, and in Err how its load ended. From is empty if the record
	// was in memory, and not because it was just read for this load.
	store.ReadOp
	// Slot pins the record once it has arrived without an error, until the caller releases it.
	Slot Slot
	// Index is the item's place in its load.
	Index int
	// PayloadBytes is the size of the record's payload.
	PayloadBytes int
}

// readBatch is the most records asked of a tier at once: enough to keep any disk busy, small
// enough that the first blocks are copied while the rest is read.
const readBatch = 16

// Load brings n records into memory: they are there, somebody else reads them, or they are read
// from the tier. want sets Record and PayloadBytes of the item with an Index, or says why it
// is not to be loaded; it is called from the calling goroutine, in sequence.
//
// arrived is called once for each item, in any order and from any goroutine. If Err is nil, Slot
// pins the verified bytes for the callee to release. Otherwise Err is that of want, of the
// [store.Reader], the cause of ctx, or one of [ErrTooLarge] and [ErrClosed]. arrived must not
// block for long. Load returns when it was called for all items, and the first tier has taken or
// refused what slower ones delivered.
//
// ctx bounds the waits for memory and for the reads of others, reading the reads of this call.
// A buffer that the kernel still owns after its read was abandoned stays pinned until it is free.
func (c *Cache) Load(ctx, reading context.Context, account *Account, n int, want func(*Item) error, arrived func(*Item)) {
	l := &load{ctx: ctx, reading: reading, cache: c, account: account, want: want, arrived: arrived}
	for next := 0; next < n; next += readBatch {
		l.batch(next, min(readBatch, n-next))
	}
	l.others.Wait()
}

// load is one call of [Cache.Load].
type load struct {
	ctx, reading context.Context
	cache        *Cache
	account      *Account
	want         func(*Item) error
	arrived      func(*Item)
	others       sync.WaitGroup // reads, waits and promotions under way
}

// batch begins with n items, from index first on.
func (l *load) batch(first, n int) {
	items := make([]Item, n)
	reads := make([]*store.ReadOp, 0, n)
	for i := range items {
		it := &items[i]
		it.Index = first + i
		outcome, err := Full, l.want(it)
		if err == nil {
			outcome, err = l.acquire(it, len(reads) == 0)
		}
		if errors.Is(err, ErrFull) && len(reads) > 0 {
			// To wait for memory with unread slots in hand could take forever.
			l.read(reads)
			reads = make([]*store.ReadOp, 0, n-i)
			outcome, err = l.acquire(it, true)
		}
		switch {
		case err != nil:
			l.end(it, err)
		case outcome == Hit:
			l.end(it, nil)
		case outcome == Pending:
			l.others.Go(func() { l.await(it) })
		default:
			reads = append(reads, it.fill())
		}
	}
	if len(reads) > 0 {
		l.read(reads)
	}
}

func (l *load) acquire(it *Item, wait bool) (Outcome, error) {
	for {
		if l.ctx.Err() != nil {
			return Full, context.Cause(l.ctx)
		}
		outcome, err := l.account.Acquire(l.ctx, &it.Slot, it.Record, it.PayloadBytes, wait)
		// Another's read may have ended without the record while this one waited for memory.
		if !errors.Is(err, ErrFillFailed) {
			return outcome, err
		}
	}
}

// await waits for a record that someone else reads, and reads it itself if they give up.
func (l *load) await(it *Item) {
	err := it.Slot.Wait(l.ctx)
	for errors.Is(err, ErrFillFailed) {
		var outcome Outcome
		switch outcome, err = l.acquire(it, true); {
		case err != nil:
		case outcome == Fill:
			l.cache.tier.Read(l.reading, []*store.ReadOp{it.fill()}, l.filled)
			return
		case outcome == Pending:
			err = it.Slot.Wait(l.ctx)
		}
	}
	l.end(it, err)
}

func (l *load) end(it *Item, err error) {
	if it.Err = err; err == nil && it.Slot.read {
		it.From = cmp.Or(it.Slot.from, l.cache.tier.Name())
	}
	l.arrived(it)
}

// fill makes the item's slot what the record is read into.
func (it *Item) fill() *store.ReadOp {
	it.Payload, it.Owner, it.OnSettled = it.Slot.Bytes(), it, settled
	return &it.ReadOp
}

// settled lets go of memory that the kernel has written to until now.
func settled(op *store.ReadOp) { op.Owner.(*Item).Slot.Release() }

// read reads records into the slots that they were given.
func (l *load) read(ops []*store.ReadOp) {
	l.others.Go(func() { l.cache.tier.Read(l.reading, ops, l.filled) })
}

// filled publishes a record that was read and verified, and lets go of the slot of any other.
func (l *load) filled(op *store.ReadOp) {
	it := op.Owner.(*Item)
	switch {
	case it.Err == nil:
		if !it.Promote {
			it.Slot.Publish(it.Record)
		} else if it.Slot.publish(it.Record, it.From) {
			l.promote(it)
		}
	case it.Settled():
		it.Slot.Release()
	}
	l.arrived(it)
}

// Save is one record on its way from memory to a tier.
type Save struct {
	// WriteOp is the record and, in Err, how its write ended. [Cache.Save] sets its payload.
	store.WriteOp
	// Slot holds the payload: [Account.ReserveSave] gives it.
	Slot Slot
}

// Save writes records whose slots have been filled, and returns at once: how many of them, from
// the first on, are taken, and why not more, as [store.Writer] does. Slots of the others are
// released.
//
// done is called once for each that was taken, from any goroutine, when the record can be found
// in the tier or Err is set; it must not block. What was written stays in memory. The slot is
// released by then.
func (c *Cache) Save(saves []*Save, done func(*Save)) (taken int, err error) {
	ops := make([]*store.WriteOp, len(saves))
	for i, s := range saves {
		s.Owner, s.Payload = s, s.Slot.Bytes()
		ops[i] = &s.WriteOp
	}
	taken, err = c.tier.Write(ops, func(op *store.WriteOp) {
		s := op.Owner.(*Save)
		if s.Err == nil {
			s.Slot.Publish(s.Record)
		}
		s.Slot.Release()
		done(s)
	})
	for _, s := range saves[taken:] {
		s.Slot.Release()
	}
	return taken, err
}

// promote offers a record that a slower tier has delivered to the first one, which may refuse
// it: from the slot that it was read into, pinned once more as a save.
func (l *load) promote(it *Item) {
	s := &Save{WriteOp: store.WriteOp{Record: it.Record, Scope: it.Scope}}
	taken := 0
	l.others.Add(1)
	if l.account.pinAlso(&s.Slot, &it.Slot) {
		taken, _ = l.cache.Save([]*Save{s}, l.promoted)
	}
	if taken == 0 {
		s.Err = store.ErrBusy
		l.promoted(s)
	}
}

func (l *load) promoted(s *Save) {
	l.cache.mu.Lock()
	if s.Err == nil {
		l.cache.count.Promoted++
	} else {
		l.cache.count.PromotionsRefused++
	}
	l.cache.mu.Unlock()
	l.others.Done()
}
