package worker

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/store/host"
)

func TestCopySpeedIsThatOfLate(t *testing.T) {
	var m CopyMeter
	m.add(enoughBytes-1, time.Second)
	if got := m.BytesPerS(); got != 0 {
		t.Errorf("%v bytes/s known from too little", got)
	}
	for range 1000 {
		m.add(100<<20, time.Second)
	}
	if got := m.BytesPerS(); got < 99<<20 || got > 101<<20 {
		t.Errorf("%v bytes/s, want 100 MiB/s", got)
	}
	for range 100 { // the machine has other work
		m.add(20<<20, time.Second)
	}
	if got := m.BytesPerS(); got > 21<<20 {
		t.Errorf("%v bytes/s, want about the 20 MiB/s of late", got)
	}
	(*CopyMeter)(nil).add(1, 1)
}

func TestVerySlowCopiesAreKnown(t *testing.T) {
	var m CopyMeter
	for range 2 * meterSpan / time.Second {
		m.add(1<<20, time.Second)
	}
	if got := m.BytesPerS(); got < 0.9*(1<<20) || got > 1.1*(1<<20) {
		t.Errorf("%v bytes/s, want the 1 MiB/s of a very slow machine", got)
	}
}

// A machine that was too busy for the host tier to pay must not be taken for busy for ever:
// nothing is loaded from there then, and nothing measured.
func TestCopySpeedIsForgottenInTimesWithoutCopies(t *testing.T) {
	var m CopyMeter
	for range 100 {
		m.add(1<<30, time.Second/4)
	}
	before := m.BytesPerS()
	m.fade()
	if got := m.BytesPerS(); got < 0.99*before || got > 1.01*before {
		t.Errorf("%v bytes/s at once, want still %v", got, before)
	}
	for range 60 {
		m.fade()
	}
	if got := m.BytesPerS(); got != 0 {
		t.Errorf("%v bytes/s known after a minute without copies", got)
	}
}

func TestLoadsAreMeasured(t *testing.T) {
	var m CopyMeter
	s := openStore(t)
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Meter = &m })
	memory := newEngineMemory(t)
	register(t, w, memory)
	mustSave(t, w, transfer(0, 0, 1))
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 2, 3)))); err != nil {
		t.Fatal(err)
	}
	poll(t, w, 1)
	if m.bytes != 2*layers*pieceBytes || m.took == 0 {
		t.Errorf("%v bytes in %v measured, want those of the load", m.bytes, m.took)
	}
}
