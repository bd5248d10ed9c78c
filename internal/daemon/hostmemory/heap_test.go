package hostmemory

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestTheHeapIsBoundedByWhatTheContainerHas(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct{ available, reserved, want int64 }{
		{10 * gib, 0, 9 * gib},
		{20 * gib, 10 * gib, 9 * gib},
		{math.MaxInt64, 0, 0},
		{2 * gib, 3 * gib, 0},
		{gib / 4, 0, 0},
	} {
		if got := heapLimit(c.available, c.reserved); got/1024 != c.want/1024 {
			t.Errorf("%d bytes, %d of them reserved: %d, want %d", c.available, c.reserved, got, c.want)
		}
	}
}

func TestAnOperatorsLimitStays(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "1GiB")
	if got := LimitHeap(0); got != 0 || debug.SetMemoryLimit(-1) != before {
		t.Errorf("limit %d, %d", got, debug.SetMemoryLimit(-1))
	}
	t.Setenv("GOMEMLIMIT", "")
	if got := LimitHeap(0); got > 0 && debug.SetMemoryLimit(-1) != got {
		t.Errorf("limit %d, the runtime has %d", got, debug.SetMemoryLimit(-1))
	}
}
