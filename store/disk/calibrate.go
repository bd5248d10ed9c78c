package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// Calibration is what a short measurement at the first start found out about the disk.
type Calibration struct {
	// ReadInFlightBytes is the least that, asked of the disk at one time, reads nearly as
	// fast as anything does; BytesPerS is how fast that is.
	ReadInFlightBytes int64   `json:"read_in_flight_bytes"`
	BytesPerS         float64 `json:"bytes_per_s"`
	// WriteInFlightBytes and WriteBytesPerS are the same for writes.
	WriteInFlightBytes int64   `json:"write_in_flight_bytes"`
	WriteBytesPerS     float64 `json:"write_bytes_per_s"`
	// Measured are the depths tried, in bytes, and the rates found.
	Measured       []CalibrationPoint `json:"measured"`
	MeasuredWrites []CalibrationPoint `json:"measured_writes"`
	At             time.Time          `json:"at"`
}

// CalibrationPoint is one depth that was tried.
type CalibrationPoint struct {
	InFlightBytes int64   `json:"in_flight_bytes"`
	BytesPerS     float64 `json:"bytes_per_s"`
}

const (
	calibrationBytes = 64 << 20
	// calibrationSlack bounds what the file system adds to the file.
	calibrationSlack = 16 << 10
	// calibrationPart is the part of the cap that the measurement may use for a moment.
	calibrationPart = 4
	// calibrationTime is spent on each depth.
	calibrationTime = 60 * time.Millisecond
	// nearlyBest is what the depth chosen reaches of the best one: a shallower queue lets
	// an urgent read through sooner.
	nearlyBest = 0.95
	// maxCalibrationDepth requests are tried at most.
	maxCalibrationDepth = 64
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
		if !s.opts.Calibrate || s.opts.checkOnly || s.state.Limits.MaxBytes < calibrationPart*calibrationBytes {
			return
		}
		if !s.space.Claim(calibrationBytes + calibrationSlack) {
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
	const claimed = calibrationBytes + calibrationSlack
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
	chunk := s.opts.ChunkBytes
	memory, err := fsio.Map(maxCalibrationDepth * chunk)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, fsio.Unmap(memory)) }()
	_, _ = rand.NewChaCha8([32]byte{}).Read(memory)
	if err := f.Allocate(calibrationBytes); err != nil {
		return c, err
	}
	for at := int64(0); at+int64(chunk) <= calibrationBytes; at += int64(chunk) {
		if err := f.WriteVec(memory[:chunk], nil, at); err != nil {
			return c, err
		}
	}
	if err := f.Datasync(); err != nil {
		return c, err
	}
	write := func(buf []byte, at int64) error { return f.WriteVec(buf, nil, at) }
	read := func(buf []byte, at int64) error { return f.ReadVec(buf, nil, at) }
	if c.MeasuredWrites, err = atDepths(write, memory, chunk); err != nil {
		return c, err
	}
	if c.Measured, err = atDepths(read, memory, chunk); err != nil {
		return c, err
	}
	c.WriteInFlightBytes, c.WriteBytesPerS = shallowest(c.MeasuredWrites)
	c.ReadInFlightBytes, c.BytesPerS = shallowest(c.Measured)
	c.At = s.opts.clock().UTC()
	return c, nil
}

// atDepths measures how fast f is at growing depths.
func atDepths(f func(buf []byte, at int64) error, memory []byte, chunk int) (out []CalibrationPoint, err error) {
	for depth := 1; depth <= maxCalibrationDepth; depth *= 2 {
		rate, err := atDepth(f, memory, chunk, depth)
		if err != nil {
			return out, err
		}
		out = append(out, CalibrationPoint{int64(depth * chunk), rate})
	}
	return out, nil
}

// shallowest is the first depth that is nearly as fast as the fastest.
func shallowest(points []CalibrationPoint) (inFlight int64, bytesPerS float64) {
	best := 0.0
	for _, p := range points {
		best = max(best, p.BytesPerS)
	}
	for _, p := range points {
		if p.BytesPerS >= nearlyBest*best {
			return p.InFlightBytes, p.BytesPerS
		}
	}
	return 0, 0
}

// atDepth returns the bytes a second that depth callers of f get.
func atDepth(f func(buf []byte, at int64) error, memory []byte, chunk, depth int) (float64, error) {
	var moved atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, depth)
	began := time.Now()
	for w := range depth {
		buf := memory[w*chunk : (w+1)*chunk]
		wg.Go(func() {
			g := rand.New(rand.NewPCG(uint64(w), uint64(depth)))
			for errs[w] == nil && time.Since(began) < calibrationTime {
				at := g.Int64N(calibrationBytes/int64(chunk)) * int64(chunk)
				errs[w] = f(buf, at)
				moved.Add(int64(chunk))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("calibrate: %w", err)
	}
	return float64(moved.Load()) / time.Since(began).Seconds(), nil
}
