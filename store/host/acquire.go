package host

import (
	"context"

	"github.com/kvconn/kvconn/store"
)

// Lookup pins the slot of a record of that parent and proof if there is a verified one,
// and reports whether. It never waits, and counts no miss.
func (c *Account) Lookup(s *Slot, rec store.Record, payloadBytes int) bool {
	s.mustBeEmpty()
	a := c.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	r := c.record(&rec)
	hash := a.index.hash(&r.slotKey)
	id := a.find(hash, &r.slotKey)
	if id == 0 || a.slot(id).state != slotClean || c.queue.head != nil || c.begin(s, payloadBytes, false) != nil {
		return false
	}
	s.rec, s.hash, s.keyed = r, hash, true
	if !a.serves(id, s) || !c.allows(s.class, false) {
		return false
	}
	a.hit(s, id)
	return true
}

// Acquire gets a record for a load: pinned if it is there ([Hit]), as memory to read it
// into ([Fill]), or as the promise of another's read ([Pending]). A record is read by one
// at a time; its reader must Publish it or Release it.
//
// Without memory to be had the outcome is [Full], with [ErrFull], unless wait is set:
// then Acquire waits, first come first served within the account and the accounts in
// turn, until ctx ends. Wait only where no own slot is held whose reads have not been
// asked for: such a slot cannot come back.
func (c *Account) Acquire(ctx context.Context, s *Slot, rec store.Record, payloadBytes int, wait bool) (Outcome, error) {
	s.mustBeEmpty()
	a := c.arena
	a.mu.Lock()
	if err := c.begin(s, payloadBytes, false); err != nil {
		a.mu.Unlock()
		return Full, err
	}
	s.rec = c.record(&rec)
	s.hash, s.keyed = a.index.hash(&s.rec.slotKey), true
	return a.await(ctx, s, wait)
}

// Reserve gets memory for a load that is of no record, with the rules of
// [Account.Acquire]. The error is nil if the handle pins a slot.
func (c *Account) Reserve(ctx context.Context, s *Slot, payloadBytes int, wait bool) error {
	s.mustBeEmpty()
	a := c.arena
	a.mu.Lock()
	if err := c.begin(s, payloadBytes, false); err != nil {
		a.mu.Unlock()
		return err
	}
	_, err := a.await(ctx, s, wait)
	return err
}

// ReserveSave gets memory for a save and reports whether there was any. It never waits.
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
	a.count.RefusedSaves++
	return false
}

// await tries to serve a handle and queues it if it may wait. a.mu is held, and released.
func (a *Arena) await(ctx context.Context, s *Slot, wait bool) (Outcome, error) {
	c := s.account
	if c.queue.head == nil && a.try(s) {
		o := s.outcome
		if s.phase == phasePending {
			o = Pending
		}
		a.mu.Unlock()
		return o, nil
	}
	if !wait {
		a.count.RefusedLoads++
		a.mu.Unlock()
		return Full, ErrFull
	}
	s.expect()
	s.phase = phaseQueued
	s.held.Store(true)
	a.enqueue(s)
	a.count.Waits++
	a.startDrain()
	a.mu.Unlock()
	var err error
	select {
	case <-s.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case s.phase == phaseQueued:
		a.unqueue(s)
		s.empty()
		s.held.Store(false)
		a.serve()
		return Full, err
	case s.phase == phasePending:
		return Pending, nil
	case s.phase == phaseTaken:
		return s.outcome, nil
	case c.closed:
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
	if !s.keyed {
		id := a.alloc(s.class, c)
		if id != 0 {
			a.take(s, id, Fill)
		}
		return id != 0
	}
	id := a.find(s.hash, &s.rec.slotKey)
	switch {
	case id == 0:
		return a.fill(s, true)
	case !a.serves(id, s):
		// Not what is wanted, or not to be pinned any longer: read it into memory of its own.
		if !a.slot(id).holds(&s.rec, s.hash) {
			a.count.Mismatched++
		}
		return a.fill(s, false)
	case a.slot(id).state == slotClean:
		a.hit(s, id)
	default:
		c.charge(s, 1)
		s.expect()
		s.slot, s.phase = id, phasePending
		s.held.Store(true)
		a.addWaiter(id, s)
		a.count.Joined++
	}
	return true
}

// fill gives a handle memory to read its record into, where others find it if findable.
func (a *Arena) fill(s *Slot, findable bool) bool {
	id := a.alloc(s.class, s.account)
	if id == 0 {
		return false
	}
	a.count.Misses++
	if s.keyed = findable; findable {
		a.slot(id).state = slotFilling
		a.keep(id, &s.rec, s.hash, s.payload)
	}
	a.take(s, id, Fill)
	return true
}

// hit pins a clean slot.
func (a *Arena) hit(s *Slot, id slotID) {
	if a.slot(id).pins == 0 {
		a.unlink(&a.classOfSlot(id).clean, id)
	}
	a.count.Hits++
	a.take(s, id, Hit)
}

// take charges and pins a slot.
func (a *Arena) take(s *Slot, id slotID, o Outcome) {
	s.account.charge(s, 1)
	a.pin(s, id, o)
	s.held.Store(true)
}

func (a *Arena) unqueue(s *Slot) {
	s.account.queue.remove(s)
	a.dequeued(s.account)
	// The account's next waiter may need a longer run.
	if next := s.account.queue.head; a.drain.owner == s.account && (next == nil || next.class != a.drain.class) {
		a.endDrain()
	}
}
