package host

import (
	"context"
	"sync/atomic"

	"github.com/kvconn/kvconn/store"
)

// Slot is a handle on a slot of the arena, or on the wait for one. It lives in the
// caller's memory, is empty as its zero value and after [Slot.Release], and must not be
// copied. An empty one may be used again once no call of Release of its last use can
// come any more. Apart from Release, which may come at any time
// from any goroutine, its methods are for one goroutine at a time.
type Slot struct {
	// held is set from the call that takes the slot on until Release.
	held atomic.Bool
	// What follows is guarded by the arena's mutex, and stable while the slot is taken.
	account *Account
	class   *class
	phase   phase
	save    bool
	slot    slotID
	at      int64 // where the slot begins in the arena
	rec     slotRecord
	hash    uint64
	keyed   bool // rec and hash are set
	payload int
	outcome Outcome
	bytes   []byte
	// ready gets a token when a wait ends. It is made once.
	ready      chan struct{}
	prev, next *Slot
}

// phase is how far a handle has come.
type phase uint8

const (
	phaseEmpty   phase = iota
	phaseQueued        // waits for memory
	phasePending       // waits for another's read of the record
	phaseTaken         // pins a slot
)

// Outcome is what [Account.Acquire] came to.
type Outcome uint8

const (
	// Full means that there is no memory now; the handle is empty.
	Full Outcome = iota
	// Hit means that the slot holds the verified record. Its bytes must not be changed.
	Hit
	// Fill means that the slot is the caller's to read the record into.
	Fill
	// Pending means that the record is being read by someone else: see [Slot.Wait].
	Pending
)

func (o Outcome) String() string { return [...]string{"full", "hit", "fill", "pending"}[o] }

// slotQueue is a first-in first-out queue of handles.
type slotQueue struct{ head, tail *Slot }

func (q *slotQueue) push(s *Slot) {
	s.prev, s.next = q.tail, nil
	if q.tail != nil {
		q.tail.next = s
	} else {
		q.head = s
	}
	q.tail = s
}

func (q *slotQueue) pushFront(s *Slot) {
	s.prev, s.next = nil, q.head
	if q.head != nil {
		q.head.prev = s
	} else {
		q.tail = s
	}
	q.head = s
}

func (q *slotQueue) remove(s *Slot) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		q.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		q.tail = s.prev
	}
	s.prev, s.next = nil, nil
}

// Bytes is the payload, with a capacity as the store wants it
// ([store.PayloadBufferSize]), or nil unless the handle pins a slot. The bytes must not
// be touched after Release.
func (s *Slot) Bytes() []byte { return s.bytes }

// Offset is where the payload begins in [Arena.File]. The handle must pin a slot.
func (s *Slot) Offset() int64 { return s.at }

// Publish makes the slot's bytes findable as a record. The caller must have verified
// them, and not change them from then on; the slot stays pinned. It reports false if
// nothing came of it: the record is in another slot already, was dropped meanwhile, or
// the slot holds one. The bytes are the caller's until Release either way.
func (s *Slot) Publish(rec store.Record) bool {
	a := s.account.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.phase != phaseTaken {
		return false
	}
	p := a.slot(s.slot)
	r := s.account.record(&rec)
	switch hash := a.index.hash(&r.slotKey); p.state {
	case slotFilling:
		if !p.holds(&r, hash) {
			return false
		}
	case slotDirty:
		if a.find(hash, &r.slotKey) != 0 || s.keyed || a.span(a.spanOf(s.slot)).draining {
			return false
		}
		a.keep(s.slot, &r, hash, s.payload)
	default:
		return false
	}
	p.state = slotClean
	a.cleanBytes += int64(s.class.slotBytes)
	if p.waited {
		for w := a.nextWaiter(s.slot); w != nil; w = a.nextWaiter(s.slot) {
			a.pin(w, s.slot, Hit)
			a.count.Hits++
			w.signal()
		}
	}
	return true
}

// keep makes a slot findable as a record.
func (a *Arena) keep(id slotID, r *slotRecord, hash uint64, payload int) {
	p := a.slot(id)
	p.set(r, hash)
	p.short = uint16(a.classOfSlot(id).slotBytes - payload)
	a.insert(id)
}

// addWaiter makes a handle wait for a slot to be filled.
func (a *Arena) addWaiter(id slotID, s *Slot) {
	q := a.waiters[id]
	q.push(s)
	a.waiters[id] = q
	a.slot(id).waited = true
}

// removeWaiter is the inverse of addWaiter.
func (a *Arena) removeWaiter(id slotID, s *Slot) {
	q := a.waiters[id]
	q.remove(s)
	if a.waiters[id] = q; q.head == nil {
		delete(a.waiters, id)
		a.slot(id).waited = false
	}
}

// nextWaiter takes the first of those who wait for a slot to be filled, nil if there is none.
func (a *Arena) nextWaiter(id slotID) *Slot {
	w := a.waiters[id].head
	if w != nil {
		a.removeWaiter(id, w)
	}
	return w
}

// Release ends the use of a slot, or the wait for one. A slot that holds no findable
// record becomes free. Calls beyond the first do nothing, so that whoever is done with a
// slot last, such as a callback of the store, may release it without asking.
func (s *Slot) Release() {
	if !s.held.Load() {
		return
	}
	a := s.account.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if !s.held.Load() {
		return
	}
	waits := s.phase != phaseTaken
	a.release(s)
	s.held.Store(false)
	if waits {
		s.signal()
	}
	a.serve()
}

// Wait waits for the record that another reads and returns with the slot pinned as a
// [Hit], or with the handle empty: with [ErrFillFailed] if the other gave up, or ctx's
// error. Calling it on a handle that pins a slot returns nil at once.
func (s *Slot) Wait(ctx context.Context) error {
	if !s.held.Load() {
		return ErrFillFailed
	}
	a := s.account.arena
	for {
		a.mu.Lock()
		now := s.phase
		a.mu.Unlock()
		switch now {
		case phaseTaken:
			return nil
		case phaseEmpty:
			return ErrFillFailed
		}
		// A token may be that of the wait for memory, which had ended otherwise.
		select {
		case <-s.ready:
		case <-ctx.Done():
			s.Release()
			return context.Cause(ctx)
		}
	}
}

// expect prepares a handle for a signal.
func (s *Slot) expect() {
	if s.ready == nil {
		s.ready = make(chan struct{}, 1)
	}
}

func (s *Slot) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// pin gives a slot to a handle whose account is charged.
func (a *Arena) pin(s *Slot, id slotID, o Outcome) {
	p, c, span := a.slot(id), a.classOfSlot(id), a.spanOf(id)
	g := a.span(span)
	if p.pins++; p.pins == 1 {
		if g.busy++; g.busy == 1 {
			a.held.set(int(g.first), c.spanUnits, true)
		}
		a.usedBytes += int64(c.slotBytes)
	}
	a.tick++
	p.used = a.now()
	at := int64(g.first)*int64(a.opts.unitBytes) + int64(id-a.firstSlot(span))*int64(c.slotBytes)
	s.slot, s.at, s.phase, s.outcome = id, at, phaseTaken, o
	s.bytes = a.mem.bytes[at : at+int64(s.payload) : at+int64(c.slotBytes)]
}

// release takes back whatever a handle has.
func (a *Arena) release(s *Slot) {
	switch s.phase {
	case phaseQueued:
		a.unqueue(s)
	case phasePending:
		a.removeWaiter(s.slot, s)
		s.account.charge(s, -1)
	case phaseTaken:
		s.account.charge(s, -1)
		p := a.slot(s.slot)
		if p.pins--; p.pins == 0 {
			a.unpinned(s.slot)
		}
	}
	s.empty()
}

// empty makes a handle that holds nothing ready for use again.
func (s *Slot) empty() {
	s.phase, s.slot, s.bytes, s.outcome = phaseEmpty, 0, nil, Full
}

// unpinned puts a slot that no one uses any more where it belongs.
func (a *Arena) unpinned(id slotID) {
	at, p, c := a.spanOf(id), a.slot(id), a.classOfSlot(id)
	g := a.span(at)
	draining := g.draining
	if g.busy--; g.busy == 0 && !draining {
		a.held.set(int(g.first), c.spanUnits, false)
	}
	a.usedBytes -= int64(c.slotBytes)
	if p.state == slotFilling {
		a.remove(id)
		a.failWaiters(id)
		p.state = slotDirty
	}
	switch {
	case p.state != slotClean:
		a.freeSlot(id)
	case draining:
		a.remove(id)
		a.cleanBytes -= int64(c.slotBytes)
		a.count.Evictions++
		a.freeSlot(id)
	default:
		a.pushFront(&c.clean, id)
	}
	if draining && g.taken == 0 {
		a.dissolve(at)
	}
}

// failWaiters tells those who wait for a slot to be filled that it will not be.
func (a *Arena) failWaiters(id slotID) {
	if !a.slot(id).waited {
		return
	}
	for w := a.nextWaiter(id); w != nil; w = a.nextWaiter(id) {
		w.account.charge(w, -1)
		w.empty()
		w.held.Store(false)
		w.signal()
	}
}
