package disk

import (
	"context"
	"time"
)

// evictJob asks the committer to remove want records of a class, or all records of a
// segment, or to give a retired segment its slots back. done is closed when it has; the
// other results are set then.
type evictJob struct {
	class   *class
	want    int
	segment *segment
	restore bool
	evicted int
	left    int // records of the segment that could not be removed yet
	err     error
	done    chan struct{}
}

const (
	// headroomBytes is how much a class keeps free or about to be free once it cannot
	// grow: what a fast disk writes while two barriers pass.
	headroomBytes = 512 << 20
	// headroomPart bounds that to a part of the class.
	headroomPart = 16
	// stuckInterval is how long to wait for a lease or a reader to let go of a slot.
	stuckInterval = 5 * time.Millisecond
)

// need returns how many records of a class should be evicted now. p.mu is held.
func (p *space) need(c *class) int {
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
func (p *space) wait(slotBytes int64, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classOf(slotBytes).waiting += n
}

// relieve wakes the evictor if a class runs out of free slots, and the barrier if writers
// wait for slots that only need one.
func (s *Store) relieve(slotBytes int64, waiting bool) {
	p := s.space
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
		case s.evictSignal <- struct{}{}:
		default:
		}
	}
	if short || waiting {
		s.barrier.request()
	}
}

// evictor frees slots until the store stops.
func (s *Store) evictor(ctx context.Context) {
	defer s.background.Done()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.evictSignal:
		}
		for _, c := range s.space.pressedClasses() {
			s.makeAhead(c)
			s.relieveClass(ctx, c)
		}
	}
}

// growAhead reports whether a class will soon use up its slots and may grow: a writer
// should not have to wait for a segment to be made. p.mu is held.
func (p *space) growAhead(c *class) bool {
	if c.making || !p.mayMake() || c.slots == 0 || int64(len(c.free))*c.slotBytes >= min(aheadBytes, p.nominal/2) {
		return false
	}
	_, _, ok := p.plan(c)
	return ok
}

// aheadBytes is what the disk writes while a segment is made.
const aheadBytes = 64 << 20

// makeAhead makes segments for a class until it has slots for a while.
func (s *Store) makeAhead(c *class) {
	for {
		p := s.space
		p.mu.Lock()
		grow := p.growAhead(c)
		c.making = c.making || grow
		p.mu.Unlock()
		if !grow {
			return
		}
		if !s.grow(c.slotBytes) {
			return
		}
	}
}

// grow makes a segment, unless the room for it is gone by now, and reports whether it did
// not fail. Why the store does not grow is logged once, and once that it does again.
func (s *Store) grow(slotBytes int64) bool {
	made, err := s.space.grow(slotBytes)
	switch {
	case made && s.space.noSegment.Ends():
		s.opts.Logger.Info("store: segments can be made again")
	case err != nil && s.space.noSegment.Begins():
		s.opts.Logger.Warn("store: cannot make a segment: saves take the room of other records, or find none", "err", err,
			"remedy", "free space in the file system of the store, or lower max_bytes below what is free; see the kernel's log if the disk fails")
	}
	return err == nil
}

// pressedClasses returns the classes whose slots run out, once.
func (p *space) pressedClasses() []*class {
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

func (p *space) allClasses() []*class {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*class, 0, len(p.classes))
	for _, c := range p.classes {
		out = append(out, c)
	}
	return out
}

// relieveClass evicts until a class has its headroom, or until no record can go and no
// writer waits.
func (s *Store) relieveClass(ctx context.Context, c *class) {
	for ctx.Err() == nil {
		p := s.space
		p.mu.Lock()
		need, waiting := p.need(c), c.waiting
		p.mu.Unlock()
		if need == 0 || s.roomComes(c) {
			return
		}
		if s.table.Chosen(c.slotBytes) == 0 && s.chooseVictims(c) {
			return // a segment of another class goes instead
		}
		job := &evictJob{class: c, want: min(need, commitLimit), done: make(chan struct{})}
		s.commits.push(commit{kind: commitEvict, evict: job})
		<-job.done
		if waiting > 0 {
			s.barrier.request()
		}
		if job.err != nil {
			return
		}
		if job.evicted > 0 {
			continue
		}
		if s.table.Chosen(c.slotBytes) > 0 {
			continue // those chosen had been used or pinned since
		}
		if waiting > 0 {
			// Leases and readers hold all its records.
			time.AfterFunc(stuckInterval, func() { s.press(c) })
		}
		return
	}
}

// press has the evictor look at classes.
func (s *Store) press(classes ...*class) {
	s.space.mu.Lock()
	for _, c := range classes {
		c.pressed = true
	}
	s.space.mu.Unlock()
	select {
	case s.evictSignal <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
