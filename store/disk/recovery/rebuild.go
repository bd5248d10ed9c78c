package recovery

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// RebuildState is how far the rebuilding of the index from record headers is.
type RebuildState struct {
	// Running is true until every segment has been read.
	Running      bool  `json:"running"`
	Segments     int64 `json:"segments"`
	SegmentsDone int64 `json:"segments_done"`
	Slots        int64 `json:"slots"`
	SlotsDone    int64 `json:"slots_done"`
	// Records were found in headers that the journal did not know; Damaged headers could
	// not be read.
	Records int64 `json:"records"`
	Damaged int64 `json:"damaged"`
}

// Rebuild reads the headers of records in segments that the journal does not vouch for, and in those
// that the disk gives late, while the store is in use. A segment whose headers are read is noted in
// the journal, so that a rebuild that is cut off goes on with the rest.
type Rebuild struct {
	s *State
	// commit has the one goroutine that changes index and journal do a job, and waits for it. It
	// reports false if the store closes.
	commit func(*AdoptJob) bool
	// busy reports whether loads are being read.
	busy func() bool

	segments, segmentsDone, found, damaged atomic.Int64
	slots, slotsDone                       atomic.Int64
	awaiting                               atomic.Int64  // segments that the disk did not give at the start
	kept                                   atomic.Bool   // some headers were left to a start with other keys
	ended                                  chan struct{} // closed when what was there at the start is read
}

// NewRebuild returns the rebuild of what a state lacks.
func NewRebuild(s *State, commit func(*AdoptJob) bool, busy func() bool) *Rebuild {
	r := &Rebuild{s: s, commit: commit, busy: busy, ended: make(chan struct{})}
	r.awaiting.Store(int64(len(s.missing)))
	for _, g := range s.Space.Unread() {
		r.segments.Add(1)
		r.slots.Add(int64(g.Slots))
	}
	if r.segments.Load() == 0 {
		close(r.ended)
	}
	return r
}

// State is how far the rebuild is.
func (r *Rebuild) State() RebuildState {
	return RebuildState{
		Running: r.Running(), Segments: r.segments.Load(), SegmentsDone: r.segmentsDone.Load(),
		Slots: r.slots.Load(), SlotsDone: r.slotsDone.Load(), Records: r.found.Load(), Damaged: r.damaged.Load(),
	}
}

// Found counts a record that the index did not have.
func (r *Rebuild) Found() { r.found.Add(1) }

// Ended is closed when the segments that were there at the start are read.
func (r *Rebuild) Ended() <-chan struct{} { return r.ended }

// Running reports whether segments that were there at the start are being read.
func (r *Rebuild) Running() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// Awaiting is how many segments the disk has not given yet.
func (r *Rebuild) Awaiting() int64 { return r.awaiting.Load() }

// FindsAll reports whether nothing is looked for any more that may hold records.
func (r *Rebuild) FindsAll() bool { return !r.Running() && r.Awaiting() == 0 }

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

// Run reads the headers of segments, many at one time, until all are read or ctx ends.
func (r *Rebuild) Run(ctx context.Context) {
	unread, began := r.s.Space.Unread(), time.Now()
	if len(unread) == 0 {
		return
	}
	work := newRebuildWork(unread)
	var readers sync.WaitGroup
	for n := range rebuilders {
		readers.Go(func() { r.readHeaders(ctx, work, n >= rebuildersBeside) })
	}
	finished := make(chan struct{})
	go func() { readers.Wait(); close(finished) }()
	r.log(finished)
	if ctx.Err() != nil || r.kept.Load() {
		return
	}
	for _, g := range r.s.Space.AllSegments() {
		r.s.Table.Resolve(g.Range())
	}
	close(r.ended)
	r.s.opts.Report.Amend("%d records were found and %d headers were unreadable", r.found.Load(), r.damaged.Load())
	r.s.opts.Report.Logger.Info("store: rebuild from headers ended", "segments", r.segments.Load(), "records", r.found.Load(),
		"damaged_headers", r.damaged.Load(), "after", time.Since(began).Round(time.Millisecond))
}

func (r *Rebuild) log(finished <-chan struct{}) {
	tick := time.NewTicker(rebuildLogInterval)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
			r.s.opts.Report.Logger.Info("store: rebuild from headers goes on", "segments", r.segmentsDone.Load(), "of", r.segments.Load(),
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
	g    *segment.Segment
	left atomic.Int64
}

func newRebuildWork(unread []*segment.Segment) *rebuildWork {
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

// readHeaders reads runs of headers and has the committer adopt what they name.
// yields has it wait while loads are read.
func (r *Rebuild) readHeaders(ctx context.Context, work *rebuildWork, yields bool) {
	reader := newHeaderReader(r.s)
	for ctx.Err() == nil {
		if yields && r.busy() {
			fsio.Sleep(ctx, rebuildYield)
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
		if job.hidden > 0 && r.s.opts.KeepHidden {
			r.kept.Store(true) // and the segment is not complete, so that the next start reads its headers again
			continue
		}
		r.damaged.Add(int64(job.damaged + len(job.Unread)))
		if !r.adopt(ctx, job) {
			return
		}
		r.slotsDone.Add(int64(slots))
		if e.left.Add(-1) == 0 {
			if !r.adopt(ctx, &AdoptJob{Segment: e.g, Complete: true}) {
				return
			}
			r.segmentsDone.Add(1)
		}
	}
}

// adopt has the committer do a job, again and again while the journal fails. It reports
// false if the store stops.
func (r *Rebuild) adopt(ctx context.Context, job *AdoptJob) bool {
	for {
		if !r.commit(job) {
			return false
		}
		if job.Err == nil {
			return true
		}
		job.Again = true
		if fsio.Sleep(ctx, rebuildRetry); ctx.Err() != nil {
			return false
		}
	}
}

// AdoptJob asks the committer to make index and journal agree with record headers.
type AdoptJob struct {
	Segment      *segment.Segment
	First, Slots uint32
	// Records are what the headers name, in the order of their slots; unread are the slots
	// whose headers the disk did not give, damaged counts those that are bad.
	Records []journal.Record
	Unread  []uint32
	damaged int
	hidden  int
	// Complete says that all slots of the segment were read: the journal vouches for it
	// from now on, and its free slots can be written to.
	Complete bool
	// Again is set if the journal did not get everything the last time.
	Again bool
	Err   error
}

// Wait waits until all headers are read. progress, if not nil, is called from time to time with the slots read, and all.
func (r *Rebuild) Wait(ctx context.Context, progress func(done, total int64)) error {
	tick := time.NewTicker(report.Interval)
	defer tick.Stop()
	for {
		select {
		case <-r.Ended():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if progress != nil {
				st := r.State()
				progress(st.SlotsDone, st.Slots)
			}
		}
	}
}
