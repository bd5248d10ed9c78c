package index

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkHold is for how long insertions hold the lock, in processor time, on the way to 20
// million records (2 million with -short): while the table grows, and while it has room.
func BenchmarkHold(b *testing.B) {
	n := 20_000_000
	if testing.Short() {
		n = 2_000_000
	}
	for b.Loop() {
		table := New()
		growing, steady, faults := fillTimed(b, table, n)
		report(b, "growing", growing)
		report(b, "steady", steady)
		b.ReportMetric(float64(faults), "faults")
		table.Close()
	}
}

// threadFaults is how many pages the system has given the thread.
func threadFaults(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return u.Minflt + u.Majflt
}

// fillTimed adds n records as Insert does, and returns the times of its holds, and how many pages
// the system had to give during one.
func fillTimed(b *testing.B, table *Table, n int) (growing, steady []time.Duration, faults int64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := rand.NewPCG(1, 2)
	batch := make([]Insertion, 0, insertRun)
	var base Ref
	const segment = insertRun * growingRun // a multiple of both
	for at := 0; at < n; {
		if at%segment == 0 {
			var err error
			if base, err = table.AddSlots(segment); err != nil {
				b.Fatal(err)
			}
			table.Track(1, Range{Base: base, Slots: segment}, 0)
		}
		grows := table.Growing()
		size := insertRun
		if grows || at%insertRun > 0 {
			size = growingRun
		}
		batch = batch[:size]
		for i := range batch {
			batch[i] = Insertion{ID: ID{Key: randomKey(g)}, Ref: base + Ref(at%segment+i), Seq: uint64(at+i) + 1, Bytes: 1}
		}
		table.populate(size, func(i int) Ref { return batch[i].Ref })
		table.warm(size, func(i int) uint64 { return batch[i].ID.hash() })
		before, began := threadFaults(b), threadTime(b)
		table.insertRun(batch, 1)
		took := threadTime(b) - began
		faults += threadFaults(b) - before
		if at += size; grows {
			growing = append(growing, took)
		} else {
			steady = append(steady, took)
		}
	}
	return growing, steady, faults
}

func report(b *testing.B, what string, times []time.Duration) {
	slices.Sort(times)
	for _, q := range []struct {
		name string
		at   int
	}{{"p50", len(times) / 2}, {"p99", len(times) * 99 / 100}, {"max", len(times) - 1}} {
		b.ReportMetric(float64(times[q.at].Nanoseconds())/1e3, what+"-"+q.name+"-µs")
	}
}
