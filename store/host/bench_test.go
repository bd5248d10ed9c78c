package host

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/host/memory"
)

// BenchmarkHit is what a hit costs besides the copy.
func BenchmarkHit(b *testing.B) {
	a, err := New(Options{Bytes: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	c := newAccount(b, a, AccountOptions{})
	var s Slot
	for n := range 1000 {
		_ = slotFor(c, &s, n)
		s.Release()
	}
	n := 0
	for b.Loop() {
		n = (n + 1) % 1000
		c.lookup(&s, record(n), 4096)
		s.Release()
	}
}

// addresses maps nothing: an arena of any size is addresses alone, for work on what the
// arena knows of its slots.
func addresses(bytes int64) (*memory.Memory, error) {
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(bytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	return memory.Over(null, unsafe.Slice((*byte)(at), bytes), at), err
}

// BenchmarkBooks is what the arena's books cost at its size, with slots of 640 KiB and more:
// hits of random records, replacement of the oldest, and changes between two sizes, each
// while everything is full of clean records and some slots of each gigabyte are pinned.
func BenchmarkBooks(b *testing.B) {
	for _, size := range []int64{1 << 30, 32 << 30, 1 << 40} {
		a, err := New(Options{Bytes: size, PopulateAheadBytes: 1, newMemory: addresses})
		if err != nil {
			b.Fatal(err)
		}
		c := newAccount(b, a, AccountOptions{LoadBytes: size, SaveBytes: size})
		const payload = 640 << 10
		fit := int(size / unitBytes * 3)
		var s Slot
		put := func(n, payload int) {
			if o, err := c.Acquire(b.Context(), &s, record(n), payload, false); o == Fill {
				s.Publish(record(n))
			} else if err != nil {
				b.Fatal(err)
			}
			s.Release()
		}
		next := 0
		for ; next < fit; next++ {
			put(next, payload)
		}
		pins := make([]Slot, 0, size>>30)
		for i := range cap(pins) {
			pins = append(pins, Slot{})
			if !c.lookup(&pins[i], record(fit-1-i*(fit/cap(pins))), payload) {
				b.Fatal("not there")
			}
		}
		g := rand.New(rand.NewPCG(1, 1))
		name := fmt.Sprintf("%dGB", size>>30)
		b.Run(name+"/hit", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.lookup(&s, record(next-1-g.IntN(fit/2)), payload)
				s.Release()
			}
		})
		b.Run(name+"/misses", func(b *testing.B) { benchMisses(b, fit) })
		b.Run(name+"/replace", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				put(next, payload)
				next++
			}
		})
		b.Run(name+"/save", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.ReserveSave(&s, payload)
				s.Release()
			}
		})
		b.Run(name+"/change", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				put(next, []int{payload, 3 << 20, 8 << 20}[next%3])
				next++
			}
		})
		for i := range pins {
			pins[i].Release()
		}
		for range fit { // no unit is left free
			put(next, payload)
			next++
		}
		// A slot in every second unit is pinned, and no run of units is free.
		pins = make([]Slot, size/unitBytes)
		for unit, at := range a.units {
			if unit%2 == 0 && at != 0 {
				for id := a.firstSlot(at); pins[unit].slot == 0; id++ {
					if a.slot(id).state == slotClean {
						pins[unit].account, pins[unit].class = c, a.classOfSpan(at)
						a.hit(&pins[unit], id)
					}
				}
			}
		}
		b.Run(name+"/refused", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if c.ReserveSave(&s, 10<<20) {
					b.Fatal("there is no run of units")
				}
			}
		})
		for i := range pins {
			pins[i].Release()
		}
		c.Close()
		if err := a.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// benchMisses reads, one after the other, as many of a table of slots, taken at random, as the
// books of a hit lie in: a bucket's, the record's own, its neighbours' in the list of clean ones, the
// span's. It is what memory itself takes for that at such a size.
func benchMisses(b *testing.B, slots int) {
	const reads = 5
	table := make([]slot, slots)
	at := rand.New(rand.NewPCG(2, 2)).Perm(slots)
	for i, from := range at { // one ring through all of them
		table[from].next = slotID(at[(i+1)%slots])
	}
	next := slotID(0)
	for b.Loop() {
		for range reads {
			next = table[next].next
		}
	}
	if int(next) >= slots {
		b.Fatal("out of the table")
	}
}

// BenchmarkFirstWrite compares the first write to memory that was populated ahead with
// one to memory that was not.
func BenchmarkFirstWrite(b *testing.B) {
	for name, ahead := range map[string]int64{"populated": 64 << 20, "not": 1} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(32 << 20)
			for b.Loop() {
				b.StopTimer()
				a, err := New(Options{Bytes: 64 << 20, PopulateAheadBytes: ahead})
				if err != nil {
					b.Fatal(err)
				}
				for a.Stats().PopulatedBytes < min(ahead, 64<<20)&^(unitBytes-1) {
					time.Sleep(time.Millisecond)
				}
				c := newAccount(b, a, AccountOptions{})
				var s Slot
				if !c.ReserveSave(&s, 32<<20) {
					b.Fatal("no slot")
				}
				b.StartTimer()
				clear(s.Bytes())
				b.StopTimer()
				s.Release()
				if err := a.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
