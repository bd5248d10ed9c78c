package written

import "testing"

func TestOrderOfWritingIsKeptWithinItsSteps(t *testing.T) {
	last := uint32(0)
	for opening := range uint64(600) {
		for _, counter := range []uint64{1, 2, 300, 511, 513, 70_000, 1 << 20, 1<<SeqBits - 1} {
			tick := Tick(opening<<SeqBits | counter)
			if tick <= last && opening < 1<<stepBits {
				t.Fatalf("opening %d, record %d: tick %d after %d", opening, counter, tick, last)
			}
			if tick < last && coarse(opening) != coarse(opening-1) || tick >= FirstTick {
				t.Fatalf("opening %d, record %d: tick %d after %d", opening, counter, tick, last)
			}
			last = tick
		}
	}
	if tick := Tick(1<<64 - 1); tick >= FirstTick {
		t.Errorf("last tick %d", tick)
	}
}
