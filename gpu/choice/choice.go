// Package choice learns which of two ways copies of many runs are faster: batches of copies straight between engine
// memory and the arena, or a kernel that collects runs, with one large copy. It learns from copies in service: a kernel that
// is fast on an idle GPU waits for its time slice on a busy one.
package choice

import (
	"math/bits"
	"sync"
)

// Way of copies.
type Way uint8

// Ways. Batch is the default.
const (
	Batch Way = iota
	Kernel
	ways
)

// String is the name that status shows.
func (w Way) String() string {
	if w == Kernel {
		return "kernel"
	}
	return "batch"
}

const (
	directions = 2
	// Copies of fewer runs than minRuns, or of runs from maxRunBytes on, are batches always: copy engines are at their best.
	minRunsLog2     = 4
	maxRunBytesLog2 = 16
	countClasses    = 10
	// enough results of a way are needed before it is judged.
	enough = 4
	// window is how many results the mean is of, about.
	window = 8
	// minGap and maxGap are how many copies lie between two that try the slower way. The gap doubles from try to try, and is
	// small again once the faster way has changed.
	minGap = 16
	maxGap = 1024
	// better is how much faster the other way has to be for a change.
	better = 0.9
	// maxLosses is how many copiers may end in a copy by kernel before there are no more. One may be chance.
	maxLosses = 2
)

// cell is what is known of copies of about the same number and size of runs.
type cell struct {
	best Way
	// nsPerByte is a mean of the last results of each way, n counts them up to the window.
	nsPerByte [ways]float64
	n         [ways]uint32
	since     uint32
	gap       uint32
}

// Table is what was learnt on one device. The zero value knows nothing. It is safe for concurrent use, its size is fixed, and
// its methods but Learnt allocate nothing.
type Table struct {
	mu    sync.Mutex
	cells [directions][maxRunBytesLog2][countClasses]cell
	// losses counts copies by kernel that ended their copier.
	losses int
	// fixed, if set, is the one way.
	fixed *Way
}

// Fix has all copies that might go either way go this one, until it is called with nil: for measurements. Copies by kernel that
// are given up stay so.
func (t *Table) Fix(w *Way) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fixed = w
}

// cell of copies, or nil if they are batches always. mu is held.
func (t *Table) cell(direction uint8, runs int, bytes uint64) *cell {
	if direction >= directions || runs < 1<<minRunsLog2 {
		return nil
	}
	size := bits.Len64(bytes/uint64(runs)) - 1
	if size < 0 || size >= maxRunBytesLog2 {
		return nil
	}
	return &t.cells[direction][size][min(bits.Len(uint(runs))-1-minRunsLog2, countClasses-1)]
}

// Choose says how to copy a number of runs of that many bytes together. Direction is that of package gpu.
func (t *Table) Choose(direction uint8, runs int, bytes uint64) Way {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cell(direction, runs, bytes)
	if c == nil || t.losses >= maxLosses {
		return Batch
	}
	if t.fixed != nil {
		return *t.fixed
	}
	c.gap = max(c.gap, minGap)
	if c.since++; c.since < c.gap {
		return c.best
	}
	c.since = 0
	other := Batch + Kernel - c.best
	if c.n[other] >= enough {
		c.gap = min(2*c.gap, maxGap)
	}
	return other
}

// Learn notes how long such a copy took on the device. A time of 0 is none.
func (t *Table) Learn(direction uint8, runs int, bytes uint64, w Way, nanoseconds uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cell(direction, runs, bytes)
	if c == nil || nanoseconds == 0 || w >= ways {
		return
	}
	c.n[w] = min(c.n[w]+1, window)
	c.nsPerByte[w] += (float64(nanoseconds)/float64(bytes) - c.nsPerByte[w]) / float64(c.n[w])
	other := Batch + Kernel - c.best
	if c.n[other] >= enough && c.n[c.best] > 0 && c.nsPerByte[other] < better*c.nsPerByte[c.best] {
		c.best, c.gap, c.since = other, minGap, 0
	}
}

// Refused notes that such copies were to go by the kernel and did not. What was known of the kernel there is forgotten.
func (t *Table) Refused(direction uint8, runs int, bytes uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.cell(direction, runs, bytes); c != nil {
		c.best, c.n[Kernel], c.nsPerByte[Kernel] = Batch, 0, 0
		c.gap = min(2*max(c.gap, minGap), maxGap)
	}
}

// Lost notes that a copier has ended in a copy by kernel: call it once a copier. It reports whether that was one too many:
// from then on Choose answers Batch.
func (t *Table) Lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.losses++
	return t.losses == maxLosses
}

// Ended reports whether kernels are given up because copiers ended in them.
func (t *Table) Ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.losses >= maxLosses
}

// Learnt is one kind of copies: of RunBytes up to twice that in a run, in Runs up to twice as many runs.
type Learnt struct {
	Direction uint8
	RunBytes  int
	Runs      int
	Best      Way
	// BatchBytesPerS and KernelBytesPerS are 0 where that way is not known yet.
	BatchBytesPerS, KernelBytesPerS float64
}

// Learnt lists the kinds of copies for which both ways are known.
func (t *Table) Learnt() []Learnt {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Learnt
	for d := range t.cells {
		for size := range t.cells[d] {
			for count := range t.cells[d][size] {
				c := &t.cells[d][size][count]
				if c.n[Batch] == 0 || c.n[Kernel] == 0 {
					continue
				}
				out = append(out, Learnt{
					Direction: uint8(d), RunBytes: 1 << size, Runs: 1 << (count + minRunsLog2), Best: c.best,
					BatchBytesPerS: 1e9 / c.nsPerByte[Batch], KernelBytesPerS: 1e9 / c.nsPerByte[Kernel],
				})
			}
		}
	}
	return out
}
