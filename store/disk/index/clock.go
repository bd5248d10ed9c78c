package index

import (
	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/disk/index/victim"
	"github.com/kvconn/kvconn/store/disk/index/written"
)

// ticks count uses: every look-up and every batch of insertions takes the next one. The clock
// has 64 bits; an entry keeps the low 32 of its last use, and the age, clock less tick, tells
// the rest. So that no age reaches 2^32 the entries are gone over again and again, a few
// thousand at a time: one that was not used for [recency.MaxAge] ticks is given that age.
const (
	// clockStart is after the tick of every record loaded, and so high that no age leads
	// below 0.
	clockStart = 1<<33 | written.FirstTick
	// agingCycle is in how many ticks all entries are gone over, agingRun how many at a
	// time. An entry may wait for two cycles where the table grows meanwhile.
	agingCycle = 1 << 30
	agingRun   = 4096
)

// nextTick advances the clock.
func (t *Table) nextTick() uint64 {
	tick := t.clock.Add(1)
	if tick >= t.agingAt.Load() {
		t.age(tick)
	}
	return tick
}

// full is the 64-bit tick whose low half an entry keeps.
func (t *Table) full(tick uint32) uint64 { return recency.Full(tick, t.clock.Load()) }

// age gives the next entries in turn an age that 32 bits can tell.
func (t *Table) age(now uint64) {
	if !t.aging.TryLock() {
		return // another goroutine does
	}
	defer t.aging.Unlock()
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || now < t.agingAt.Load() {
		return
	}
	if t.aged >= t.limit {
		t.aged = 0
	}
	end := min(uint64(t.aged)+agingRun, uint64(t.limit))
	for ref := t.aged; uint64(ref) < end; ref++ {
		t.entry(ref).use.LimitAge(uint32(now))
	}
	t.aged = Ref(end)
	runs := uint64(t.limit)/agingRun + 1
	t.agingAt.Store(now + max(1, agingCycle/runs))
}

// climb goes up a chain, under several holds of the lock for reading, and makes each record
// as recent as a tick, up to the first that is already.
type climb struct {
	t       *Table
	tick    uint32
	rest    Ref // where to go on, or NoRef
	restSeq uint64
}

// climb goes up by at most budget records and returns by how many.
func (c *climb) climb(budget int) (raised int) {
	for c.rest != NoRef && raised < budget {
		e := c.t.entry(c.rest)
		if e.seq == 0 || !e.use.Raise(c.tick, c.t.clock.Load()) {
			c.rest = NoRef
			break
		}
		raised++
		c.rest = c.t.validParent(e)
	}
	return raised
}

// pause is called before the lock is let go of, resume when it is held again: the chain
// ends where the next record is another one by then.
func (c *climb) pause() {
	if c.rest != NoRef {
		c.restSeq = c.t.entry(c.rest).seq
	}
}

func (c *climb) resume() {
	if c.rest != NoRef && (c.rest >= c.t.limit || c.t.entry(c.rest).seq != c.restSeq) {
		c.rest = NoRef
	}
}

// order is a record's place in the order of eviction.
func (t *Table) order(e *entry) uint64 { return victim.Order(t.full(e.tick()), e.blocksBefore()) }

// Clock is the tick of the last use.
func (t *Table) Clock() uint64 { return t.clock.Load() }
