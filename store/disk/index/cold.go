package index

import (
	"slices"
	"sync"

	"github.com/kvconn/kvconn/store/disk/index/mintree"
	"github.com/kvconn/kvconn/store/disk/index/victim"
)

// Which record goes. A class is the slots of one size; a group is groupSlots of them side by
// side. For each group the table keeps a bound: no record of the group comes before it in the
// order of eviction. A use only moves a record back in that order and costs the bound
// nothing, an insertion lowers it. A choice looks through the group with the least
// bound: what it finds up to the next group's bound are the next to go, exactly, and the group
// gets its true bound. Whatever the table's size, a choice looks at a few thousand
// entries.
//
// The rule that is kept: a record of a class is one of the victims chosen, or not before
// its group's bound, or pinned. Pinned records count as used when they were last looked
// at.

const (
	groupShift = 6
	groupSlots = 1 << groupShift
	// scanRun is how many entries are looked at under one hold of the lock.
	scanRun = 1024
	// choiceGroups is how many groups one choice looks through, and enoughVictims how many
	// victims are enough to end it before.
	choiceGroups  = 32
	enoughVictims = 64
	// seenVictims is how many victims a choice makes of the coldest records that it saw if
	// none of the groups that it looked through had what its bound promised.
	seenVictims = 16
)

// cold is what a table knows about what to evict. The table's lock guards it; a
// caller that holds that lock for reading alone also holds mu.
type cold struct {
	choosing sync.Mutex // held for a whole choice, outside of the table's lock; guards choice
	choice   choice     // its memory is used again
	mu       sync.Mutex
	classes  map[int64]*coldClass
	byNumber []*coldClass // the class of place.class less 1
	// places says, for each group of slots, whose it is; nil where a chunk has none.
	places []*[chunkEntries / groupSlots]place
}

// place is a group's class, 0 if it has none, and its leaf there.
type place struct{ class, leaf uint32 }

type coldClass struct {
	number uint32
	bounds mintree.Tree
	spans  []span
	// victims are the next to go, in order, in the memory of chosen. upTo is the order of the
	// last one; stale is set if a record was added before it.
	victims []Victim
	chosen  []Victim
	upTo    uint64
	stale   bool
}

// Victim is a candidate for eviction.
type Victim = victim.Victim

func (c *cold) place(ref Ref) *place {
	if p := c.places[ref>>chunkShift]; p != nil {
		return &p[ref&chunkMask>>groupShift]
	}
	return nil
}

// lower notes that a record with that order is in a slot.
func (c *cold) lower(ref Ref, order uint64) {
	p := c.place(ref)
	if p == nil || p.class == 0 {
		return
	}
	class := c.byNumber[p.class-1]
	class.bounds.Lower(p.leaf, order)
	if order < class.upTo {
		class.stale = true
	}
}

// Track makes a range of slots part of a class: its records are evicted in turn with the
// others of the class. The class is any number but 0; the range begins at a multiple of 64
// and no other is in its last 64 slots. made is the recency of the range while it is empty
// ([Table.ColdestRange]). If it holds records already [Table.Survey] must follow.
func (t *Table) Track(class int64, r Range, made uint64) {
	if r.Base%groupSlots != 0 || class == 0 {
		panic("index: a tracked range is not aligned")
	}
	for from := uint32(0); from < r.Slots; from += trackRun {
		t.trackRun(class, Range{Base: r.Base + Ref(from), Slots: min(trackRun, r.Slots-from)})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.cold.classes[class]; c != nil {
		c.spans = append(c.spans, span{Range: r, made: made, heat: made})
	}
}

// trackRun is how many slots become part of a class under one hold of the lock.
const trackRun = 1024 * groupSlots

func (t *Table) trackRun(class int64, r Range) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	c := t.cold.classes[class]
	if c == nil {
		c = &coldClass{number: uint32(len(t.cold.byNumber) + 1)}
		t.cold.byNumber = append(t.cold.byNumber, c)
		t.cold.classes[class] = c
	}
	for ref := uint64(r.Base); ref < uint64(r.Base)+uint64(r.Slots); ref += groupSlots {
		chunk := &t.cold.places[ref>>chunkShift]
		if *chunk == nil {
			*chunk = new([chunkEntries / groupSlots]place)
		}
		p := t.cold.place(Ref(ref))
		if p.class != 0 {
			panic("index: a range is tracked twice")
		}
		*p = place{class: c.number, leaf: c.bounds.Add(uint32(ref >> groupShift))}
	}
}

// Untrack ends the tracking of a range: none of its records is evicted in turn any more.
func (t *Table) Untrack(r Range) {
	t.mu.Lock()
	for _, c := range t.cold.classes {
		c.spans = slices.DeleteFunc(c.spans, func(s span) bool { return s.Base == r.Base })
	}
	t.mu.Unlock()
	for from := uint32(0); from < r.Slots; from += trackRun {
		t.untrackRun(Range{Base: r.Base + Ref(from), Slots: min(trackRun, r.Slots-from)})
	}
}

func (t *Table) untrackRun(r Range) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for ref := uint64(r.Base); ref < uint64(r.Base)+uint64(r.Slots); ref += groupSlots {
		if p := t.cold.place(Ref(ref)); p != nil && p.class != 0 {
			t.cold.byNumber[p.class-1].bounds.Drop(p.leaf)
			*p = place{}
		}
	}
}

// Choose chooses the next victims of a class, in eviction order, for [Table.Evict], and returns
// the first. It reports false if no record of the class can go. It looks through at most
// [choiceGroups] groups in which a record could go, besides those in which none can: a group
// pinned as a whole is put last, an empty one is not looked at again. Writers wait no longer than it
// takes to look at a group, and nothing is allocated.
func (t *Table) Choose(class int64) (first Victim, ok bool) {
	t.cold.choosing.Lock()
	defer t.cold.choosing.Unlock()
	ch := &t.cold.choice
	*ch = choice{t: t, class: class, began: victim.Order(t.nextTick(), 0), found: ch.found[:0], seen: ch.seen[:0]}
	for n := 0; n < choiceGroups || len(ch.found)+len(ch.seen) == 0; n++ {
		if len(ch.found) >= enoughVictims || !ch.look() {
			break
		}
	}
	if len(ch.found) == 0 {
		ch.found = append(ch.found, ch.seen...)
	}
	return ch.keep()
}

// choice is a choice of victims under way.
type choice struct {
	t     *Table
	class int64
	// began is the order of a record used now, later than any other choice began: what comes
	// after was pinned when this choice looked at it.
	began uint64
	found []Victim
	seen  victim.Coldest // the coldest of what was not found
}

// look looks through the group with the least bound. It reports false if there is none with
// anything to give.
func (ch *choice) look() bool {
	t := ch.t
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.cold.mu.Lock()
	defer t.cold.mu.Unlock()
	c := t.cold.classes[ch.class]
	if c == nil {
		return false
	}
	leaf, bound := c.bounds.Least()
	if bound == mintree.None || bound > ch.began {
		return false
	}
	group := c.bounds.Name(leaf)
	c.bounds.Set(leaf, mintree.None)
	_, next := c.bounds.Least()
	least := uint64(mintree.None)
	base := Ref(group) << groupShift
	for ref := base; ref < base+groupSlots; ref++ {
		e := t.entry(ref)
		if e.seq == 0 {
			continue
		}
		order := t.order(e)
		switch {
		case e.pins() > 0:
			least = min(least, max(order, ch.began+1))
		case order <= next:
			ch.found = append(ch.found, Victim{Ref: ref, Seq: e.seq, Order: order})
		default:
			least = min(least, order)
			ch.seen.Offer(Victim{Ref: ref, Seq: e.seq, Order: order}, seenVictims)
		}
	}
	c.bounds.Set(leaf, least)
	return true
}

// keep adds what was found to the victims of the class.
func (ch *choice) keep() (first Victim, ok bool) {
	t := ch.t
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cold.classes[ch.class]
	if c == nil {
		return Victim{}, false
	}
	c.chosen = append(append(c.chosen[:0], c.victims...), ch.found...)
	slices.SortFunc(c.chosen, victim.Compare)
	c.victims = slices.Compact(c.chosen) // a group may have been looked through again
	c.stale = false
	c.ended()
	if len(c.victims) == 0 {
		return Victim{}, false
	}
	return c.victims[0], true
}

// ended sets what follows from the victims that are left.
func (c *coldClass) ended() {
	if n := len(c.victims); n > 0 {
		c.upTo = c.victims[n-1].Order
		return
	}
	c.upTo, c.stale, c.victims = 0, false, nil
}

// Forget takes the choice of victims of a class back: others are to be chosen when the next one is to
// go.
func (t *Table) Forget(class int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cold.classes[class]
	if c == nil {
		return
	}
	for _, v := range c.victims {
		t.cold.lower(v.Ref, v.Order)
	}
	c.victims = nil
	c.ended()
}

// Chosen is how many victims of a class are left of those chosen, 0 if others must be
// chosen first.
func (t *Table) Chosen(class int64) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if c := t.cold.classes[class]; c != nil && !c.stale {
		return len(c.victims)
	}
	return 0
}

// Evict takes up to want of the victims chosen out of the table, in their order. Records that
// were used since they were chosen, or are pinned, stay. It appends what it took to out.
func (t *Table) Evict(class int64, want int, out []Removed) []Removed {
	for want > 0 {
		n := min(want, evictRun)
		before := len(out)
		out = t.evictRun(class, n, out)
		want -= n
		if len(out)-before < n {
			break
		}
	}
	return out
}

func (t *Table) evictRun(class int64, want int, out []Removed) []Removed {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cold.classes[class]
	if c == nil {
		return out
	}
	for want > 0 && len(c.victims) > 0 {
		v := c.victims[0]
		c.victims = c.victims[1:]
		e := t.entry(v.Ref)
		if e.seq != v.Seq {
			continue
		}
		if e.pins() > 0 {
			t.cold.lower(v.Ref, max(v.Order, victim.Order(t.clock.Load(), 0)))
			continue
		}
		if order := t.order(e); order != v.Order {
			t.cold.lower(v.Ref, order)
			continue
		}
		if r, ok := t.remove(v.Ref, v.Seq); ok {
			out = append(out, r)
			t.horizon.Store(max(t.horizon.Load(), v.Tick()))
			want--
		}
	}
	c.ended()
	return out
}

func (c *cold) memoryBytes() int64 {
	const placeBytes = 8
	n := int64(0)
	for _, p := range c.places {
		if p != nil {
			n += placeBytes * chunkEntries / groupSlots
		}
	}
	for _, class := range c.classes {
		n += class.bounds.Bytes() + int64(cap(class.chosen))*24 + int64(cap(class.spans))*32
	}
	return n
}
