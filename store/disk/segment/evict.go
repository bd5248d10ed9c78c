package segment

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/store/disk/barrier"
	"github.com/kvconn/kvconn/store/disk/report"
)

// EvictJob is a step of reclaiming that changes the index: want records of a class go, or all
// records of a segment, or a retired segment gets its slots back.
type EvictJob struct {
	SlotBytes int64 // of the class
	Want      int
	Segment   *Segment
	Restore   bool
	Evicted   int
	Left      int // records of the segment that could not be removed yet
	Err       error
}

// ReclaimerOptions are what a reclaimer works with.
type ReclaimerOptions struct {
	Space   *Space
	Barrier *barrier.Barrier
	// Commit has the one goroutine that changes the index do a job, and waits for it.
	Commit func(*EvictJob)
	// SlotWait is how long a write waits for a slot.
	SlotWait time.Duration
	Logger   *slog.Logger
}

// Reclaimer finds slots for writes: it evicts records, has segments made, and gives segments up
// where room is needed for something else. See shrink.go.
type Reclaimer struct {
	ReclaimerOptions
	evictSignal chan struct{}
	wakeup      chan struct{}
	failed      report.Incident // a step of a retirement failed
	nothing     report.Incident // nothing is left to give up though the file system is too full
}

// NewReclaimer returns a reclaimer that does nothing by itself before [Reclaimer.Evictor] and
// [Reclaimer.Shrinker] run.
func NewReclaimer(o ReclaimerOptions) *Reclaimer {
	return &Reclaimer{ReclaimerOptions: o, evictSignal: make(chan struct{}, 1), wakeup: make(chan struct{}, 1)}
}

const (
	// headroomBytes is how much a class keeps free or about to be free once it cannot
	// grow: what a fast disk writes while two barriers pass.
	headroomBytes = 512 << 20
	// headroomPart bounds that to a part of the class.
	headroomPart = 16
	// evictLimit bounds the records that are evicted at one time.
	evictLimit = 256
	// stuckInterval is how long to wait for a lease or a reader to let go of a slot.
	stuckInterval = 5 * time.Millisecond
)

// need returns how many records of a class should be evicted now. p.mu is held.
func (p *Space) need(c *class) int {
	if c.making {
		return 0 // the segment that is being made brings the slots
	}
	if _, _, ok := p.plan(c); ok && !p.making.full {
		return 0 // what keeps a segment from being made may pass
	}
	headroom := max(1, min(c.slots/headroomPart, headroomBytes/c.slotBytes))
	return max(0, int(headroom)+c.waiting-len(c.free)-int(c.pending))
}

// wait counts writers that wait for a slot of a class.
func (p *Space) wait(slotBytes int64, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classOf(slotBytes).waiting += n
}

// relieve wakes the evictor if a class runs out of free slots, and the barrier if writers
// wait for slots that only need one.
func (rc *Reclaimer) relieve(slotBytes int64, waiting bool) {
	p := rc.Space
	p.mu.Lock()
	c := p.classOf(slotBytes)
	need := p.need(c)
	if p.growAhead(c) {
		need = 1
	}
	c.pressed = c.pressed || need > 0
	short := c.pending > 0 && (len(c.free) == 0 || int64(len(c.free)) < c.pending/2)
	p.mu.Unlock()
	if need > 0 {
		select {
		case rc.evictSignal <- struct{}{}:
		default:
		}
	}
	if short || waiting {
		rc.Barrier.Request()
	}
}

// Evictor frees slots until the store stops.
func (rc *Reclaimer) Evictor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-rc.evictSignal:
		}
		for _, c := range rc.Space.pressedClasses() {
			rc.makeAhead(c)
			rc.relieveClass(ctx, c)
		}
	}
}

// growAhead reports whether a class will soon use up its slots and may grow: a writer
// should not have to wait for a segment to be made. p.mu is held.
func (p *Space) growAhead(c *class) bool {
	if c.making || !p.mayMake() || c.slots == 0 || int64(len(c.free))*c.slotBytes >= min(aheadBytes, p.limits.nominal/2) {
		return false
	}
	_, _, ok := p.plan(c)
	return ok
}

// aheadBytes is what the disk writes while a segment is made.
const aheadBytes = 64 << 20

// makeAhead makes segments for a class until it has slots for a while.
func (rc *Reclaimer) makeAhead(c *class) {
	for {
		p := rc.Space
		p.mu.Lock()
		grow := p.growAhead(c)
		c.making = c.making || grow
		p.mu.Unlock()
		if !grow {
			return
		}
		if !rc.grow(c.slotBytes) {
			return
		}
	}
}

// grow makes a segment, unless the room for it is gone by now, and reports whether it did
// not fail. Why the store does not grow is logged once, and once that it does again.
func (rc *Reclaimer) grow(slotBytes int64) bool {
	made, err := rc.Space.grow(slotBytes)
	switch {
	case made && rc.Space.noSegment.Ends():
		rc.Logger.Info("store: segments can be made again")
	case err != nil && rc.Space.noSegment.Begins():
		rc.Logger.Warn("store: cannot make a segment: saves take the room of other records, or find none", "err", err,
			"remedy", "free space in the file system of the store, or lower max_bytes below what is free; see the kernel's log if the disk fails")
	}
	return err == nil
}

// pressedClasses returns the classes whose slots run out, once.
func (p *Space) pressedClasses() []*class {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*class
	for _, c := range p.classes {
		if c.pressed {
			c.pressed = false
			out = append(out, c)
		}
	}
	return out
}

// relieveClass evicts until a class has its headroom, or until no record can go and no
// writer waits.
func (rc *Reclaimer) relieveClass(ctx context.Context, c *class) {
	for ctx.Err() == nil {
		p := rc.Space
		p.mu.Lock()
		need, waiting := p.need(c), c.waiting
		p.mu.Unlock()
		if need == 0 || rc.roomComes(c) {
			return
		}
		if rc.Space.o.Table.Chosen(c.slotBytes) == 0 && rc.chooseVictims(c) {
			return // a segment of another class goes instead
		}
		job := &EvictJob{SlotBytes: c.slotBytes, Want: min(need, evictLimit)}
		rc.Commit(job)
		if waiting > 0 {
			rc.Barrier.Request()
		}
		if job.Err != nil {
			return
		}
		if job.Evicted > 0 {
			continue
		}
		if rc.Space.o.Table.Chosen(c.slotBytes) > 0 {
			continue // those chosen had been used or pinned since
		}
		if waiting > 0 {
			// Leases and readers hold all its records.
			time.AfterFunc(stuckInterval, func() { rc.press(c) })
		}
		return
	}
}

// press has the evictor look at classes.
func (rc *Reclaimer) press(classes ...*class) {
	rc.Space.mu.Lock()
	for _, c := range classes {
		c.pressed = true
	}
	rc.Space.mu.Unlock()
	select {
	case rc.evictSignal <- struct{}{}:
	default:
	}
}
