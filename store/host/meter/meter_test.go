package meter

import (
	"testing"
	"time"
)

func TestCopySpeedIsThatOfLate(t *testing.T) {
	var m Meter
	m.Add(enoughBytes-1, time.Second)
	if got := m.BytesPerS(); got != 0 {
		t.Errorf("%v bytes/s known from too little", got)
	}
	for range 1000 {
		m.Add(100<<20, time.Second)
	}
	if got := m.BytesPerS(); got < 99<<20 || got > 101<<20 {
		t.Errorf("%v bytes/s, want 100 MiB/s", got)
	}
	for range 100 { // the machine has other work
		m.Add(20<<20, time.Second)
	}
	if got := m.BytesPerS(); got > 21<<20 {
		t.Errorf("%v bytes/s, want about the 20 MiB/s of late", got)
	}
}

func TestVerySlowCopiesAreKnown(t *testing.T) {
	var m Meter
	for range 2 * meterSpan / time.Second {
		m.Add(1<<20, time.Second)
	}
	if got := m.BytesPerS(); got < 0.9*(1<<20) || got > 1.1*(1<<20) {
		t.Errorf("%v bytes/s, want the 1 MiB/s of a very slow machine", got)
	}
}

// A machine that was too busy for the host tier to pay must not be taken for busy indefinitely:
// nothing is loaded from there then, and nothing measured.
func TestCopySpeedIsForgottenInTimesWithoutCopies(t *testing.T) {
	var m Meter
	for range 100 {
		m.Add(1<<30, time.Second/4)
	}
	before, now := m.BytesPerS(), time.Now()
	for range 2 { // the second comes too soon
		m.FadeAt(now)
	}
	if got := m.BytesPerS(); got < 0.99*before || got > 1.01*before {
		t.Errorf("%v bytes/s at once, want still %v", got, before)
	}
	if m.took < meterSpan/2 {
		t.Errorf("%v are left of %v", m.took, meterSpan)
	}
	for i := range 60 {
		m.FadeAt(now.Add(time.Duration(i+1) * time.Second))
	}
	if got := m.BytesPerS(); got != 0 {
		t.Errorf("%v bytes/s known after a minute without copies", got)
	}
}
