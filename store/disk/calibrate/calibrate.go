// Package calibrate measures how much a disk should be asked for, and given, at one time.
package calibrate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/offheap"
)

// Result is what a short measurement found out about a disk.
type Result struct {
	// ReadInFlightBytes is the least that, asked of the disk at one time, reads nearly as
	// fast as anything does; BytesPerS is how fast that is.
	ReadInFlightBytes int64   `json:"read_in_flight_bytes"`
	BytesPerS         float64 `json:"bytes_per_s"`
	// WriteInFlightBytes and WriteBytesPerS are the same for writes.
	WriteInFlightBytes int64   `json:"write_in_flight_bytes"`
	WriteBytesPerS     float64 `json:"write_bytes_per_s"`
	// Measured are the depths tried, in bytes, and the rates found.
	Measured       []Point   `json:"measured"`
	MeasuredWrites []Point   `json:"measured_writes"`
	At             time.Time `json:"at"`
}

// Point is one depth that was tried.
type Point struct {
	InFlightBytes int64   `json:"in_flight_bytes"`
	BytesPerS     float64 `json:"bytes_per_s"`
}

const (
	// Bytes is the size of the file that is measured with.
	Bytes = 64 << 20
	// timeOfDepth is spent on each depth.
	timeOfDepth = 60 * time.Millisecond
	// nearlyBest is what the depth chosen reaches of the best one: a shallower queue lets
	// an urgent read through sooner.
	nearlyBest = 0.95
	// maxDepth requests are tried at most.
	maxDepth = 64
)

// Measure writes and reads an empty file with requests of chunk bytes, more and more at one time.
func Measure(f fsio.File, chunk int) (r Result, err error) {
	memory, err := offheap.Map(maxDepth * chunk)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, offheap.Unmap(memory)) }()
	_, _ = rand.NewChaCha8([32]byte{}).Read(memory)
	if err := f.Allocate(Bytes); err != nil {
		return r, err
	}
	for at := int64(0); at+int64(chunk) <= Bytes; at += int64(chunk) {
		if err := f.WriteVec(memory[:chunk], nil, at); err != nil {
			return r, err
		}
	}
	if err := f.Datasync(); err != nil {
		return r, err
	}
	write := func(buf []byte, at int64) error { return f.WriteVec(buf, nil, at) }
	read := func(buf []byte, at int64) error { return f.ReadVec(buf, nil, at) }
	if r.MeasuredWrites, err = atDepths(write, memory, chunk); err != nil {
		return r, err
	}
	if r.Measured, err = atDepths(read, memory, chunk); err != nil {
		return r, err
	}
	r.WriteInFlightBytes, r.WriteBytesPerS = shallowest(r.MeasuredWrites)
	r.ReadInFlightBytes, r.BytesPerS = shallowest(r.Measured)
	return r, nil
}

// atDepths measures how fast f is at growing depths.
func atDepths(f func(buf []byte, at int64) error, memory []byte, chunk int) (out []Point, err error) {
	for depth := 1; depth <= maxDepth; depth *= 2 {
		rate, err := atDepth(f, memory, chunk, depth)
		if err != nil {
			return out, err
		}
		out = append(out, Point{int64(depth * chunk), rate})
	}
	return out, nil
}

// shallowest is the first depth that is nearly as fast as the fastest.
func shallowest(points []Point) (inFlight int64, bytesPerS float64) {
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
			for errs[w] == nil && time.Since(began) < timeOfDepth {
				at := g.Int64N(Bytes/int64(chunk)) * int64(chunk)
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
