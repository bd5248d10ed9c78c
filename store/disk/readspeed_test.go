package disk

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// throttledDisk is a disk on a clock that only its reads move.
type throttledDisk struct {
	*memDisk
	now atomic.Int64 // nanoseconds
	// perRead is the time that each request to a segment takes.
	perRead atomic.Int64
}

func openThrottled(t *testing.T) (*throttledDisk, *Store, []testRecord) {
	t.Helper()
	d := &throttledDisk{memDisk: newMemDisk()}
	d.now.Store(int64(time.Hour))
	d.hook(func(op, path string) error {
		if op == "read" && strings.Contains(path, recovery.SegmentDir) {
			d.now.Add(d.perRead.Load())
		}
		return nil
	})
	o := memOptions(d.memDisk, newJournalFS())
	o.clock = func() time.Time { return time.Unix(0, d.now.Load()) }
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "m"), 1, 8)
	mustWrite(t, s, records)
	return d, s, records
}

// readOne reads a record alone, so that the time of one request is that of the read.
func readOne(t *testing.T, s *Store, r testRecord) {
	t.Helper()
	for _, err := range readAll(t, s, []testRecord{r}) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func near(got, want float64) bool { return math.Abs(got-want) <= 0.15*want }

func TestReadSpeedFollowsASlowDiskWithinAFewReadsAndRecovers(t *testing.T) {
	d, s, records := openThrottled(t)
	if v := s.Speed(); v.BytesPerS != 0 {
		t.Fatalf("%+v before anything was read", v)
	}
	request := float64(segment.SlotBytes(records[0].Bytes))
	for _, step := range []struct {
		perRead time.Duration
		reads   int
	}{{time.Millisecond, 20}, {200 * time.Millisecond, 6}, {time.Millisecond, 1600}} {
		d.perRead.Store(int64(step.perRead))
		for i := range step.reads {
			readOne(t, s, records[i%len(records)])
			d.now.Add(int64(time.Minute)) // idle time counts nothing
		}
		if got, want := s.Speed().BytesPerS, request/step.perRead.Seconds(); !near(got, want) {
			t.Errorf("after %d reads of %v each: %.0f bytes/s, want about %.0f", step.reads, step.perRead, got, want)
		}
	}
	v := s.Speed()
	if !near(v.LatencyS, 0.001) || v.QueuedBytes != 0 {
		t.Errorf("%+v", v)
	}
	if s.Stats().ReadSpeed != v {
		t.Errorf("Stats has %+v", s.Stats().ReadSpeed)
	}
}

func TestProbeMeasuresADiskThatNobodyReads(t *testing.T) {
	d, s, records := openThrottled(t)
	d.perRead.Store(int64(200 * time.Millisecond))
	for i := range 4 {
		readOne(t, s, records[i])
	}
	slow := s.Speed().BytesPerS
	d.perRead.Store(int64(time.Millisecond))
	for range 500 {
		if err := s.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if fast := s.Speed().BytesPerS; fast < 5*slow {
		t.Errorf("%.0f bytes/s after the disk got faster, %.0f before", fast, slow)
	}
	if st := s.Stats(); st.Mismatched != 0 || st.Corrupt != 0 {
		t.Errorf("probes count as failures: %+v", st)
	}
}

func TestFailedAndGivenUpReadsLeaveNoBacklog(t *testing.T) {
	d, s, records := openThrottled(t)
	d.hook(func(op, path string) error {
		if op == "read" && strings.Contains(path, recovery.SegmentDir) {
			return errTestFault
		}
		return nil
	})
	readAll(t, s, records)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ops := make([]*store.ReadOp, len(records))
	for i, r := range records {
		ops[i] = &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes)}
	}
	s.Read(ctx, ops, func(*store.ReadOp) {})
	for _, op := range ops {
		for !op.Settled() {
			time.Sleep(time.Millisecond)
		}
	}
	if v := s.Speed(); v.QueuedBytes != 0 {
		t.Errorf("%+v", v)
	}
}

func TestReadSpeedDoesNotAllocate(t *testing.T) {
	_, s, _ := openThrottled(t)
	if n := leastAllocs(100, func() { s.Speed() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
