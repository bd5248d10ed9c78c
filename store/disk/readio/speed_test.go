package readio

import (
	"testing"
	"time"
)

func TestSpeedSinksWhileTheDiskOwesAnAnswer(t *testing.T) {
	at := time.Unix(100, 0)
	r := New(Options{Budget: 1 << 20, ChunkBytes: 1 << 20, Clock: func() time.Time { return at }})
	r.Seed(1e9)
	if got := r.Speed().BytesPerS; got != 1e9 {
		t.Errorf("%v, want what the calibration found", got)
	}
	r.speed.begin(at)
	r.inFlight, r.backlog = 4096, 8192
	at = at.Add(10 * time.Second)
	if v := r.Speed(); v.BytesPerS > 1e3 || v.QueuedBytes != 8192 {
		t.Errorf("%+v after a disk was silent for 10 s", v)
	}
}
