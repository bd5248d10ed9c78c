// Package kernel has the two device kernels that copy many small runs of engine memory at
// once: one collects runs into a staging buffer, the other spreads them back. One large copy
// then moves the buffer between device and host. A copy engine needs some 0.5 µs for each
// run, so runs of a few KiB alone would keep it from the bus's speed.
//
// The kernels are PTX text, copy.ptx, which the driver compiles for its device when it loads
// the module. So no toolkit is needed to build kvconn, and devices newer than kvconn work.
//
// # Launching
//
// A module made from [PTX] has two entries, [GatherName] and [ScatterName], with the same
// four parameters, in this order:
//
//	runs       u64  device address of the descriptors, a multiple of [DescriptorAlign]
//	staging    u64  device address of the staging buffer; a multiple of [VectorBytes] is fast
//	count      u32  number of descriptors, 0 to [MaxRuns]
//	lanesLog2  u32  what [LanesLog2] returns for the runs
//
// The block is [BlockThreads] by 1 by 1; the module names it, and the driver refuses another.
// The grid has one dimension and any size: [Blocks] returns one. There is no shared memory.
//
// Descriptors and staging may be device memory or pinned host memory. Each descriptor is read
// by up to [BlockThreads] threads in one load of [DescriptorBytes], which is slow across the
// bus: many descriptors belong in device memory.
//
// Runs of one launch may be in any order, and may have no bytes. Their targets must not
// overlap. The kernels touch no byte outside of the runs and the descriptors.
//
// # Alignment
//
// Where the run's device address and its place in staging are both multiples of
// [VectorBytes], a thread moves that many bytes at a time; where both are multiples of
// [WordBytes], it moves words; else bytes. Lengths are free: the rest of a run that fills no
// vector is moved in words and bytes. So staging offsets should be multiples of [VectorBytes]
// where device addresses are.
//
// # Why this layout
//
// A descriptor has 16 bytes, one vector: address in 64 bits, offset and length in 32. With
// three fields of 64 bits it would be 24, more than a third of a run of 64 bytes, and two
// loads. A staging buffer has far less than 4 GiB. Descriptors have explicit offsets, so that
// no thread needs the sum of the lengths before its own, and one grid serves runs of different
// lengths.
package kernel

import (
	_ "embed" // copy.ptx
	"encoding/binary"
	"math/bits"
)

//go:embed copy.ptx
var ptx string

// PTX returns the module's text: PTX ISA 7.0, for sm_75 and all later devices. The driver wants
// a zero byte after it, which is not part of it.
func PTX() string { return ptx }

// Names of the entries.
const (
	// GatherName copies runs of device memory into staging.
	GatherName = "kvconn_gather"
	// ScatterName copies from staging into runs of device memory.
	ScatterName = "kvconn_scatter"
)

// Sizes and alignments.
const (
	// BlockThreads is the size of a block, which the module demands.
	BlockThreads = 256
	// DescriptorBytes is the size of one descriptor, DescriptorAlign what the address of
	// the first has to be a multiple of.
	DescriptorBytes = 16
	DescriptorAlign = 16
	// VectorBytes and WordBytes are what one thread moves at a time where both addresses
	// are multiples of it.
	VectorBytes = 16
	WordBytes   = 4
	// MaxLanesLog2 is the largest useful lanesLog2: a whole block for each run. The kernels
	// take larger ones for this.
	MaxLanesLog2 = 8
	// MaxRuns is how many descriptors one launch may have, MaxRunBytes how long a run may
	// be. The kernels have no such limit; tests do not go beyond.
	MaxRuns     = 1<<31 - 1
	MaxRunBytes = 1<<31 - 1
)

// Positions of the parameters, in both entries.
const (
	ParamRuns = iota
	ParamStaging
	ParamCount
	ParamLanesLog2
	Params // how many there are
)

// Run is one contiguous copy. It has a descriptor's layout in memory on little-endian machines.
type Run struct {
	// Device is the address of the run in device memory.
	Device uint64
	// OffsetBytes is where the run is in the staging buffer.
	OffsetBytes uint32
	// LengthBytes is the length of the run, at most MaxRunBytes.
	LengthBytes uint32
}

// Put writes the run's descriptor to the first [DescriptorBytes] of b.
func (r Run) Put(b []byte) {
	_ = b[DescriptorBytes-1]
	binary.LittleEndian.PutUint64(b, r.Device)
	binary.LittleEndian.PutUint32(b[8:], r.OffsetBytes)
	binary.LittleEndian.PutUint32(b[12:], r.LengthBytes)
}

// LanesLog2 returns how many threads should share a run, as the parameter lanesLog2, for runs
// of about that length. A thread has up to four vectors under way, so a run of n bytes keeps
// n/64 threads busy. Fewer than 4 would read parts of sectors; more than a warp pays only where
// a launch has few runs, and those are better copied by copy engines.
func LanesLog2(runBytes int) uint32 {
	const least, most, bytesPerLane = 2, 5, 4 * VectorBytes
	lanes := max(runBytes, 0) / bytesPerLane
	return uint32(min(max(bits.Len(uint(lanes))-1, least), most))
}

// Blocks returns a grid that gives each run its threads, but at most maxBlocks and at least
// one: launches of no blocks are refused.
func Blocks(runs int, lanesLog2 uint32, maxBlocks int) int {
	runsPerBlock := BlockThreads >> min(lanesLog2, MaxLanesLog2)
	return max(min((runs+runsPerBlock-1)/runsPerBlock, maxBlocks), 1)
}
