package copier

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/kernel"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/ring"
)

const (
	// stagingBytes is device memory that one lane collects runs in: a batch as the daemon makes them, and room to align.
	stagingBytes = 8<<20 + 256<<10
	// listBytes is the size of the descriptors of one batch.
	listBytes = ring.MaxRuns * kernel.DescriptorBytes
	// kernelBlocks bounds a launch: what the bus can carry keeps a small part of a device busy, and the rest is the engine's.
	kernelBlocks = 64
)

// kernels is what one lane copies many small runs with: a kernel between them and staging memory, large copies between that
// and the arena.
type kernels struct {
	entry *libcuda.Kernel
	// staging and list are on the device. The lane's stream keeps batches that use them apart.
	staging, list libcuda.DevicePtr
	plan          plan
}

// takeKernels is what both lanes need, by direction.
func takeKernels(ctx *libcuda.Context) (k [2]*kernels, lists [2][][]byte, err error) {
	m, err := ctx.LoadModule(kernel.PTX())
	if err != nil {
		return k, lists, err
	}
	for d := range k {
		if k[d], err = newKernels(ctx, m, gpu.Direction(d)); err != nil {
			return k, lists, err
		}
		for range inFlight {
			list, err := newList(ctx)
			if err != nil {
				return k, lists, err
			}
			lists[d] = append(lists[d], list)
		}
	}
	return k, lists, nil
}

// newKernels finds the code for a direction, and takes memory of the device. Nothing is given back after an error but by the
// end of the process: one that has no memory left for this serves without.
func newKernels(ctx *libcuda.Context, m *libcuda.Module, d gpu.Direction) (*kernels, error) {
	name := kernel.ScatterName
	if d == gpu.Save {
		name = kernel.GatherName
	}
	k := new(kernels)
	var err error
	if k.entry, err = m.Kernel(name); err != nil {
		return nil, err
	}
	if k.staging, err = ctx.Alloc(stagingBytes); err != nil {
		return nil, err
	}
	if k.list, err = ctx.Alloc(listBytes); err != nil {
		return nil, err
	}
	k.plan.staging = k.staging
	return k, nil
}

// newList is host memory for the descriptors of one batch.
func newList(ctx *libcuda.Context) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, listBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("memory for descriptors: %w", err)
	}
	return mem, ctx.HostRegister(mem)
}

// plan is how runs lie in staging: as in the arena, so that runs that are neighbours there are one large copy.
type plan struct {
	staging libcuda.DevicePtr
	// order of the copies by their address in the arena.
	order []int32
	// large copies, as Dst and Src are for the direction.
	large libcuda.Copies
	runs  int
	bytes uint64
}

// make plans copies, and writes the runs' descriptors to list. arena is where the arena begins. It reports false for copies that
// fit neither staging nor list.
func (p *plan) make(c *libcuda.Copies, d gpu.Direction, arena libcuda.DevicePtr, list []byte) bool {
	host, device := c.Src, c.Dst
	if d == gpu.Save {
		host, device = device, host
	}
	if len(host)*kernel.DescriptorBytes > len(list) {
		return false
	}
	p.sort(host)
	l := &p.large
	l.Dst, l.Src, l.SizeBytes = l.Dst[:0], l.Src[:0], l.SizeBytes[:0]
	p.runs, p.bytes = len(host), 0
	var end libcuda.DevicePtr // of the run before, in the arena
	var offset uint64         // of the next byte in staging
	for i, n := range p.order {
		at, size := host[n], c.SizeBytes[n]
		isNeighbour := i > 0 && at == end && uint64(at-arena)%chunkBytes != 0
		if !isNeighbour { // as well aligned as in the arena
			offset = (offset+kernel.VectorBytes-1)&^(kernel.VectorBytes-1) + uint64(at)%kernel.VectorBytes
		}
		if size > stagingBytes || offset > stagingBytes-size {
			return false
		}
		kernel.Run{Device: uint64(device[n]), OffsetBytes: uint32(offset), LengthBytes: uint32(size)}.Put(list[i*kernel.DescriptorBytes:])
		if isNeighbour {
			l.SizeBytes[len(l.SizeBytes)-1] += size
		} else {
			from, to := at, p.staging+libcuda.DevicePtr(offset)
			if d == gpu.Save {
				from, to = to, from
			}
			l.Dst, l.Src, l.SizeBytes = append(l.Dst, to), append(l.Src, from), append(l.SizeBytes, size)
		}
		offset, end, p.bytes = offset+size, at+libcuda.DevicePtr(size), p.bytes+size
	}
	return true
}

// sort orders copies by their address in the arena.
func (p *plan) sort(host []libcuda.DevicePtr) {
	p.order = p.order[:0]
	for i := range host {
		p.order = append(p.order, int32(i))
	}
	slices.SortFunc(p.order, func(a, b int32) int { return cmp.Compare(host[a], host[b]) })
}

// copyByKernel queues the copies of the batch in hand, which make has planned. It reports whether the driver took the kernel;
// if not, direct copies are to follow, which do no harm after what is queued by then.
func (l *lane) copyByKernel(list []byte, d gpu.Direction) (launched bool, err error) {
	k := l.kernels
	err = l.stream.CopyToDevice(k.list, list[:k.plan.runs*kernel.DescriptorBytes])
	if err == nil && d == gpu.Load {
		err = l.submitCopies(&k.plan.large, d)
	}
	if err != nil {
		return false, err
	}
	lanes := kernel.LanesLog2(int(k.plan.bytes) / k.plan.runs)
	blocks := kernel.Blocks(k.plan.runs, lanes, kernelBlocks)
	if err := k.entry.Launch(l.stream, uint32(blocks), kernel.BlockThreads,
		uint64(k.list), uint64(k.staging), uint64(k.plan.runs), uint64(lanes)); err != nil {
		return false, err
	}
	if d == gpu.Save {
		err = l.submitCopies(&k.plan.large, d)
	}
	return true, err
}
