package ring

import (
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// pair is both sides of a ring, each with a mapping of its own.
func pair(t testing.TB) (daemon, copier *Ring) {
	t.Helper()
	daemon, err := New()
	if err != nil {
		t.Fatal(err)
	}
	var files [3]*os.File
	for i, f := range daemon.Files() {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = os.NewFile(uintptr(fd), "copy")
	}
	if copier, err = Open(files); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if daemon.Close() != nil || copier.Close() != nil {
			t.Error("a ring is not closed")
		}
	})
	return daemon, copier
}

// Batches arrive whole, in order, and their outcomes come back, many rounds through all slots.
func TestBatchesArriveInOrder(t *testing.T) {
	daemon, copier := pair(t)
	const batches = 10_000
	ended := make(chan error, 1)
	go func() {
		next := uint32(0)
		for next < batches {
			if err := copier.AwaitBatches(); err != nil {
				ended <- err
				return
			}
			for {
				slot, ok := copier.Take()
				if !ok {
					break
				}
				b := copier.Batch(slot)
				o := Outcome{Code: int32(b.Memory()), Nanoseconds: uint64(len(b.Runs())), Refused: b.Memory() != next || b.Direction() != uint8(next%2)}
				for i, r := range b.Runs() {
					o.Refused = o.Refused || r.Region != uint32(i) || r.Offset != uint64(next) || r.Arena != uint64(i)<<40 || r.Bytes != 1
				}
				next++
				if err := copier.Finish(slot, o); err != nil {
					ended <- err
					return
				}
			}
		}
		ended <- nil
	}()
	var free, used []int
	for i := range Slots {
		free = append(free, i)
	}
	counts := map[int]int{}
	reap := func() {
		if err := daemon.AwaitEnds(); err != nil {
			t.Fatal(err)
		}
		var still []int
		for _, slot := range used {
			o, done := daemon.Batch(slot).Outcome()
			if !done {
				still = append(still, slot)
				continue
			}
			if o.Refused || o.Nanoseconds != uint64(counts[slot]) {
				t.Fatalf("slot %d: %+v", slot, o)
			}
			free = append(free, slot)
		}
		used = still
	}
	for n := range uint32(batches) {
		for len(free) == 0 {
			reap()
		}
		slot := free[len(free)-1]
		free = free[:len(free)-1]
		b := daemon.Batch(slot)
		b.Reset(n, uint8(n%2))
		counts[slot] = rand.IntN(8)
		for i := range counts[slot] {
			b.Append(Run{Region: uint32(i), Offset: uint64(n), Arena: uint64(i) << 40, Bytes: 1})
		}
		if err := daemon.Submit(slot); err != nil {
			t.Fatal(err)
		}
		used = append(used, slot)
	}
	for len(used) > 0 {
		reap()
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestABatchHasABound(t *testing.T) {
	daemon, _ := pair(t)
	b := daemon.Batch(Slots - 1)
	b.Reset(1, 0)
	for range MaxRuns {
		if !b.Append(Run{Bytes: 1}) {
			t.Fatal("it is full too early")
		}
	}
	if b.Append(Run{Bytes: 1}) || len(b.Runs()) != MaxRuns {
		t.Error("it takes more than its bound")
	}
}

// What the other side writes into a slot's count is not believed.
func TestACountBeyondTheBoundIsCut(t *testing.T) {
	daemon, copier := pair(t)
	daemon.Batch(0).count = 1 << 31
	if n := len(copier.Batch(0).Runs()); n != MaxRuns {
		t.Errorf("%d runs", n)
	}
}

func TestAFileOfAnotherSizeIsNoRing(t *testing.T) {
	var files [3]*os.File
	for i := range files {
		files[i] = memfd.New(t, 0)
	}
	if _, err := Open(files); err == nil {
		t.Error("it was opened")
	}
}

func TestSubmittingDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	daemon, copier := pair(t)
	if n := testing.AllocsPerRun(100, func() {
		daemon.Batch(0).Reset(1, 0)
		if daemon.Submit(0) != nil || copier.AwaitBatches() != nil {
			t.Fatal("no batch")
		}
		slot, _ := copier.Take()
		if copier.Finish(slot, Outcome{}) != nil || daemon.AwaitEnds() != nil {
			t.Fatal("no end")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkBells is the way there and back between two threads of a process, without a copy: the limit of a copier's
// round trip.
func BenchmarkBells(b *testing.B) {
	daemon, copier := pair(b)
	go func() {
		for copier.AwaitBatches() == nil {
			for {
				slot, ok := copier.Take()
				if !ok {
					break
				}
				_ = copier.Finish(slot, Outcome{})
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		daemon.Batch(0).Reset(1, 0)
		if daemon.Submit(0) != nil || daemon.AwaitEnds() != nil {
			b.Fatal("no end")
		}
	}
}
