package host

import (
	"context"

	"github.com/kvconn/kvconn/store"
)

// Acquire gets a record for a load: pinned if it is there ([Hit]), as memory to read it into
// ([Fill]), or as the promise of another's read ([Pending]). A record is read by one at a time;
// its reader must Publish it or Release it.
//
// If no memory is free, Acquire returns [Full] and [ErrFull], or, with wait, blocks until ctx ends:
// first come, first served within an account, and the accounts in turn. Don't wait while holding
// a slot whose read hasn't been asked for: it can't be freed, so the wait might never end.
func (c *Account) Acquire(ctx context.Context, s *Slot, rec store.Record, payloadBytes int, wait bool) (Outcome, error) {
	s.mustBeEmpty()
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := c.begin(s, payloadBytes, false); err != nil {
		return Full, err
	}
	if s.rec = c.record(&rec); rec.AnyParent {
		s.rec.parent = unknownParent
	}
	s.hash = a.index.hash(&s.rec.slotKey)
	if c.queue.Head() == nil && a.try(s) {
		return s.outcome(), nil
	}
	if !wait {
		c.count.RefusedLoads++
		return Full, ErrFull
	}
	return a.await(ctx, s)
}

// ReserveSave gets memory for a save and reports whether there was any. It never waits: a caller may
// try again, and calls [Account.RefuseSave] if it gives up.
func (c *Account) ReserveSave(s *Slot, payloadBytes int) bool {
	s.mustBeEmpty()
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.begin(s, payloadBytes, true) == nil && c.allows(s.class, true) {
		if id := a.alloc(s.class, c); id != 0 {
			a.take(s, id, Fill)
			return true
		}
	}
	return false
}

// RefuseSave counts a save that is given up because there was no memory for it.
func (c *Account) RefuseSave() {
	c.arena.mu.Lock()
	defer c.arena.mu.Unlock()
	c.arena.count.RefusedSaves++
}

// pinAlso pins, for a save, the slot that another handle pins, and reports whether it may.
func (c *Account) pinAlso(s, with *Slot) bool {
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.begin(s, with.payload, true) != nil || !c.allows(s.class, true) || a.span(a.spanOf(with.slot)).draining {
		return false
	}
	a.take(s, with.slot, Hit)
	return true
}

// Fits returns nil if slots for payloads of that size can be given out, else [ErrTooLarge] or [ErrClosed].
func (c *Account) Fits(payloadBytes int) error {
	c.arena.mu.Lock()
	defer c.arena.mu.Unlock()
	return c.begin(new(Slot), payloadBytes, false)
}

// await queues a handle until it is served or ctx ends. a.mu is held, but for the wait.
func (a *Arena) await(ctx context.Context, s *Slot) (Outcome, error) {
	s.expect()
	s.become(queued)
	a.enqueue(s)
	a.count.Waits++
	a.drain.start()
	a.mu.Unlock()
	var err error
	select {
	case <-s.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	a.mu.Lock()
	switch o := s.outcome(); {
	case o == queued:
		a.unqueue(s)
		s.empty()
		a.serve()
		return Full, err
	case o != Full:
		return o, nil
	case s.account.closed:
		return Full, ErrClosed
	}
	return Full, ErrFillFailed // released, or its filler failed already
}

// serves reports whether a slot's record is what a handle wants, and may be pinned.
func (a *Arena) serves(id slotID, s *Slot) bool {
	p := a.slot(id)
	return p.holds(&s.rec, s.hash) && a.classOfSlot(id).slotBytes-int(p.short) == s.payload && !a.span(a.spanOf(id)).draining
}

// try serves a handle if that is possible now.
func (a *Arena) try(s *Slot) bool {
	c := s.account
	if !c.allows(s.class, false) {
		return false
	}
	id := a.find(s.hash, &s.rec.slotKey)
	switch {
	case id == 0:
		return a.fill(s, true)
	case !a.serves(id, s):
		// Another record, or in memory that is drained: read ours into memory of its own.
		if !a.slot(id).holds(&s.rec, s.hash) {
			a.count.Mismatched++
		}
		return a.fill(s, false)
	case a.slot(id).state == slotClean:
		a.hit(s, id)
	default:
		c.charge(s, 1)
		s.expect()
		s.slot = id
		s.become(Pending)
		a.addWaiter(id, s)
		c.count.Joined++
	}
	return true
}

// fill gives a handle memory to read its record into, where others find it if findable.
func (a *Arena) fill(s *Slot, findable bool) bool {
	id := a.alloc(s.class, s.account)
	if id == 0 {
		return false
	}
	s.account.count.Misses++
	if findable {
		a.slot(id).state = slotFilling
		a.keep(id, &s.rec, s.hash, s.payload)
	}
	a.take(s, id, Fill)
	return true
}

func (a *Arena) hit(s *Slot, id slotID) {
	if a.slot(id).pins == 0 {
		a.unlink(&a.classOfSlot(id).clean, id)
	}
	s.account.count.Hits++
	a.take(s, id, Hit)
}

func (a *Arena) take(s *Slot, id slotID, o Outcome) {
	s.account.charge(s, 1)
	a.pin(s, id, o)
	a.noteUse(s)
}
