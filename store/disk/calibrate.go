package disk

import (
	"path/filepath"

	"github.com/kvconn/kvconn/store/disk/calibrate"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// Calibration is what a short measurement at the first start found out about the disk.
type Calibration = calibrate.Result

// calibrate sets the depths of reads and writes from the stored calibration, or measures
// them if the options ask for that and there is room.
func (s *Store) calibrate() {
	o := calibrate.Options{
		FS: s.opts.fs, Path: filepath.Join(s.opts.Dir, recovery.CalibrationFile),
		Scratch: filepath.Join(s.opts.Dir, recovery.SegmentDir, recovery.CalibrationScratch), ChunkBytes: s.opts.ChunkBytes, Direct: s.state.Direct,
		Measure: s.opts.Calibrate && !s.opts.checkOnly && calibrate.Fits(s.state.Limits.MaxBytes), Space: s.space, Clock: s.opts.clock, Logger: s.opts.Logger,
	}
	c, ok := o.Result()
	if !ok {
		return
	}
	s.calibration = c
	s.reads.Seed(c.BytesPerS)
	if s.calibrated {
		s.opts.ReadInFlightBytes = c.ReadInFlightBytes
		s.reads.SetBudget(c.ReadInFlightBytes)
	}
	if s.opts.Writers == 0 {
		s.gate.SetBudget(c.WriteInFlightBytes)
	}
}
