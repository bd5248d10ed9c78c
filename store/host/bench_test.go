package host

import (
	"testing"
	"time"
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
		c.Lookup(&s, record(n), 4096)
		s.Release()
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
