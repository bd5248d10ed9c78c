package calibrate_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/kvconn/kvconn/store/disk/calibrate"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

const chunk = 128 << 10

// device is a file on a disk that serves a few requests at a time. Each request takes a while.
type device struct {
	fsio.File
	t             *testing.T
	reads, writes chan time.Duration // a token for each request that it works on
	fail          func(op string) error
	thrashes      int // at that many requests at one time all of them take three times as long

	mu        sync.Mutex
	asked     int
	allocated int64
	written   map[int64]bool
	synced    bool
	inUse     map[*byte]bool
}

// newDevice returns a disk that works on that many reads and writes at a time. It runs in a bubble.
func newDevice(t *testing.T, reads, writes int) *device {
	d := &device{t: t, written: make(map[int64]bool), inUse: make(map[*byte]bool), fail: func(string) error { return nil },
		thrashes: 1000,
		reads:    make(chan time.Duration, reads), writes: make(chan time.Duration, writes)}
	for range reads {
		d.reads <- time.Millisecond
	}
	for range writes {
		d.writes <- 2 * time.Millisecond
	}
	return d
}

// request does one request, and checks that it may be made.
func (d *device) request(op string, tokens chan time.Duration, buf []byte, at int64) error {
	if err := d.fail(op); err != nil {
		return err
	}
	if len(buf) != chunk || !fsio.Aligned(buf) || at%fsio.Align != 0 || at < 0 || at+chunk > d.allocated {
		d.t.Errorf("%s of %d bytes at %d of a file of %d", op, len(buf), at, d.allocated)
	}
	p := unsafe.SliceData(buf)
	d.mu.Lock()
	if d.inUse[p] {
		d.t.Errorf("%s: two requests use one buffer", op)
	}
	d.inUse[p] = true
	d.written[at] = d.written[at] || op == "write"
	if !d.written[at] || op == "read" && !d.synced {
		d.t.Errorf("%s at %d of what was not written, or is not on the disk", op, at)
	}
	d.asked++
	slower := time.Duration(1)
	if d.asked >= d.thrashes {
		slower = 3
	}
	d.mu.Unlock()
	takes := <-tokens
	time.Sleep(takes * slower)
	tokens <- takes
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked--
	d.inUse[p] = false
	return nil
}

func (d *device) ReadVec(a, _ []byte, at int64) error  { return d.request("read", d.reads, a, at) }
func (d *device) WriteVec(a, _ []byte, at int64) error { return d.request("write", d.writes, a, at) }

func (d *device) Allocate(size int64) error {
	d.allocated = size
	return d.fail("allocate")
}

func (d *device) Datasync() error {
	d.synced = true
	return d.fail("sync")
}

// The depth chosen is the least at which the disk does all that it can, for reads and for writes.
func TestDepthIsWhatTheDiskNeeds(t *testing.T) {
	for _, c := range []struct {
		reads, writes, readDepth, writeDepth int64
		thrashes                             int
	}{
		{1, 1, 1, 1, 1000},
		{8, 2, 8, 2, 1000},
		{5, 16, 8, 16, 1000}, // between two that are tried
		{1000, 64, 64, 64, 1000},
		{8, 4, 8, 4, 30},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDevice(t, int(c.reads), int(c.writes))
			d.thrashes = c.thrashes
			r, err := calibrate.Measure(d, chunk)
			if err != nil {
				t.Fatal(err)
			}
			if r.ReadInFlightBytes != c.readDepth*chunk || r.WriteInFlightBytes != c.writeDepth*chunk {
				t.Errorf("disk of %d and %d: %d reads and %d writes at a time, want %d and %d", c.reads, c.writes,
					r.ReadInFlightBytes/chunk, r.WriteInFlightBytes/chunk, c.readDepth, c.writeDepth)
			}
			for _, m := range []struct {
				points     []calibrate.Point
				rate, want float64
			}{
				{r.Measured, r.BytesPerS, float64(min(c.reads, 64)*chunk) / 0.001},
				{r.MeasuredWrites, r.WriteBytesPerS, float64(min(c.writes, 64)*chunk) / 0.002},
			} {
				if m.rate < 0.9*m.want || m.rate > 1.1*m.want {
					t.Errorf("%.0f bytes/s, want %.0f", m.rate, m.want)
				}
				if len(m.points) != 7 || m.points[0].InFlightBytes != chunk || m.points[6].InFlightBytes != 64*chunk {
					t.Errorf("depths tried: %+v", m.points)
				}
			}
		})
	}
}

var errDevice = errors.New("no")

func TestCalibrationFailsWithItsDisk(t *testing.T) {
	for failing, first := range map[string]int64{"allocate": 1, "write": 1, "sync": 1, "read": 1, "write after some": 1000} {
		synctest.Test(t, func(t *testing.T) {
			d := newDevice(t, 4, 4)
			var seen atomic.Int64
			d.fail = func(op string) error {
				if strings.HasPrefix(failing, op) && seen.Add(1) >= first {
					return errDevice
				}
				return nil
			}
			if _, err := calibrate.Measure(d, chunk); !errors.Is(err, errDevice) {
				t.Errorf("%s fails: %v", failing, err)
			}
			for _, used := range d.inUse {
				if used {
					t.Errorf("%s fails: requests go on", failing)
				}
			}
		})
	}
}
