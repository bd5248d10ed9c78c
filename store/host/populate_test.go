package host

import (
	"math"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// resident counts the bytes of an arena, from its beginning to its first page without memory.
func resident(t *testing.T, a *Arena) int64 {
	t.Helper()
	pages := make([]byte, len(a.Memory())/unix.Getpagesize())
	_, _, err := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&a.Memory()[0])), uintptr(len(a.Memory())), uintptr(unsafe.Pointer(&pages[0])))
	if err != 0 {
		t.Fatal(err)
	}
	for i, p := range pages {
		if p&1 == 0 {
			return int64(i * unix.Getpagesize())
		}
	}
	return int64(len(a.Memory()))
}

// The first touch of the arena's memory doubled the time to the first token after a start.
func TestWholeArenaIsFaultedInBeforeItsUse(t *testing.T) {
	const size = 32 << 20
	a, err := New(Options{Bytes: size, PopulateAheadBytes: 2 << 20, FreeBytes: func() int64 { return math.MaxInt64 }})
	if err != nil {
		t.Fatal(err)
	}
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	for i := 0; a.Stats().PopulatedBytes < size; i++ {
		// What is used first is at the beginning, as what is populated first.
		if c.ReserveSave(&s, 4096) {
			if s.Offset() >= 2<<20 {
				t.Errorf("the first slot lies at %d", s.Offset())
			}
			s.Release()
		}
		if i > 10 {
			wait.For(t, "the arena is populated", func() bool { return a.Stats().PopulatedBytes == size })
		}
	}
	if n := resident(t, a); n != size {
		t.Errorf("%d of %d bytes have memory", n, size)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestArenaLeavesMemoryToTheMachine(t *testing.T) {
	const size, ahead = 128 << 20, 4 << 20
	const step = unitsPerCheck * unitBytes
	var looked atomic.Int64 // how often the machine's memory was looked at
	a, err := New(Options{Bytes: size, PopulateAheadBytes: ahead, FreeBytes: func() int64 {
		return keptFreeBytes + 3*step - step*(looked.Add(1)-1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the machine has no more to give", func() bool { return looked.Load() == 4 })
	if st := a.Stats(); st.PopulatedBytes != 3*step {
		t.Errorf("%d bytes are populated, want %d", st.PopulatedBytes, 3*step)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	a, err = New(Options{Bytes: size, PopulateAheadBytes: ahead, FreeBytes: func() int64 { return keptFreeBytes }})
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "what is used soon is populated", func() bool { return a.Stats().PopulatedBytes == ahead })
	c := newAccount(t, a, AccountOptions{SaveBytes: size})
	var s Slot
	if !c.ReserveSave(&s, 8<<20) {
		t.Fatal("no slot")
	}
	wait.For(t, "what is used after that is populated", func() bool { return a.Stats().PopulatedBytes == 8<<20+ahead })
	if n := resident(t, a); n != 8<<20+ahead {
		t.Errorf("%d bytes have memory, want %d", n, 8<<20+ahead)
	}
	s.Release()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// Close must not wait for gigabytes, nor unmap what is being populated.
func TestCloseStopsThePopulation(t *testing.T) {
	for range 20 {
		var a *Arena
		asked := make(chan struct{}, 1)
		a, err := New(Options{Bytes: 1 << 30, PopulateAheadBytes: 2 << 20, FreeBytes: func() int64 {
			select {
			case asked <- struct{}{}:
			default:
			}
			return math.MaxInt64
		}})
		if err != nil {
			t.Fatal(err)
		}
		<-asked
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if n := a.Stats().PopulatedBytes; n == 1<<30 {
			t.Error("Close waited for the whole arena")
		}
	}
}
