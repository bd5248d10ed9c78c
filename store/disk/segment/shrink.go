package segment

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Shrinking has one owner, the shrinker: whatever room is needed for (the cap, space that
// must stay free, slots of another size, bad slots), it gives up the segments. Giving one
// up has three steps, and each may have to be tried again: its records leave the index, a
// barrier makes that durable, its file is removed. The segment is on a list meanwhile; no
// one waits for it but the shrinker.

// retirement is a segment that is being given up. Only the shrinker changes one.
type retirement struct {
	g *Segment
	// class has no room until it is gone; nil if the room is for nothing in particular.
	class *class
	since time.Time
	// barrier had started when the segment was retired.
	barrier uint64
	// emptied is set when no record is left and the journal knows the segment no more.
	emptied bool
}

const (
	// measureInterval is how often journal and file system are measured, measureSmallEvery
	// how many of those pass between measurements of the small files
	// and of what could not be measured at the start.
	measureInterval   = time.Second
	measureSmallEvery = 60
	// pinPatience is how long a segment waits for leases and readers of its records before
	// it gets its slots back, and another is given up in its place.
	pinPatience = 100 * time.Millisecond
	// shrinkRetry is the pause after a step failed.
	shrinkRetry = 50 * time.Millisecond
	// firstShrinkTries bounds how long Open waits for a disk that fails.
	firstShrinkTries = 20
)

// WakeShrinker has the shrinker look for something to do.
func (rc *Reclaimer) WakeShrinker() {
	select {
	case rc.wakeup <- struct{}{}:
	default:
	}
}

// Shrinker gives up segments until the store stops.
func (rc *Reclaimer) Shrinker(ctx context.Context) {
	tick := time.NewTicker(measureInterval)
	defer tick.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-rc.wakeup:
		case <-again.C:
		case <-tick.C:
			rc.Measure(n%measureSmallEvery == 0)
		}
		if pause := rc.shrink(ctx); pause > 0 {
			again.Reset(pause)
		}
	}
}

// Measure finds out how much the journal occupies and how much space others have left, with all
// set also what everything else in the directory occupies. What could not be made before is
// tried again afterwards.
func (rc *Reclaimer) Measure(all bool) {
	rc.Space.measure()
	if all {
		_ = rc.Space.recount() // what was known stays
	}
	rc.Space.retryMaking()
}

// ShrinkFirst brings a store that was just opened within its cap. What cannot be given up
// now is given up later: a disk that fails does not keep the store from opening.
func (rc *Reclaimer) ShrinkFirst(ctx context.Context) error {
	for range firstShrinkTries {
		pause := rc.shrink(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if pause == 0 {
			break
		}
		fsio.Sleep(ctx, pause)
	}
	if n := rc.Space.over(); n > 0 {
		rc.Logger.Warn("store: above its cap", "bytes", n,
			"remedy", "remove what is not the store's from its directory, raise max_bytes, or look for I/O errors in the kernel's log")
	}
	return nil
}

// shrink goes on with what is being given up and chooses more if more is needed. It
// returns after what time it should be called again, 0 if nothing is left to do.
func (rc *Reclaimer) shrink(ctx context.Context) (pause time.Duration) {
	for ctx.Err() == nil {
		stuck := rc.Space.removeAside()
		rc.chooseToGiveUp()
		done, err := rc.advance(ctx)
		if done > 0 {
			rc.press(rc.Space.waitingClasses()...)
		}
		rc.tellShrinking(ctx, errors.Join(err, stuck), done)
		switch {
		case err != nil:
			return shrinkRetry
		case done == 0 && len(rc.Space.retirements()) > 0:
			return stuckInterval
		case done == 0:
			return 0 // a file that is stuck is tried again with the next measurement
		}
	}
	return 0
}

// tellShrinking logs the beginning and the end of trouble with giving up segments.
func (rc *Reclaimer) tellShrinking(ctx context.Context, err error, done int) {
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if rc.failed.Begins() {
			rc.Logger.Warn("store: cannot give up a segment, it is tried again", "err", err,
				"remedy", "look for I/O errors in the kernel's log")
		}
	case done > 0 && rc.failed.Ends():
		rc.Logger.Info("store: segments can be given up again")
	}
}

// giveUp asks for a segment to be given up for a class. It reports false if it is being
// written to, or if another one is on its way out: one need is met at a time.
func (rc *Reclaimer) giveUp(g *Segment, c *class) bool {
	p := rc.Space
	p.mu.Lock()
	may := len(p.retiring) == 0 && p.mayGiveUp()
	p.mu.Unlock()
	if !may || !rc.Retire(g, c) {
		return false
	}
	rc.WakeShrinker()
	return true
}

// roomComes reports whether room is on its way for a class: a segment is being given up for
// it, or files that were set aside can go first.
func (rc *Reclaimer) roomComes(c *class) bool {
	p := rc.Space
	p.mu.Lock()
	comes := slices.ContainsFunc(p.retiring, func(r *retirement) bool { return r.class == c })
	aside := p.dueForRoom()
	p.mu.Unlock()
	if aside {
		rc.WakeShrinker()
	}
	return comes || aside
}

// Retire takes a segment's slots out of use and puts it on the list. It reports false if
// that was done before or if the segment is being written to.
func (rc *Reclaimer) Retire(g *Segment, c *class) bool {
	p := rc.Space
	r := &retirement{g: g, class: c, since: time.Now()}
	if !p.takeOut(g) {
		return false
	}
	// After that, since a barrier that began before may bring slots back.
	r.barrier = rc.Barrier.Begun()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retiring = append(p.retiring, r)
	return true
}

// takeOut takes the slots of a segment out of all lists. take gives out slots under the
// same lock, so that no one writes to a segment that is retired.
func (p *Space) takeOut(g *Segment) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.retired || g.writing.Load() > 0 {
		return false
	}
	g.retired = true
	own := g.class
	mine := func(ref index.Ref) bool { return ref >= g.Base && ref < g.Base+index.Ref(g.Slots) }
	own.free = slices.DeleteFunc(own.free, mine)
	before := len(p.pending)
	p.pending = slices.DeleteFunc(p.pending, mine)
	own.pending -= int64(before - len(p.pending))
	own.segments = slices.DeleteFunc(own.segments, func(o *Segment) bool { return o == g })
	own.slots -= int64(g.Slots)
	p.forgetFaults(g, false)
	p.o.Table.Untrack(g.Range())
	return true
}

// chooseToGiveUp retires the coldest segments until what is being given up is enough, and
// one with many bad slots if nothing else is on its way.
func (rc *Reclaimer) chooseToGiveUp() {
	p := rc.Space
	p.mu.Lock()
	excess, spoilt, busy := p.excess(), p.spoilt(), len(p.retiring) > 0
	p.mu.Unlock()
	if spoilt != nil && !busy && rc.Retire(spoilt, nil) {
		return
	}
	if excess <= 0 {
		rc.nothing.Ends()
		return
	}
	for {
		g := rc.colderSegment(nil, ^uint64(0), true)
		if g == nil || !rc.Retire(g, nil) {
			break
		}
		p.mu.Lock()
		excess = p.excess()
		p.mu.Unlock()
		if excess <= 0 {
			return
		}
	}
	p.mu.Lock()
	free, least, segments := p.limits.room.FreeBytes, p.limits.minFree, len(p.segments)
	p.mu.Unlock()
	if segments == 0 && rc.nothing.Begins() {
		rc.Logger.Warn("store: the file system is too full to keep any record", "free_bytes", free, "min_free_bytes", least,
			"remedy", "free space in the file system of the store, or lower min_free")
	}
}

// advance goes on with every retirement, and returns how many ended.
func (rc *Reclaimer) advance(ctx context.Context) (ended int, err error) {
	var emptied []*retirement
	for _, r := range rc.Space.retirements() {
		left, failed := rc.empty(r)
		switch {
		case failed != nil:
			err = errors.Join(err, failed)
		case left == 0:
			emptied = append(emptied, r)
		case time.Since(r.since) > pinPatience && rc.Barrier.Ended() >= r.barrier:
			job := &EvictJob{Segment: r.g, Restore: true}
			if rc.Commit(job); job.Err != nil {
				err = errors.Join(err, job.Err)
				continue
			}
			ended++
		}
	}
	if len(emptied) == 0 || err != nil {
		return ended, err
	}
	if err := rc.Barrier.Wait(ctx); err != nil {
		return ended, err
	}
	for _, r := range emptied {
		rc.Space.remove(r)
		ended++
	}
	return ended, nil
}

// empty takes the records of a segment out of the index, and the segment out of the
// journal. It returns how many records are held by leases and readers.
func (rc *Reclaimer) empty(r *retirement) (left int, err error) {
	if r.emptied {
		return 0, nil
	}
	job := &EvictJob{Segment: r.g}
	rc.Commit(job)
	if job.Err != nil || job.Left > 0 {
		return job.Left, job.Err
	}
	if err := rc.Space.o.Journal.DeleteSegment(r.g.ID); err != nil {
		return 0, err
	}
	rc.Space.mu.Lock()
	r.emptied = true
	rc.Space.mu.Unlock()
	rc.Barrier.Touch()
	return 0, nil
}

// Restore gives a retired segment its slots back: those without a record are free after
// the next barrier. The committer calls it, so that no record comes or goes meanwhile, and
// after the barrier that was under way when the segment was retired.
func (p *Space) Restore(g *Segment) {
	p.track(g)
	empty := p.o.Table.Survey(g.Range(), nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retiring = slices.DeleteFunc(p.retiring, func(r *retirement) bool { return r.g == g })
	g.retired = false
	c := g.class
	c.segments = append(c.segments, g)
	c.slots += int64(g.Slots)
	p.offer(g, empty)
}

// remove ends a retirement: the segment is no more, and its file is set aside until it can
// be removed.
func (p *Space) remove(r *retirement) {
	g := r.g
	_ = g.File.Close() // nothing in it is of use any more
	p.setRefs(g, nil)
	p.mu.Lock()
	p.forgetFaults(g, true)
	delete(p.segments, g.ID)
	p.slots -= int64(g.Slots)
	p.retiring = slices.DeleteFunc(p.retiring, func(o *retirement) bool { return o == r })
	p.aside = append(p.aside, asideFile{path: g.Path, bytes: g.physical, due: true})
	p.making.wait, p.making.gaveUp = false, p.making.gaveUp || r.class != nil
	p.mu.Unlock()
	// Last, since a new segment may have the references from here on.
	p.o.Table.DropSlots(g.Base, RoundRefs(g.Slots))
	// One that cannot be removed now is tried again with the others.
	_ = p.removeAside()
}

// RemoveEmptied removes what needed but the last barrier. The store has stopped.
func (p *Space) RemoveEmptied() {
	for _, r := range p.retirements() {
		if r.emptied {
			p.remove(r)
		}
	}
}

// Emptied reports whether a segment is on its way out and holds no record any more.
func (p *Space) Emptied(g *Segment) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.retiring, func(r *retirement) bool { return r.g == g && r.emptied })
}

func (p *Space) retirements() []*retirement {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.retiring)
}

// waitingClasses are those with writers that wait for a slot.
func (p *Space) waitingClasses() (out []*class) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.classes {
		c.wake()
		if c.waiting > 0 {
			out = append(out, c)
		}
	}
	return out
}
