package copier

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/kernel"
	"github.com/kvconn/kvconn/gpu/libcuda"
)

// Addresses of the model's three memories.
const (
	arenaAt   = 0x7000_0000_0000
	deviceAt  = 0x3_0000_0000
	stagingAt = 0x5_0000_0000
)

// randomCopies are n copies of up to maxBytes: some neighbours in the arena, none overlapping, in any order.
func randomCopies(rng *rand.Rand, n, maxBytes int, arena uint64, d gpu.Direction) *libcuda.Copies {
	c := new(libcuda.Copies)
	host, device := arena, uint64(0)
	for range n {
		size := uint64(1 + rng.IntN(maxBytes))
		if rng.IntN(4) == 0 {
			host += uint64(rng.IntN(100))
		}
		device += uint64(rng.IntN(40))
		from, to := libcuda.DevicePtr(arenaAt+host), libcuda.DevicePtr(deviceAt+device)
		if d == gpu.Save {
			from, to = to, from
		}
		c.Dst, c.Src, c.SizeBytes = append(c.Dst, to), append(c.Src, from), append(c.SizeBytes, size)
		host, device = host+size, device+size
	}
	rng.Shuffle(n, func(i, j int) {
		c.Dst[i], c.Dst[j] = c.Dst[j], c.Dst[i]
		c.Src[i], c.Src[j] = c.Src[j], c.Src[i]
		c.SizeBytes[i], c.SizeBytes[j] = c.SizeBytes[j], c.SizeBytes[i]
	})
	return c
}

// memories are the model's, each with its address.
type memories map[uint64][]byte

func (m memories) at(p libcuda.DevicePtr, n uint64) []byte {
	for base, b := range m {
		if off := uint64(p) - base; off < uint64(len(b)) {
			return b[off : off+n]
		}
	}
	panic("an address of nothing")
}

func (m memories) copyAll(c *libcuda.Copies) {
	for i, n := range c.SizeBytes {
		copy(m.at(c.Dst[i], n), m.at(c.Src[i], n))
	}
}

// What is planned moves the same bytes as the copies themselves, and no others.
func TestPlansMoveTheSameBytes(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		d := gpu.Direction(seed % 2)
		c := randomCopies(rng, 1+rng.IntN(200), 1+rng.IntN(3000), 0, d)
		memory := func() memories {
			m := memories{arenaAt: make([]byte, 1<<20), deviceAt: make([]byte, 1<<20), stagingAt: make([]byte, stagingBytes)}
			fill := rand.NewChaCha8([32]byte{byte(seed)})
			_, _ = fill.Read(m[arenaAt])
			_, _ = fill.Read(m[deviceAt])
			return m
		}
		want := memory()
		want.copyAll(c)

		got, list := memory(), make([]byte, listBytes)
		p := plan{staging: stagingAt}
		if !p.make(c, d, arenaAt, list) {
			t.Fatalf("seed %d: no plan", seed)
		}
		runs := make([]kernel.Run, p.runs)
		for i := range runs {
			b := list[i*kernel.DescriptorBytes:]
			runs[i] = kernel.Run{Device: binary.LittleEndian.Uint64(b), OffsetBytes: binary.LittleEndian.Uint32(b[8:]), LengthBytes: binary.LittleEndian.Uint32(b[12:])}
		}
		device := kernel.Memory{Address: deviceAt, Bytes: got[deviceAt]}
		var err error
		if d == gpu.Load {
			got.copyAll(&p.large)
			err = kernel.Scatter(device, got[stagingAt], runs)
		} else {
			err = kernel.Gather(got[stagingAt], device, runs)
			got.copyAll(&p.large)
		}
		if err != nil || !bytes.Equal(got[arenaAt], want[arenaAt]) || !bytes.Equal(got[deviceAt], want[deviceAt]) {
			t.Fatalf("seed %d: other bytes; %v", seed, err)
		}
	}
}

// Copies must not cross two registrations of the arena.
func TestLargeCopiesEndAtRegistrations(t *testing.T) {
	c := &libcuda.Copies{
		Src: []libcuda.DevicePtr{arenaAt + chunkBytes - 100, arenaAt + chunkBytes}, Dst: []libcuda.DevicePtr{deviceAt, deviceAt + 100}, SizeBytes: []uint64{100, 50},
	}
	p := plan{staging: stagingAt}
	if !p.make(c, gpu.Load, arenaAt, make([]byte, listBytes)) || len(p.large.Dst) != 2 || p.large.SizeBytes[0] != 100 {
		t.Errorf("%+v", p.large)
	}
}

func TestWhatDoesNotFitIsNotPlanned(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := plan{staging: stagingAt}
	one := func(n uint64) *libcuda.Copies {
		return &libcuda.Copies{Src: []libcuda.DevicePtr{arenaAt}, Dst: []libcuda.DevicePtr{deviceAt}, SizeBytes: []uint64{n}}
	}
	list := make([]byte, listBytes)
	if p.make(randomCopies(rng, 101, 10, 0, gpu.Load), gpu.Load, arenaAt, list[:100*kernel.DescriptorBytes]) {
		t.Error("more runs than the list has room for")
	}
	if p.make(one(stagingBytes+1), gpu.Load, arenaAt, list) || p.make(one(1<<63), gpu.Load, arenaAt, list) {
		t.Error("more bytes than staging has")
	}
	if !p.make(one(stagingBytes), gpu.Load, arenaAt, list) {
		t.Error("what just fits")
	}
	// Gaps that keep runs aligned fit beside a full batch of the longest list.
	full := randomCopies(rng, 4096, 2048, 0, gpu.Save)
	for i := range full.SizeBytes {
		full.SizeBytes[i] = 2048
		full.Dst[i] = libcuda.DevicePtr(arenaAt + i*3000)
	}
	if !p.make(full, gpu.Save, arenaAt, list) {
		t.Error("a full batch")
	}
}

func TestPlanningAllocatesNothing(t *testing.T) {
	c := randomCopies(rand.New(rand.NewPCG(1, 1)), 4000, 1000, 0, gpu.Load)
	p, list := plan{staging: stagingAt}, make([]byte, listBytes)
	if n := testing.AllocsPerRun(10, func() {
		if !p.make(c, gpu.Load, arenaAt, list) {
			t.Fatal("no plan")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
