package memory

import (
	"log/slog"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// KeptFreeBytes are left to the machine: memory that is populated before its use takes none of
	// them.
	KeptFreeBytes = 256 << 20
	// CheckBytes are populated before the machine's memory is looked at again.
	CheckBytes = 32 << 20
	// politeness is how many times longer the populator rests than it works while others want
	// the processor or the memory.
	politeness = 20
)

// Population says how a [Memory] is populated.
type Population struct {
	// FreeBytes, if not nil, says how much more memory the machine can give. The whole is populated
	// while it leaves [KeptFreeBytes], and otherwise AheadBytes beyond what is used.
	FreeBytes  func() int64
	AheadBytes int64
	// Used says up to where the memory was ever used, and whether it is in use at the moment.
	Used func() (end int64, busy bool)
	// Grown has a token when that end has moved.
	Grown <-chan struct{}
	// Stop ends the population when it is closed.
	Stop   <-chan struct{}
	Logger *slog.Logger
}

// Populate faults memory in before its use, from its beginning on, where its use begins too, until
// it is told to stop.
//
// It works at ordinary priority, and rests. A thread of idle priority would starve while it
// holds the lock of the process's address space, and all that maps memory would wait for it.
func (m *Memory) Populate(o Population) {
	runtime.LockOSThread() // see populateNext
	defer runtime.UnlockOSThread()
	p := &populator{Population: o, memory: m, began: time.Now()}
	for {
		if !p.due() {
			select {
			case <-o.Stop:
				return
			case <-o.Grown:
				continue
			}
		}
		select {
		case <-o.Stop:
			return
		case <-time.After(p.populateNext()):
		}
	}
}

// populator is a call of [Memory.Populate].
type populator struct {
	Population
	memory *Memory
	began  time.Time
	// checked is up to where the machine has memory.
	checked int64
	told    bool
}

// due reports whether the next bytes are to be populated now.
func (p *populator) due() bool {
	size, next := int64(len(p.memory.Bytes)), p.memory.populated.Load()
	used, _ := p.Used()
	if next < size && (p.mayTake(next) || next < used+p.AheadBytes) {
		return true
	}
	if !p.told && p.FreeBytes != nil {
		p.told = true
		_, huge := p.memory.Populated()
		args := []any{"bytes", next, "of_bytes", size, "huge_bytes", huge, "took", time.Since(p.began)}
		if next < size {
			args = append(args, "remedy", "none is needed; lower host_bytes if the machine is short of memory")
		}
		p.Logger.Info("host tier memory is ready for use", args...)
	}
	return false
}

// mayTake reports whether the machine has memory that is not used yet.
func (p *populator) mayTake(next int64) bool {
	switch {
	case p.FreeBytes == nil:
		return false
	case p.memory.explicit: // the kernel has set it aside
		p.checked = math.MaxInt64
	case next >= p.checked:
		if p.FreeBytes() < KeptFreeBytes+CheckBytes {
			return false
		}
		p.checked = next + CheckBytes
	}
	return true
}

// populateNext populates the next bytes and returns how long to rest after it. A thread that took
// much less processor time than it took was kept waiting.
func (p *populator) populateNext() (rest time.Duration) {
	from := p.memory.populated.Load()
	to := min(from+HugePageBytes, int64(len(p.memory.Bytes)))
	began, beganCPU := time.Now(), threadTime()
	huge := p.memory.populate(from, to)
	took, cpu := time.Since(began), threadTime()-beganCPU
	if huge {
		p.memory.huge.Add(to - from)
	}
	p.memory.populated.Store(to)
	if _, busy := p.Used(); busy || took > 2*cpu {
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
