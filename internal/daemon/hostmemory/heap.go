package hostmemory

import (
	"math"
	"os"
	"runtime/debug"
)

const (
	// heapNum / heapDen of what may be had bound the heap: the rest is for stacks of the system, page tables, and what
	// the collector lets through.
	heapNum, heapDen = 9, 10
	// leastHeapBytes is a bound below which the collector would do nothing but collect.
	leastHeapBytes = 256 << 20
)

// LimitHeap bounds Go's heap by the memory that this process may have, less reservedBytes, which it takes elsewhere. The
// heap grows to twice what is alive otherwise, and a container is killed for that. The bound is soft: near it the collector
// runs more often, for half of the processor time at most. It returns the bound in bytes, 0 where it set none: GOMEMLIMIT
// does already, the memory is not known, or too little would be left.
func LimitHeap(reservedBytes int64) int64 {
	if os.Getenv("GOMEMLIMIT") != "" { // the runtime has read it
		return 0
	}
	limit := heapLimit(AvailableBytes(), reservedBytes)
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

func heapLimit(availableBytes, reservedBytes int64) int64 {
	if availableBytes == math.MaxInt64 {
		return 0
	}
	limit := (availableBytes - reservedBytes) / heapDen * heapNum
	if limit < leastHeapBytes {
		return 0
	}
	return limit
}
