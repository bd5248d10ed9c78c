package store

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// rebuilt is the state of the rebuild: the reading of record headers in segments that the
// journal does not vouch for, while the store is in use. A segment whose headers are read
// is noted in the journal, so that a rebuild that is cut off goes on with the rest.
type rebuilt struct {
	// since is the opening in which a rebuild from nothing but headers began, 0 if the
	// journal knew how recent its records are.
	since uint64
	// clock is where the recency of this opening's uses begins, newest the last sequence
	// number that the journal knew.
	clock  uint32
	newest uint64

	segments, segmentsDone, found, damaged atomic.Int64
	orphans                                atomic.Int64 // found before their parents
	slots, slotsDone                       atomic.Int64
	ended                                  chan struct{} // closed when it is complete
}

func (r *rebuilt) running() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

const (
	// doubtOpens is how many openings are skipped where no one says how many there were: a
	// sample of the headers names the last one but few.
	doubtOpens = 1 << 10
	// rebuildClock is where the clock of uses begins if nothing is known of recency: what
	// [rebuilt.recency] tells of old records is below.
	rebuildClock = 1 << 30
)

// planRebuild decides how recent the records found in headers are to be, and which opening
// this is.
func (s *Store) planRebuild(o *opening, unread int) {
	if !o.stamped && unread > 0 {
		s.opens = max(s.opens, s.sampleOpens(o.usable)) + doubtOpens
	}
	s.rebuilt.since = o.state.rebuild
	if o.lost && len(o.usable) > 0 {
		s.rebuilt.since = s.opens + 1
	}
	if o.doubt != "" && (unread > 0 || o.lost) {
		s.note("%s: records are read from the headers of %d segments", o.doubt, unread)
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

// recency is how recently a record was used as far as its sequence number tells: by the
// opening that wrote it, and within that by its place, with 17 significant bits.
func (r *rebuilt) recency(seq uint64) uint32 {
	const ages, fraction, most = 8, 16, 22
	switch {
	case r.since != 0:
	case seq > r.newest:
		return r.clock
	default:
		return 0
	}
	opening, place := seq>>opensShift, seq&(1<<opensShift-1)
	age := uint64(0)
	if opening < r.since {
		age = min(r.since-opening, 1<<ages-1)
	}
	size := bits.Len64(place)
	digits := place << (fraction + 1) >> min(size, 63) & (1<<fraction - 1)
	return uint32((1<<ages-1-age)<<most | uint64(size)<<fraction | digits)
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
	r.clock, r.newest = s.table.Clock(), s.seq.Load()
	var unread []*segment
	for _, g := range s.space.allSegments() {
		if g.unread.Load() {
			unread = append(unread, g)
			r.slots.Add(int64(g.Slots))
		}
	}
	r.segments.Store(int64(len(unread)))
	if len(unread) == 0 && r.since == 0 {
		close(r.ended)
		return
	}
	if r.since != 0 {
		s.table.StartClock(rebuildClock)
		r.clock = rebuildClock
	}
	slices.SortFunc(unread, func(a, b *segment) int { return cmp.Compare(a.ID, b.ID) })
	s.background.Add(1)
	go s.rebuild(ctx, unread)
}

// rebuild reads the headers of segments, many at one time.
func (s *Store) rebuild(ctx context.Context, unread []*segment) {
	defer s.background.Done()
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
	if (r.since != 0 || r.orphans.Load() > 0) && !s.relinkAll(ctx) {
		return
	}
	for _, g := range s.space.allSegments() {
		if r.since != 0 || r.found.Load() > 0 {
			s.table.Resettle(g.slots(), r.clock, r.recency)
		}
	}
	s.endRebuild(ctx)
	s.amendWarning("%d records were found and %d headers were unreadable", r.found.Load(), r.damaged.Load())
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

// endRebuild notes that the rebuild is complete.
func (s *Store) endRebuild(ctx context.Context) {
	if s.rebuilt.since != 0 {
		for s.putNumber(metaRebuild, 0) != nil {
			if sleep(ctx, rebuildRetry); ctx.Err() != nil {
				return
			}
		}
		s.barrier.touch()
	}
	close(s.rebuilt.ended)
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
		if _, inFlight := s.reads.depth(); yields && inFlight > 0 {
			sleep(ctx, rebuildYield)
			continue
		}
		e, first, slots := work.take()
		if e == nil {
			return
		}
		job := reader.scan(e.g, first, slots)
		s.rebuilt.damaged.Add(int64(job.damaged))
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
		if !s.commits.tryPush(commit{kind: commitAdopt, adopt: job}) {
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

// relinkAll finds the parents that were read after their children. It goes over the
// journal, which knows the key of every record's parent.
func (s *Store) relinkAll(ctx context.Context) bool {
	job := &adoptJob{relink: true}
	flush := func() error {
		if len(job.records) > 0 && !s.adopt(ctx, job) {
			return ErrClosed
		}
		job = &adoptJob{relink: true}
		return nil
	}
	err := s.journal.Records(0, 1<<32-1, func(r *journal.Record) error {
		if ctx.Err() != nil {
			return ErrClosed
		}
		ref := s.refAt(r.Location)
		if r.Parent == (connector.Key{}) || ref == index.NoRef || !s.table.Orphan(ref, r.Seq) {
			return nil
		}
		if job.records = append(job.records, *r); len(job.records) < rebuildUnit {
			return nil
		}
		return flush()
	}, func(error) {})
	if err == nil {
		err = flush()
	}
	if err != nil && !errors.Is(err, ErrClosed) {
		// The links are a matter of which record goes first, no more.
		s.opts.Logger.Warn("store: parents of rebuilt records are not known: the journal cannot be read", "err", err,
			"remedy", "restart kvconnd; the journal is then made again")
		return true
	}
	return err == nil
}

// refAt is refOf while the store is in use.
func (s *Store) refAt(at journal.Location) index.Ref {
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	return s.refOf(at)
}

func (p *space) allSegments() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*segment, 0, len(p.segments))
	for _, g := range p.segments {
		out = append(out, g)
	}
	return out
}
