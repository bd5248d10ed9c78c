package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/internal/disk"
)

// Calibration is what a short measurement at the first start found out about the disk.
type Calibration struct {
	// ReadInFlightBytes is the least that, asked of the disk at one time, reads nearly as
	// fast as anything does; BytesPerS is how fast that is.
	ReadInFlightBytes int64   `json:"read_in_flight_bytes"`
	BytesPerS         float64 `json:"bytes_per_s"`
	// Measured are the depths tried, in bytes, and the rates found.
	Measured []CalibrationPoint `json:"measured"`
	At       time.Time          `json:"at"`
}

// CalibrationPoint is one depth that was tried.
type CalibrationPoint struct {
	InFlightBytes int64   `json:"in_flight_bytes"`
	BytesPerS     float64 `json:"bytes_per_s"`
}

const (
	calibrationFile  = "CALIBRATION"
	calibrationBytes = 64 << 20
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

// calibrate sets the read depth from the stored calibration, or measures it if the options
// ask for that. A measurement that fails costs nothing but itself.
func (s *Store) calibrate() {
	path := filepath.Join(s.opts.Dir, calibrationFile)
	var c Calibration
	b, err := s.opts.fs.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.ReadInFlightBytes < int64(s.opts.ChunkBytes) {
		if !s.opts.Calibrate || s.space.maxBytes < calibrationPart*calibrationBytes {
			return
		}
		if c, err = s.measure(); err != nil {
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
	s.calibration = c
	s.reads.speed.seed(c.BytesPerS)
	if s.calibrated {
		s.opts.ReadInFlightBytes = c.ReadInFlightBytes
		s.reads.budget = c.ReadInFlightBytes
	}
}

// measure reads a file of random content at growing depths.
func (s *Store) measure() (c Calibration, err error) {
	path := filepath.Join(s.opts.Dir, segmentDir, "calibration")
	_ = s.opts.fs.Remove(path)
	f, err := s.opts.fs.OpenFile(path, true, s.direct)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.Close(), s.opts.fs.Remove(path)) }()
	chunk := s.opts.ChunkBytes
	memory, err := disk.Map(maxCalibrationDepth * chunk)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, disk.Unmap(memory)) }()
	_, _ = rand.NewChaCha8([32]byte{}).Read(memory[:chunk])
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
	best := 0.0
	for depth := 1; depth <= maxCalibrationDepth; depth *= 2 {
		rate, err := readAtDepth(f, memory, chunk, depth)
		if err != nil {
			return c, err
		}
		best = max(best, rate)
		c.Measured = append(c.Measured, CalibrationPoint{int64(depth * chunk), rate})
	}
	for _, p := range c.Measured {
		if p.BytesPerS >= nearlyBest*best {
			c.ReadInFlightBytes, c.BytesPerS = p.InFlightBytes, p.BytesPerS
			break
		}
	}
	c.At = s.opts.clock().UTC()
	return c, nil
}

// readAtDepth returns the bytes a second that depth readers get.
func readAtDepth(f disk.File, memory []byte, chunk, depth int) (float64, error) {
	var read atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, depth)
	began := time.Now()
	for w := range depth {
		buf := memory[w*chunk : (w+1)*chunk]
		wg.Go(func() {
			g := rand.New(rand.NewPCG(uint64(w), uint64(depth)))
			for errs[w] == nil && time.Since(began) < calibrationTime {
				at := g.Int64N(calibrationBytes/int64(chunk)) * int64(chunk)
				errs[w] = f.ReadVec(buf, nil, at)
				read.Add(int64(chunk))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("calibrate: %w", err)
	}
	return float64(read.Load()) / time.Since(began).Seconds(), nil
}
