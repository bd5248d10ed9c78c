package disk

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rebuilt is the state of the rebuild: the reading of record headers in segments that the
// journal does not vouch for, while the store is in use. A segment whose headers are read
// is noted in the journal, so that a rebuild that is cut off goes on with the rest.
type rebuilt struct {
	segments, segmentsDone, found, damaged atomic.Int64
	slots, slotsDone                       atomic.Int64
	ended                                  chan struct{} // closed when it is complete
}

func (r *rebuilt) state() RebuildState {
	return RebuildState{
		Running: r.running(), Segments: r.segments.Load(), SegmentsDone: r.segmentsDone.Load(),
		Slots: r.slots.Load(), SlotsDone: r.slotsDone.Load(), Records: r.found.Load(), Damaged: r.damaged.Load(),
	}
}

func (r *rebuilt) running() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// doubtOpens is how many openings are skipped where no one says how many there were: a
// sample of the headers names the last one but few.
const doubtOpens = 1 << 10

// planRebuild decides which opening this is.
func (s *Store) planRebuild(o *opening, unread int) {
	if !o.stamped && unread > 0 {
		s.opens = max(s.opens, s.sampleOpens(o.usable)) + doubtOpens
	}
	if o.doubt != "" && (unread > 0 || o.lost) {
		s.report.Note("%s: records are read from the headers of %d segments", o.doubt, unread)
	}
}

// sampleOpens returns the last opening that the first and last records of segments name.
func (s *Store) sampleOpens(files []*segmentFile) uint64 {
	var last uint64
	sc := newHeaderReader(s)
	for _, f := range files {
		for _, slot := range []uint32{0, f.head.Slots - 1} {
			if r, err := sc.read(f.file, &f.head, slot); err == nil {
				last = max(last, r.Seq>>opensShift)
			}
		}
	}
	return last
}

const (
	// rebuilders is how many headers are read at one time, rebuildersBeside how many while
	// loads are read, rebuildYield for how long the others wait then.
	rebuilders       = 32
	rebuildersBeside = 2
	rebuildYield     = time.Millisecond
)

// rebuildUnit is how many slots are read before their records are committed.
const rebuildUnit = 256

// rebuildLogInterval is how often the log says how far the rebuild is.
const rebuildLogInterval = 10 * time.Second

// startRebuild begins the rebuild if there is one to make.
func (s *Store) startRebuild(ctx context.Context) {
	r := &s.rebuilt
	unread := s.unreadSegments()
	for _, g := range unread {
		r.slots.Add(int64(g.Slots))
	}
	r.segments.Store(int64(len(unread)))
	if len(unread) == 0 {
		close(r.ended)
		return
	}
	s.background.Go(func() { s.rebuild(ctx, unread) })
}

// unreadSegments are the segments whose headers are to be read.
func (s *Store) unreadSegments() []*segment {
	return slices.DeleteFunc(s.space.allSegments(), func(g *segment) bool { return !g.isUnread() })
}

// rebuild reads the headers of segments, many at one time.
func (s *Store) rebuild(ctx context.Context, unread []*segment) {
	began := time.Now()
	work := newRebuildWork(unread)
	var readers sync.WaitGroup
	for n := range rebuilders {
		readers.Go(func() { s.rebuildReader(ctx, work, n >= rebuildersBeside) })
	}
	finished := make(chan struct{})
	go func() { readers.Wait(); close(finished) }()
	s.logRebuild(finished)
	if ctx.Err() != nil {
		return
	}
	r := &s.rebuilt
	for _, g := range s.space.allSegments() {
		s.table.Resolve(g.slots())
	}
	close(r.ended)
	s.report.Amend("%d records were found and %d headers were unreadable", r.found.Load(), r.damaged.Load())
	s.opts.Logger.Info("store: rebuild from headers ended", "segments", r.segments.Load(), "records", r.found.Load(),
		"damaged_headers", r.damaged.Load(), "after", time.Since(began).Round(time.Millisecond))
}

func (s *Store) logRebuild(finished <-chan struct{}) {
	tick := time.NewTicker(rebuildLogInterval)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
			r := &s.rebuilt
			s.opts.Logger.Info("store: rebuild from headers goes on", "segments", r.segmentsDone.Load(), "of", r.segments.Load(),
				"slots", r.slotsDone.Load(), "of_slots", r.slots.Load(), "records", r.found.Load())
		}
	}
}

// rebuildRetry is the pause after a failure of the journal.
const rebuildRetry = 200 * time.Millisecond

// rebuildWork hands out runs of slots.
type rebuildWork struct {
	mu       sync.Mutex
	segments []*segmentRebuild
	next     uint32 // slot of the first segment
}

// segmentRebuild counts the runs of a segment that are not done.
type segmentRebuild struct {
	g    *segment
	left atomic.Int64
}

func newRebuildWork(unread []*segment) *rebuildWork {
	w := new(rebuildWork)
	for _, g := range unread {
		e := &segmentRebuild{g: g}
		e.left.Store((int64(g.Slots) + rebuildUnit - 1) / rebuildUnit)
		w.segments = append(w.segments, e)
	}
	return w
}

// take returns the next run of slots, or nil.
func (w *rebuildWork) take() (e *segmentRebuild, first, slots uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.segments) == 0 {
		return nil, 0, 0
	}
	e, first = w.segments[0], w.next
	slots = min(rebuildUnit, e.g.Slots-first)
	if w.next += slots; w.next == e.g.Slots {
		w.segments, w.next = w.segments[1:], 0
	}
	return e, first, slots
}

// rebuildReader reads runs of headers and has the committer adopt what they name.
// yields has it wait while loads are read.
func (s *Store) rebuildReader(ctx context.Context, work *rebuildWork, yields bool) {
	reader := newHeaderReader(s)
	for ctx.Err() == nil {
		if _, inFlight := s.reads.Depth(); yields && inFlight > 0 {
			sleep(ctx, rebuildYield)
			continue
		}
		e, first, slots := work.take()
		if e == nil {
			return
		}
		job := reader.scan(e.g, first, slots)
		if reader.again(ctx, job); ctx.Err() != nil {
			return
		}
		s.rebuilt.damaged.Add(int64(job.damaged + len(job.unread)))
		if !s.adopt(ctx, job) {
			return
		}
		s.rebuilt.slotsDone.Add(int64(slots))
		if e.left.Add(-1) == 0 {
			if !s.adopt(ctx, &adoptJob{segment: e.g, complete: true}) {
				return
			}
			s.rebuilt.segmentsDone.Add(1)
		}
	}
}

// adopt has the committer do a job, again and again while the journal fails. It reports
// false if the store stops.
func (s *Store) adopt(ctx context.Context, job *adoptJob) bool {
	for {
		job.done = make(chan struct{})
		if !s.commits.TryPush(commit{kind: commitAdopt, adopt: job}) {
			return false
		}
		<-job.done
		if job.err == nil {
			return true
		}
		job.again = true
		if sleep(ctx, rebuildRetry); ctx.Err() != nil {
			return false
		}
	}
}
