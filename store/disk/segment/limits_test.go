package segment

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/report"
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

// roomFS tells what a file system has, and what the store occupies.
type roomFS struct {
	fsio.FS
	room fsio.Room
	err  error
}

func (f *roomFS) Room(string) (fsio.Room, error) { return f.room, f.err }

func (f *roomFS) PhysicalBytes(string) (int64, error) { return 1 << 30, nil }

// A percentage is of the file system, whatever is free in it. What cannot be measured must not make the cap small.
func TestACapInPercentIsOfTheFileSystem(t *testing.T) {
	const gib = 1 << 30
	refused := errors.New("refused")
	for _, c := range []struct {
		max     int64
		percent float64
		err     error
		want    int64
		source  string
	}{
		{0, 80, nil, 80 * gib, "configured: 80% of the file system"},
		{0, 12.5, nil, 25 * gib / 2, "configured: 12.5% of the file system"},
		{0, 1e-6, nil, MinBytes, "configured: 1e-06% of the file system"},
		{5 * gib, 80, nil, 5 * gib, "configured"},
		{0, 0, nil, (10*gib + gib) / 5 * 4, "80% of free and own space"},
		{0, 80, refused, gib / 4 * 5, "what the store occupies and a quarter more: the file system does not say what is free"},
	} {
		var log bytes.Buffer
		l, err := FindLimits(LimitOptions{
			FS: &roomFS{room: fsio.Room{TotalBytes: 100 * gib, FreeBytes: 10 * gib}, err: c.err}, MaxBytes: c.max, MaxPercent: c.percent,
			SegmentBytes: 256 << 20, Report: &report.Report{Logger: slog.New(slog.NewTextHandler(&log, nil))},
		})
		if err != nil || l.MaxBytes != c.want || l.capSource != c.source || !strings.Contains(log.String(), strconv.Quote(c.source)) && c.source != "configured" {
			t.Errorf("%d, %v%%, %v: cap %d, want %d, from %q, %v; log: %s", c.max, c.percent, c.err, l.MaxBytes, c.want, l.capSource, err, log.String())
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
