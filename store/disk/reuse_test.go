package disk

import (
	"testing"

	"github.com/kvconn/kvconn/store"
)

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
