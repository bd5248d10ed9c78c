package host

import (
	"context"
	"sync/atomic"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host/list"
)

// Slot is a handle on a slot of the arena, or on the wait for one. It lives in the caller's
// memory, is empty as its zero value and after [Slot.Release], and must not be copied. It may be
// used again once its last Release has returned. Release may be called from any goroutine at any
// time; all other methods are for one goroutine at a time.
//
// Its states are:
//
//	Full ──Acquire──┬─► Hit      the record is there
//	                ├─► Fill     nobody has it: the caller reads it. ──Publish──► Hit
//	                ├─► Pending  someone else reads it. ──they Publish──► Hit, ──they Release──► Full
//	                └─► queued   no memory yet. ──memory──► Hit, Fill, Pending, ──given up──► Full
//	Full ──ReserveSave──► Fill ──Publish──► Hit
//	any  ──Release──► Full
type Slot struct {
	// state is an [Outcome]. The arena's mutex is held for each change.
	state atomic.Uint32
	// The rest is guarded by the arena's mutex, and does not change while the handle pins a slot.
	account *Account
	class   *class
	save    bool // charged as a save
	slot    slotID
	at      int64 // where the slot begins in the arena
	rec     slotRecord
	hash    uint64
	payload int
	bytes   []byte
	// read is set if the record was read from a tier for this handle, though not by its user: it
	// waited for another's read, or the record was read before its load.
	read bool
	// from is the name of the tier that it was read from, if that is not the cache's own.
	from string
	// ready gets a token when a wait ends. It is made once.
	ready chan struct{}
	node  list.Node[Slot] // in the queue of its account or of a slot that is filled
}

// Outcome is what [Account.Acquire] came to.
type Outcome uint32

const (
	// Full means that there is no memory now; the handle is empty.
	Full Outcome = iota
	// Hit means that the slot holds the verified record. Its bytes must not be changed.
	Hit
	// Fill means that the slot is the caller's to read the record into.
	Fill
	// Pending means that the record is being read by someone else: see [Slot.Wait].
	Pending
	// queued means that the handle waits for memory.
	queued
)

func (o Outcome) String() string { return [...]string{"full", "hit", "fill", "pending", "queued"}[o] }

func (s *Slot) outcome() Outcome { return Outcome(s.state.Load()) }

func (s *Slot) become(o Outcome) { s.state.Store(uint32(o)) }

// Bytes is the payload, with a capacity as tiers want it ([store.PayloadBufferSize]), or nil
// unless the handle pins a slot. The bytes must not be touched after Release.
func (s *Slot) Bytes() []byte { return s.bytes }

// Offset is where the payload begins in [Arena.File]. The handle must pin a slot.
func (s *Slot) Offset() int64 { return s.at }

// Publish makes the slot's bytes findable as a record. The caller must have verified them, and
// not change them from then on; the slot stays pinned. It reports false if the record is in
// another slot already, or the slot is not one to [Fill]. The bytes are the caller's until Release
// either way.
func (s *Slot) Publish(rec store.Record) bool { return s.publish(rec, "") }

// publish is Publish of what was read from a tier.
func (s *Slot) publish(rec store.Record, from string) bool {
	a := s.account.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.outcome() != Fill {
		return false
	}
	p := a.slot(s.slot)
	r := s.account.record(&rec)
	hash := a.index.hash(&r.slotKey)
	switch {
	case p.state == slotFilling:
		if !p.holds(&r, hash) {
			return false
		}
		p.parent = r.parent // known now, if any would do
	case a.find(hash, &r.slotKey) != 0 || a.span(a.spanOf(s.slot)).draining:
		return false
	default:
		a.keep(s.slot, &r, hash, s.payload)
	}
	p.state = slotClean
	s.become(Hit)
	a.cleanBytes += int64(s.class.slotBytes)
	if p.ahead != 0 {
		a.count.Prefetched++
		if from != "" {
			a.aheads.from[s.slot] = from
		}
	}
	for w := a.nextWaiter(s.slot); w != nil; w = a.nextWaiter(s.slot) {
		w.read, w.from = true, from
		a.pin(w, s.slot, Hit)
		a.noteUse(w)
		a.count.Hits++
		w.signal()
	}
	return true
}

// keep makes a slot findable as a record.
func (a *Arena) keep(id slotID, r *slotRecord, hash uint64, payload int) {
	p := a.slot(id)
	p.set(r, hash)
	p.short = uint16(a.classOfSlot(id).slotBytes - payload)
	a.insert(id)
	a.spaces[r.ns].uses++
}

// addWaiter makes a handle wait for a slot to be filled.
func (a *Arena) addWaiter(id slotID, s *Slot) {
	q := a.waiters[id]
	q.Push(&s.node, s)
	a.waiters[id] = q
}

func (a *Arena) removeWaiter(id slotID, s *Slot) {
	q := a.waiters[id]
	q.Remove(&s.node)
	if a.waiters[id] = q; q.Head() == nil {
		delete(a.waiters, id)
	}
}

// nextWaiter takes the first handle that waits for a slot to be filled, nil if there is none.
func (a *Arena) nextWaiter(id slotID) *Slot {
	q := a.waiters[id]
	w := q.First()
	if w != nil {
		a.removeWaiter(id, w)
	}
	return w
}

// Release ends the use of a slot, or the wait for one. A slot that holds no findable record
// becomes free. Further calls do nothing, so that the last user of a slot, such as a callback
// of a tier, may release it without asking.
func (s *Slot) Release() {
	if s.outcome() == Full {
		return
	}
	a := s.account.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s.outcome() {
	case Full:
		return
	case queued:
		a.unqueue(s)
		s.giveUp()
	case Pending:
		a.removeWaiter(s.slot, s)
		s.account.charge(s, -1)
		s.giveUp()
	default:
		s.account.charge(s, -1)
		p := a.slot(s.slot)
		if p.pins--; p.pins == 0 {
			a.unpinned(s.slot)
		}
		s.empty()
	}
	a.serve()
}

// Wait waits for the record that another reads and returns with the slot pinned as a [Hit], or
// with the handle empty: with [ErrFillFailed] if the other gave up, or the cause of ctx.
// On a handle that pins a slot it returns nil at once.
func (s *Slot) Wait(ctx context.Context) error {
	for {
		switch s.outcome() {
		case Hit, Fill:
			return nil
		case Full:
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

// giveUp ends a wait without a slot.
func (s *Slot) giveUp() {
	s.empty()
	s.signal()
}

// empty makes a handle that holds nothing ready for use again.
func (s *Slot) empty() {
	s.slot, s.bytes, s.read, s.from = 0, nil, false, ""
	s.become(Full)
}

// mustBeEmpty panics on a handle in use, whose slot would be lost.
func (s *Slot) mustBeEmpty() {
	if s.outcome() != Full {
		panic("host: the handle is in use")
	}
}

// pin gives a slot to a handle whose account is charged.
func (a *Arena) pin(s *Slot, id slotID, o Outcome) {
	p, c, span := a.slot(id), a.classOfSlot(id), a.spanOf(id)
	g := a.span(span)
	if p.pins++; p.pins == 1 {
		if g.busy++; g.busy == 1 {
			a.held.Set(int(g.first), c.spanUnits, true)
		}
		a.usedBytes += int64(c.slotBytes)
	}
	a.tick++
	p.used = a.now()
	at := int64(g.first)*int64(a.opts.unitBytes) + int64(id-a.firstSlot(span))*int64(c.slotBytes)
	if p.ahead != 0 && !s.account.ahead {
		s.read, s.from = true, a.aheads.from[id]
	}
	s.slot, s.at, s.bytes = id, at, a.mem.Bytes[at:at+int64(s.payload):at+int64(c.slotBytes)]
	s.become(o)
}

// unpinned puts a slot that no one uses any more where it belongs.
func (a *Arena) unpinned(id slotID) {
	at, p, c := a.spanOf(id), a.slot(id), a.classOfSlot(id)
	g := a.span(at)
	draining := g.draining
	if g.busy--; g.busy == 0 && !draining {
		a.held.Set(int(g.first), c.spanUnits, false)
	}
	a.usedBytes -= int64(c.slotBytes)
	switch {
	case p.state == slotClean && !draining:
		a.pushFront(&c.clean, id)
		return
	case p.state == slotClean:
		a.forgetRecord(id)
	case p.state == slotFilling:
		a.remove(id)
		a.leave(p.ns)
		a.failWaiters(id)
	}
	a.freeSlot(id)
	if draining && g.taken == 0 {
		a.dissolve(at)
	}
}

// failWaiters tells the handles that wait for a slot to be filled that it will not be.
func (a *Arena) failWaiters(id slotID) {
	for w := a.nextWaiter(id); w != nil; w = a.nextWaiter(id) {
		w.account.charge(w, -1)
		w.giveUp()
	}
}
