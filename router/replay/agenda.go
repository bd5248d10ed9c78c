package replay

import (
	"math"

	"github.com/kvconn/kvconn/router/heap"
)

type phase uint8

const (
	phaseDiskLoad phase = iota
	phaseObjectLoad
	phasePrefill
	phaseDecode
)

type task struct {
	due     float64 // seconds, or for a load what link.each has to reach
	seq     uint64  // breaks ties
	request int32
	phase   phase
	work    float64 // bytes of a load
	delayed bool    // a load before its first byte
}

// Before orders tasks by the time they are due.
func (t task) Before(other task) bool {
	if t.due != other.due {
		return t.due < other.due
	}
	return t.seq < other.seq
}

// agenda holds tasks, the next one first.
type agenda = heap.Heap[task]

// link is a bandwidth that all loads under way share equally.
type link struct {
	bytesPerS float64
	now       float64
	each      float64 // bytes that a load under way from the start would have got by now
	loads     agenda  // due when each gets there
}

func newLink(bytesPerS float64) *link { return &link{bytesPerS: bytesPerS} }

// share returns the bandwidth of each load if more of them are added.
func (l *link) share(more int) float64 { return l.bytesPerS / float64(len(l.loads)+more) }

func (l *link) advance(to float64) {
	if len(l.loads) > 0 {
		l.each += float64((to - l.now) * l.share(0))
	} else {
		l.each = 0 // keeps its resolution
	}
	l.now = to
}

func (l *link) start(now float64, t task) {
	l.advance(now)
	t.due = l.each + t.work
	l.loads.Push(t)
}

func (l *link) next() float64 {
	if len(l.loads) == 0 {
		return math.Inf(1)
	}
	return l.now + max(float64((l.loads[0].due-l.each)/l.share(0)), 0)
}

// finish ends the next load, at the time that next returned.
func (l *link) finish(now float64) task {
	l.advance(now)
	t := l.loads.Pop()
	l.each = t.due
	return t
}
