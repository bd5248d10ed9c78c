package disk

import (
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/kvconn/kvconn/store/disk/calibrate"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// Calibration is what a short measurement at the first start found out about the disk.
type Calibration = calibrate.Result

const (
	// calibrationPart is the part of the cap that the measurement may use for a moment.
	calibrationPart = 4
	// calibrationSlack bounds what the file system adds to the file.
	calibrationSlack = 16 << 10
)

// calibrate sets the depths of reads and writes from the stored calibration, or measures
// them if the options ask for that and there is room. A measurement that fails costs
// nothing but itself.
func (s *Store) calibrate() {
	path := filepath.Join(s.opts.Dir, recovery.CalibrationFile)
	var c Calibration
	b, err := s.opts.fs.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.ReadInFlightBytes < int64(s.opts.ChunkBytes) || c.WriteInFlightBytes < int64(s.opts.ChunkBytes) {
		if !s.opts.Calibrate || s.opts.checkOnly || s.state.Limits.MaxBytes < calibrationPart*calibrate.Bytes {
			return
		}
		if !s.space.Claim(calibrate.Bytes + calibrationSlack) {
			s.opts.Logger.Info("store: no room to measure the disk, defaults are used")
			return
		}
		if c, err = s.measureDisk(); err != nil {
			s.opts.Logger.Warn("store: calibration failed, defaults are used", "err", err,
				"remedy", "look for I/O errors in the kernel's log, and for space in the file system of the store")
			return
		}
		if b, err = json.MarshalIndent(c, "", "  "); err == nil {
			err = s.opts.fs.WriteFileAtomic(path, append(b, '\n'))
		}
		if err != nil {
			s.opts.Logger.Warn("store: calibration is not kept, the next start measures again", "err", err,
				"remedy", "free space in the file system of the store")
		}
	}
	s.useCalibration(c)
}

func (s *Store) useCalibration(c Calibration) {
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

// measureDisk writes and reads a file of random content at growing depths. The room for
// it was claimed; it is given back when the file is gone.
func (s *Store) measureDisk() (c Calibration, err error) {
	const claimed = calibrate.Bytes + calibrationSlack
	path := filepath.Join(s.opts.Dir, recovery.SegmentDir, recovery.CalibrationScratch)
	f, err := s.opts.fs.OpenFile(path, true, s.state.Direct)
	if err != nil {
		s.space.Unclaim(claimed)
		return c, err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		removed := s.opts.fs.Remove(path)
		if removed != nil {
			s.space.Leave(path, claimed)
			err = errors.Join(err, removed)
		} else {
			s.space.Unclaim(claimed)
		}
	}()
	c, err = calibrate.Measure(f, s.opts.ChunkBytes)
	c.At = s.opts.clock().UTC()
	return c, err
}
