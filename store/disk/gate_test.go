package disk

import (
	"testing"
	"testing/synctest"

	"github.com/kvconn/kvconn/store"
)

// admitted is how many writes of a size a gate lets in at one time. It runs in a bubble.
func admitted(g *gate, bytes int64) int {
	const tried = 100
	for range tried {
		go g.beginWrite(bytes)
	}
	synctest.Wait() // the others wait for their turn
	_, most := g.state()
	for range tried {
		g.endWrite(bytes)
		synctest.Wait()
	}
	return most
}

// Defect 30: writes kept to 8 at a time, 2 beside reads, however fast the disk is.
func TestWritesFollowTheDisk(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		name              string
		writers           int
		budget, bytes     int64
		alone, besideRead int
	}{
		{"not measured", 0, 0, 640 * kib, 8, 2},
		{"slow disk", 0, 1 * mib, 640 * kib, 8, 2},
		{"fast disk", 0, 32 * mib, 640 * kib, 51, 12},
		{"fast disk, small records", 0, 32 * mib, 28 * kib, 64, 16},
		{"fast disk, large records", 0, 32 * mib, 16 * mib, 8, 2},
		{"as configured", 12, 32 * mib, 640 * kib, 12, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			var g gate
			g.init(c.writers)
			if c.writers == 0 {
				g.setBudget(c.budget)
			}
			if n := admitted(&g, c.bytes); n != c.alone {
				t.Errorf("%s: %d writes at a time, want %d", c.name, n, c.alone)
			}
			g.reads(1)
			if n := admitted(&g, c.bytes); n != c.besideRead {
				t.Errorf("%s: %d writes beside reads, want %d", c.name, n, c.besideRead)
			}
			g.reads(-1)
		})
	}
}

// What the calibration measures of writes sets the gate.
func TestCalibrationSetsTheWriteBudget(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes, o.Calibrate = 512<<20, true
	for range 2 { // measured, and read again
		s := openTest(t, o)
		st := s.Stats()
		if st.Calibration == nil || st.Calibration.WriteInFlightBytes == 0 || st.WriteBudgetBytes != st.Calibration.WriteInFlightBytes {
			t.Errorf("calibration %+v, budget %d", st.Calibration, st.WriteBudgetBytes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Defect 20: an op that is used again when it is reported must not lose those that wait
// for the same record.
func TestOpMayBeUsedAgainWhenItIsReported(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 2)
	// The committer is held up so that the followers gather.
	release, blocked := make(chan struct{}), make(chan struct{})
	blocker := &store.WriteOp{Record: store.Record{ID: chainOf(ns, 2, 1)[0].ID}, Payload: records[0].payload()}
	if _, err := s.Write([]*store.WriteOp{blocker}, func(*store.WriteOp) { close(blocked); <-release }); err != nil {
		t.Fatal(err)
	}
	<-blocked
	const followers = 5
	told := make(chan *store.WriteOp, 3*followers)
	first := &store.WriteOp{Record: store.Record{ID: records[0].ID}, Payload: records[0].payload()}
	again := make(chan struct{})
	reuse := func(op *store.WriteOp) {
		// Used again from within done, with followers of its own.
		op.ID, op.Payload = records[1].ID, records[1].payload()
		if _, err := s.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(again) }); err != nil {
			t.Error(err)
		}
		extra := make([]*store.WriteOp, followers)
		for i := range extra {
			extra[i] = &store.WriteOp{Record: store.Record{ID: records[1].ID}, Payload: records[1].payload()}
		}
		if _, err := s.Write(extra, func(op *store.WriteOp) { told <- op }); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Write([]*store.WriteOp{first}, reuse); err != nil {
		t.Fatal(err)
	}
	waiting := make(map[*store.WriteOp]int)
	for range followers {
		op := &store.WriteOp{Record: store.Record{ID: records[0].ID}, Payload: records[0].payload()}
		waiting[op] = 0
		if _, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { told <- op }); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	<-again
	for range 2 * followers {
		if op := <-told; op.ID == records[0].ID {
			waiting[op]++
		}
	}
	for op, n := range waiting {
		if n != 1 {
			t.Errorf("op %p was reported %d times", op, n)
		}
	}
}
