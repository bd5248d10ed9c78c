package segment

import (
	"bytes"
	"log/slog"
	"testing"
)

func TestDefaultMinFree(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct{ option, total, want int64 }{
		{0, 85 * mib, 85 * mib / 4},
		{0, 40 * gib, 10 * gib},
		{0, 100 * gib, 10 * gib},
		{0, 1000 * gib, 50 * gib},
		{-1, 1000 * gib, 0},
		{7 * gib, 1000 * gib, 7 * gib},
	} {
		if got := (MinFree{Bytes: c.option}).of(c.total); got != c.want {
			t.Errorf("option %d, file system of %d: %d, want %d", c.option, c.total, got, c.want)
		}
	}
}

// An attempt that finds no room under the cap makes nothing, and says nothing of a fault that is
// not over.
func TestNoRoomForASegmentDoesNotEndAnIncident(t *testing.T) {
	var log bytes.Buffer
	p := New(Options{}, Limits{})
	rc := NewReclaimer(ReclaimerOptions{Space: p, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.noSegment.Begins()
	rc.grow(8192)
	if log.Len() > 0 || !p.noSegment.On() {
		t.Errorf("nothing was made, and the log says: %s", log.String())
	}
}
