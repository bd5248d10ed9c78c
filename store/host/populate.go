package host

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keptFreeBytes are left to the machine: memory that is faulted in before its use takes none of
	// them.
	keptFreeBytes = 256 << 20
	// unitsPerCheck is how many units are faulted in before the machine's memory is looked at again.
	unitsPerCheck = 16
	// politeness is how many times longer the populator rests than it works while others want
	// the processor or the arena.
	politeness = 20
)

// populator faults an arena's memory in before its use, from its beginning on, where its use begins
// too: the whole of it while the machine has memory left, and otherwise what is used soon.
//
// It is a thread of ordinary priority that rests. One of idle priority would starve while it
// holds the lock of the process's address space, and all that maps memory would wait for it.
type populator struct {
	*Arena
	began   time.Time
	checked int // the unit up to which there is memory, as far as was looked
	told    bool
}

// run populates until the arena closes.
func (p *populator) run() {
	runtime.LockOSThread() // see work
	defer runtime.UnlockOSThread()
	for {
		next := p.next()
		if next < 0 {
			select {
			case <-p.stop:
				return
			case <-p.wake:
				continue
			}
		}
		select {
		case <-p.stop:
			return
		case <-time.After(p.work(next)):
		}
	}
}

// next is the unit to populate now, -1 if there is none.
func (p *populator) next() int {
	unit := int64(p.opts.unitBytes)
	ahead := int((p.opts.PopulateAheadBytes + unit - 1) / unit)
	p.mu.Lock()
	next, soon, huge := p.populated, min(p.high+ahead, len(p.units)), p.hugeUnits
	p.mu.Unlock()
	switch {
	case next < len(p.units) && (p.mayTake(next) || next < soon):
		return next
	case !p.told && p.opts.FreeBytes != nil:
		p.told = true
		args := []any{"bytes", int64(next) * unit, "of_bytes", int64(len(p.units)) * unit, "huge_bytes", int64(huge) * unit, "took", time.Since(p.began)}
		if next < len(p.units) {
			args = append(args, "remedy", "none is needed; lower host_bytes if the machine is short of memory")
		}
		p.opts.Logger.Info("host tier memory is ready for use", args...)
	}
	return -1
}

// mayTake reports whether the machine has memory for a unit that is not used yet.
func (p *populator) mayTake(next int) bool {
	switch {
	case p.opts.FreeBytes == nil:
		return false
	case p.mem.explicit: // the kernel has set it aside
		p.checked = math.MaxInt
	case next >= p.checked:
		if p.opts.FreeBytes() < keptFreeBytes+unitsPerCheck*int64(p.opts.unitBytes) {
			return false
		}
		p.checked = next + unitsPerCheck
	}
	return true
}

// work populates a unit and returns how long to rest after it. A thread that took much less
// processor time than it took was kept waiting.
func (p *populator) work(next int) (rest time.Duration) {
	unit := int64(p.opts.unitBytes)
	began, beganCPU := time.Now(), threadTime()
	huge := p.mem.populate(int64(next)*unit, int64(next+1)*unit)
	took, cpu := time.Since(began), threadTime()-beganCPU
	p.mu.Lock()
	defer p.mu.Unlock()
	p.populated++
	if huge {
		p.hugeUnits++
	}
	if took > 2*cpu || p.usedBytes > 0 {
		return politeness * cpu
	}
	return 0
}

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
