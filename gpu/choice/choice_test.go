package choice

import "testing"

// serve plays copies whose ways take these times, and returns how many went each way.
func serve(t *Table, n, runs int, bytes uint64, batch, kernel uint64) (count [ways]int) {
	for range n {
		w := t.Choose(1, runs, bytes)
		count[w]++
		t.Learn(1, runs, bytes, w, [ways]uint64{batch, kernel}[w])
	}
	return count
}

func TestTheFasterWayIsTaken(t *testing.T) {
	var x Table
	serve(&x, 200, 512, 512<<12, 1000, 300)
	if n := serve(&x, 1000, 512, 512<<12, 1000, 300); n[Kernel] < 950 {
		t.Errorf("%v when the kernel is faster", n)
	}
	// The GPU becomes busy, and the kernel waits for its time slice.
	serve(&x, 200, 512, 512<<12, 1000, 9000)
	if n := serve(&x, 10_000, 512, 512<<12, 1000, 9000); n[Kernel] > 40 {
		t.Errorf("%v when batches are faster", n)
	}
	// And idle again, which the tries see, one in maxGap copies.
	serve(&x, 4*window*maxGap, 512, 512<<12, 1000, 300)
	if n := serve(&x, 1000, 512, 512<<12, 1000, 300); n[Kernel] < 950 {
		t.Errorf("%v when the kernel is faster again", n)
	}
	if l := x.Learnt(); len(l) != 1 || l[0].Best != Kernel || l[0].RunBytes != 4096 || l[0].Runs != 512 || l[0].Direction != 1 ||
		!(l[0].KernelBytesPerS > l[0].BatchBytesPerS) {
		t.Errorf("%+v", l)
	}
}

func TestASmallAdvantageIsNone(t *testing.T) {
	var x Table
	serve(&x, 1000, 512, 512<<12, 1000, 950)
	if n := serve(&x, 1000, 512, 512<<12, 1000, 950); n[Kernel] > 70 {
		t.Errorf("%v", n)
	}
}

func TestWhatIsForCopyEnginesAlone(t *testing.T) {
	var x Table
	for name, c := range map[string]struct {
		direction uint8
		runs      int
		bytes     uint64
	}{
		"few runs": {0, 15, 15 << 10}, "long runs": {0, 16, 16 << 16}, "no runs": {0, 0, 0}, "no bytes": {0, 100, 0}, "no direction": {2, 100, 100 << 10},
	} {
		for range 100 {
			if x.Choose(c.direction, c.runs, c.bytes) != Batch {
				t.Errorf("%s: not a batch", name)
			}
			x.Learn(c.direction, c.runs, c.bytes, Kernel, 1)
		}
	}
	for range 100 { // more runs than there are classes, and times that are unknown
		x.Learn(0, 1<<40, 1<<50, x.Choose(0, 1<<40, 1<<50), 0)
	}
	if l := x.Learnt(); l != nil {
		t.Errorf("%+v", l)
	}
}

// A driver that refuses kernels answers each try by a batch.
func TestTriesThatAreNotTakenChangeNothing(t *testing.T) {
	var x Table
	tries := 0
	for range 1000 {
		if x.Choose(0, 64, 64<<10) == Kernel {
			tries++
		}
		x.Learn(0, 64, 64<<10, Batch, 1000)
	}
	if tries == 0 || tries > 1000/minGap {
		t.Errorf("%d tries", tries)
	}
}

func TestChoosingAllocatesNothing(t *testing.T) {
	var x Table
	if n := testing.AllocsPerRun(100, func() { x.Learn(0, 64, 64<<10, x.Choose(0, 64, 64<<10), 10) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A copy that was to go by the kernel and did not says that what was known of the kernel is over.
func TestAKernelThatIsRefusedIsForgotten(t *testing.T) {
	var x Table
	for range 10 {
		x.Learn(0, 64, 64<<10, Batch, 1000)
		x.Learn(0, 64, 64<<10, Kernel, 10)
	}
	if l := x.Learnt(); len(l) != 1 || l[0].Best != Kernel {
		t.Fatalf("%+v", l)
	}
	x.Refused(0, 64, 64<<10)
	if l := x.Learnt(); len(l) != 0 {
		t.Errorf("%+v", l)
	}
	tries := 0
	for range 10_000 {
		if x.Choose(0, 64, 64<<10) == Kernel {
			tries++
			x.Refused(0, 64, 64<<10)
		}
	}
	if tries == 0 || tries > 10_000/maxGap+10 {
		t.Errorf("%d tries", tries)
	}
}

func TestKernelsThatEndCopiersAreGivenUp(t *testing.T) {
	var x Table
	for n := 1; n <= maxLosses+1; n++ {
		if x.Ended() != (n > maxLosses) || x.Lost() != (n == maxLosses) {
			t.Errorf("after %d", n)
		}
	}
	for range 2 * minGap {
		if x.Choose(0, 64, 64<<10) != Batch {
			t.Error("a kernel all the same")
		}
	}
}

func TestAWayCanBeFixed(t *testing.T) {
	var table Table
	const runs, bytes = 64, 64 << 10
	for _, w := range []Way{Kernel, Batch} {
		table.Fix(&w)
		for range 3 * minGap {
			if got := table.Choose(0, runs, bytes); got != w {
				t.Fatalf("%v, want %v", got, w)
			}
		}
		if got := table.Choose(0, 1, bytes); got != Batch {
			t.Errorf("one run goes by %v", got)
		}
	}
	kernel := Kernel
	table.Fix(&kernel)
	for range maxLosses {
		table.Lost()
	}
	if got := table.Choose(0, runs, bytes); got != Batch {
		t.Errorf("kernels are given up, and %v is chosen", got)
	}
	var other Table
	other.Fix(&kernel)
	other.Fix(nil)
	if got := other.Choose(0, runs, bytes); got != Batch {
		t.Errorf("nothing is fixed, and %v is chosen first", got)
	}
}
