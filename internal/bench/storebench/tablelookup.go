package storebench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index"
)

// LookupTimes are of look-ups of whole chains.
type LookupTimes struct {
	Lookups       int     `json:"lookups"`
	MedianSeconds float64 `json:"median_s"`
	P99Seconds    float64 `json:"p99_s"`
	MaxSeconds    float64 `json:"max_s"`
	// StallMaxSeconds is the most that one of them waited for anything but a processor. Where the
	// machine is busy it still holds that who has the lock waits for one. 0 where the kernel does
	// not tell.
	StallMaxSeconds float64 `json:"stall_max_s"`
}

// lookupStep and lookupSteps are those of the histogram of look-ups.
const (
	lookupStep  = 10 * time.Microsecond
	lookupSteps = 10_000
)

// histogram collects the times of look-ups of one kind.
type histogram struct {
	steps [lookupSteps]int
	sum   LookupTimes
}

func (h *histogram) add(took, stall time.Duration) {
	h.steps[min(took/lookupStep, lookupSteps-1)]++
	h.sum.Lookups++
	h.sum.MaxSeconds = max(h.sum.MaxSeconds, took.Seconds())
	h.sum.StallMaxSeconds = max(h.sum.StallMaxSeconds, stall.Seconds())
}

func (h *histogram) times() LookupTimes {
	h.sum.MedianSeconds, h.sum.P99Seconds = h.quantile(50), h.quantile(99)
	return h.sum
}

// quantile is the upper end of the step in which a percentile lies.
func (h *histogram) quantile(percent int) float64 {
	seen := 0
	for i, n := range h.steps {
		if seen += n; n > 0 && seen*100 >= h.sum.Lookups*percent {
			return (time.Duration(i+1) * lookupStep).Seconds()
		}
	}
	return 0
}

// tableLookups looks up chains of two tables in turn.
type tableLookups struct {
	b           *tableBench
	stillChains int64
	random      *rand.Rand
	keys        []connector.Key
	refs        []index.Ref

	growing, filling, still histogram
	failed                  error
}

func newTableLookups(b *tableBench, stillChains int) *tableLookups {
	return &tableLookups{
		b: b, stillChains: int64(stillChains), random: rand.New(rand.NewPCG(1, 1)),
		keys: make([]connector.Key, b.o.Chain), refs: make([]index.Ref, 0, b.o.Chain),
	}
}

// run looks up chains that are all there until stop is closed.
func (l *tableLookups) run(stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for l.failed == nil {
		select {
		case <-stop:
			return
		default:
		}
		n := l.b.built.Load()
		if n == 0 {
			runtime.Gosched()
			continue
		}
		before := l.b.table.Growing()
		took, stall := l.lookUp(l.b.table, l.random.Int64N(n))
		if before || l.b.table.Growing() {
			l.growing.add(took, stall)
		} else {
			l.filling.add(took, stall)
		}
		l.still.add(l.lookUp(l.b.still, l.random.Int64N(l.stillChains)))
	}
}

// lookUp looks up one chain. stall is what it waited for anything but a processor.
func (l *tableLookups) lookUp(t *index.Table, chain int64) (took, stall time.Duration) {
	chainKeys(l.keys, int(chain))
	busy := busyTime()
	began := time.Now()
	found, pins := t.Prefix(0, []connector.Shard{0}, l.keys, l.refs[:0])
	took = time.Since(began)
	if after := busyTime(); after > busy {
		stall = max(0, took-(after-busy))
	}
	t.Unpin(pins...)
	if found != len(l.keys) {
		l.failed = fmt.Errorf("bench index: chain %d of %d blocks: found %d", chain, len(l.keys), found)
	}
	return took, stall
}

func (l *tableLookups) sum(res *TableResult) {
	res.Growing, res.Filling, res.Still = l.growing.times(), l.filling.times(), l.still.times()
}

func chainKeys(keys []connector.Key, chain int) {
	for i := range keys {
		keys[i] = Key(chain, i)
	}
}

// busyTime is how long the calling thread has computed, or waited for a processor; 0 if the kernel
// does not tell.
func busyTime() time.Duration {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	var cpu, wait int64
	if _, err := fmt.Sscan(string(text), &cpu, &wait); err != nil {
		return 0
	}
	return time.Duration(cpu + wait)
}

// threadTime is the processor time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic("storebench: processor time of a thread: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// threadFaults is how many pages the system has given the calling thread.
func threadFaults() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic("storebench: page faults of a thread: " + err.Error())
	}
	return u.Minflt + u.Majflt
}

// residentBytes is the process's resident memory, 0 if the kernel does not tell.
func residentBytes() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var all, resident int64
	if _, err := fmt.Sscan(string(text), &all, &resident); err != nil {
		return 0
	}
	return float64(resident) * float64(os.Getpagesize())
}
