package fetch

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"
)

// aheadTurn is one in how many ranges may be of reads that no load has asked for, while loads wait: a load may
// come for one of them.
const aheadTurn = 4

// run is a range of an object, in which some records are wanted.
type run struct {
	tasks []*task // by place
	order uint64  // of the op that came first
	ahead bool
	// Guarded by the mutex of the fetcher:
	live  int                     // tasks that have not ended
	bytes int64                   // of them, and of the gaps
	stop  context.CancelCauseFunc // ends the GET under way
	began time.Time               // when it was first asked for
	// wrong counts answers that are another range. Only the run's goroutine uses it.
	wrong int
}

// halt breaks off the GET under way, if there is one. The mutex of the fetcher is held.
func (r *run) halt(why error) {
	if r.stop != nil {
		r.stop(why)
	}
}

// runs is a queue of ranges.
type runs struct {
	of   []*run
	next int
}

func (q *runs) push(r *run) { q.of = append(q.of, r) }

// first is the range whose turn it is, or nil.
func (q *runs) first() *run {
	if q.next == len(q.of) {
		return nil
	}
	return q.of[q.next]
}

// pop removes the first range, moving the rest up now and then.
func (q *runs) pop() {
	const many = 1024
	q.of[q.next] = nil
	q.next++
	switch {
	case q.next == len(q.of):
		q.of, q.next = q.of[:0], 0
	case q.next >= many && q.next*2 >= len(q.of):
		n := copy(q.of, q.of[q.next:])
		clear(q.of[n:])
		q.of, q.next = q.of[:n], 0
	}
}

// cut makes ranges of what was gathered, and queues them by the arrival of their ops.
func (f *Fetcher) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	tasks := slices.DeleteFunc(f.gathering, func(t *task) bool { return t.phase == ended })
	slices.SortFunc(tasks, func(a, b *task) int {
		return cmp.Or(compareBool(a.op.Ahead, b.op.Ahead), bytes.Compare(a.place.Object[:], b.place.Object[:]),
			cmp.Compare(a.place.From, b.place.From), cmp.Compare(a.order, b.order))
	})
	loads, aheads := len(f.loads.of), len(f.aheads.of)
	var r *run
	for _, t := range tasks {
		if r == nil || !f.joins(r, t) {
			var ok bool
			if r, ok = pop(&f.idleRuns); !ok {
				r = new(run)
			}
			r.order, r.ahead = t.order, t.op.Ahead
			if r.ahead {
				f.aheads.push(r)
			} else {
				f.loads.push(r)
			}
		}
		r.tasks = append(r.tasks, t)
		r.order = min(r.order, t.order)
		r.live++
		r.bytes = t.end() - r.tasks[0].place.From
		t.run, t.phase = r, queued
	}
	byOrder := func(a, b *run) int { return cmp.Compare(a.order, b.order) }
	slices.SortFunc(f.loads.of[loads:], byOrder)
	slices.SortFunc(f.aheads.of[aheads:], byOrder)
	clear(tasks)
	f.gathering = f.gathering[:0]
	f.dispatch()
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// joins reports whether an op is read with a range that ends before it.
func (f *Fetcher) joins(r *run, t *task) bool {
	first, last := r.tasks[0], r.tasks[len(r.tasks)-1]
	gap := t.place.From - last.end()
	return r.ahead == t.op.Ahead && first.place.Object == t.place.Object && gap >= 0 && gap <= f.o.GapBytes &&
		t.place.From-first.place.From < f.o.RangeBytes
}

// dispatch asks for ranges for which there is room. f.mu is held.
func (f *Fetcher) dispatch() {
	for r := f.pick(); r != nil; r = f.pick() {
		f.used++
		f.inFlight += r.bytes
		f.speed.begin()
		r.began = time.Now()
		for _, t := range r.tasks {
			if t.phase != ended {
				t.phase = asked
			}
		}
		f.counts.ranges.Add(1)
		f.give(r)
	}
}

// pick takes the range whose turn it is, if there is room for it. f.mu is held.
func (f *Fetcher) pick() *run {
	for {
		q := &f.loads
		ahead := f.aheads.first() != nil && (q.first() == nil || f.turn >= aheadTurn-1)
		if ahead {
			q = &f.aheads
		}
		r := q.first()
		switch {
		case r == nil || f.closed:
			return nil
		case r.live == 0: // nobody wants it any more
			q.pop()
			f.recycle(r)
			continue
		case f.used >= f.o.Connections, f.inFlight > 0 && f.inFlight+r.bytes > f.budget():
			return nil
		}
		q.pop()
		f.turn++
		if ahead {
			f.turn = 0
		}
		return r
	}
}

// budget is how much may be in flight: no more than comes in an eighth of a record's time. On a slow link all
// records that are asked for at one time share it, and all would be late. f.mu is held.
func (f *Fetcher) budget() int64 {
	comes := f.speed.bytes / f.speed.seconds * f.o.Timeout.Seconds() / 8
	return min(f.o.InFlightBytes, max(f.o.RangeBytes, int64(comes)))
}

// recycle keeps a run that is done for use again. f.mu is held.
func (f *Fetcher) recycle(r *run) {
	clear(r.tasks)
	*r = run{tasks: r.tasks[:0]}
	f.idleRuns = append(f.idleRuns, r)
}
