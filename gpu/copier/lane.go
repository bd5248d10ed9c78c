package copier

import (
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/ring"
)

// inFlight is how many batches of one direction are queued on the device at a time. Two keep it busy while the third is
// prepared; more would only delay what a deadline ends.
const inFlight = 4

// Priorities of streams. A driver takes what lies outside of its range for the end of it. They order kernels alone, so copies
// are paced by the daemon.
const (
	loadPriority = -1
	savePriority = 0
)

// lane submits the batches of one direction, in a stream of its own, and reports their ends.
type lane struct {
	c      *copier
	stream *libcuda.Stream
	queue  chan int
	// submitted are on the device; idle are events that are free.
	submitted chan submission
	idle      chan eventPair
	copies    libcuda.Copies
	// kernels is nil where the driver refused them.
	kernels *kernels
	// pinned is set while all copies of the batch in hand are of registered memory.
	pinned bool
}

// submission is a batch on the device.
type submission struct {
	slot   int
	held   *held
	events eventPair
	// byKernel is set if a kernel moves the runs.
	byKernel bool
	err      error
}

// eventPair marks where a batch begins and ends on the device.
type eventPair struct {
	begin, end *libcuda.Event
	// list is locked memory for descriptors, nil if there are no kernels.
	list []byte
}

// newLane makes the lane of one direction. Without kernels it makes batches alone.
func newLane(c *copier, d gpu.Direction, k *kernels, lists [][]byte) (*lane, error) {
	ctx, priority := c.ctx, savePriority
	if d == gpu.Load {
		priority = loadPriority
	}
	stream, err := ctx.NewStream(priority)
	if err != nil {
		return nil, err
	}
	l := &lane{
		c: c, stream: stream, queue: make(chan int, ring.Slots), submitted: make(chan submission, inFlight),
		idle: make(chan eventPair, inFlight), kernels: k,
	}
	for i := range inFlight {
		var p eventPair
		if k != nil {
			p.list = lists[i]
		}
		if p.begin, err = ctx.NewEvent(true); err != nil {
			return nil, err
		}
		if p.end, err = ctx.NewEvent(true); err != nil {
			return nil, err
		}
		l.idle <- p
	}
	go l.submit()
	go l.reap()
	return l, nil
}

// submit takes batches in order and queues their copies.
func (l *lane) submit() {
	for slot := range l.queue {
		b := l.c.ring.Batch(slot)
		s := submission{slot: slot, held: l.c.use(b.Memory())}
		if s.held == nil || !l.translate(b, s.held.mapping) {
			l.finish(s, ring.Outcome{Refused: true})
			continue
		}
		s.events = <-l.idle
		s.byKernel, s.err = l.enqueue(s.events, gpu.Direction(b.Direction()), b.WantsKernel())
		l.submitted <- s
	}
}

// enqueue puts the copies between two events. Even after an error some copies may be on the device: the end is awaited
// all the same.
func (l *lane) enqueue(e eventPair, d gpu.Direction, wantKernel bool) (byKernel bool, err error) {
	err = e.begin.Record(l.stream)
	if err == nil {
		byKernel, err = l.copy(e, d, wantKernel)
	}
	if endErr := e.end.Record(l.stream); err == nil {
		err = endErr
	}
	return byKernel, err
}

// copy submits the copies by a kernel if that is wanted and can be, and straight otherwise.
func (l *lane) copy(e eventPair, d gpu.Direction, wantKernel bool) (byKernel bool, err error) {
	if wantKernel && l.kernels != nil && l.pinned && l.kernels.plan.make(&l.copies, d, l.c.arena.addr(0), e.list) {
		launched, err := l.copyByKernel(e.list, d)
		if launched || libcuda.IsSticky(err) {
			return launched, err
		}
		l.kernels = nil // what the driver refuses once it is not asked for again
	}
	return false, l.submitCopies(&l.copies, d)
}

// submitCopies queues copies in one call if the driver can, and all memory is registered.
func (l *lane) submitCopies(c *libcuda.Copies, d gpu.Direction) error {
	if l.pinned && l.c.ctx.HasBatch() {
		// A save reads what the engine's stream wrote before it told the daemon its call number, and a load's
		// source is complete, so both could be read at any time. What a kernel collects has to come first.
		return l.stream.CopyBatch(c, libcuda.OrderStream)
	}
	for i := range c.Dst {
		var err error
		if d == gpu.Load {
			err = l.stream.CopyAddrToDevice(c.Dst[i], uint64(c.Src[i]), c.SizeBytes[i])
		} else {
			err = l.stream.CopyDeviceToAddr(uint64(c.Dst[i]), c.Src[i], c.SizeBytes[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// translate turns runs into copies between addresses. It reports false if a run lies outside the arena or the memory:
// the device would answer such a copy with an error that ends its context.
func (l *lane) translate(b *ring.Batch, m *mapping) bool {
	l.copies.Dst, l.copies.Src, l.copies.SizeBytes = l.copies.Dst[:0], l.copies.Src[:0], l.copies.SizeBytes[:0]
	l.pinned = true
	isLoad := gpu.Direction(b.Direction()) == gpu.Load
	runs := b.Runs()
	for i := range runs {
		r := runs[i] // read once: the memory is shared
		arenaBytes := uint64(len(l.c.arena.mem))
		if int(r.Region) >= len(m.regions) || r.Bytes == 0 || r.Arena > arenaBytes || r.Bytes > arenaBytes-r.Arena {
			return false
		}
		region := &m.regions[r.Region]
		if r.Offset > region.bytes || r.Bytes > region.bytes-r.Offset {
			return false
		}
		l.pinned = l.pinned && l.c.arena.isPinned(r.Arena+r.Bytes)
		for r.Bytes > 0 {
			p := region.find(r.Offset)
			// A copy ends at the part's end and at the registered chunk's.
			n := min(r.Bytes, p.to-r.Offset, chunkBytes-r.Arena%chunkBytes)
			device, host := p.at+libcuda.DevicePtr(r.Offset-p.from), l.c.arena.addr(r.Arena)
			if isLoad {
				l.copies.Dst, l.copies.Src = append(l.copies.Dst, device), append(l.copies.Src, host)
			} else {
				l.copies.Dst, l.copies.Src = append(l.copies.Dst, host), append(l.copies.Src, device)
			}
			l.copies.SizeBytes = append(l.copies.SizeBytes, n)
			r.Offset, r.Arena, r.Bytes = r.Offset+n, r.Arena+n, r.Bytes-n
		}
	}
	return len(l.copies.Dst) > 0
}

// reap waits for the ends on the device, in order. A batch has an outcome only if none of its copies can run any more;
// where that cannot be known this process ends, which makes it certain.
func (l *lane) reap() {
	for s := range l.submitted {
		var err error
		if s.err == nil {
			err = s.events.end.Synchronize()
		} else {
			// Events may not have been recorded, so the whole stream is awaited.
			err = l.stream.Synchronize()
		}
		if err != nil || libcuda.IsSticky(s.err) {
			l.c.exit(ExitSticky)
			return
		}
		o := ring.Outcome{Code: int32(libcuda.CodeOf(s.err)), Kernel: s.byKernel}
		if s.err != nil && o.Code == 0 {
			o.Code = int32(libcuda.UnknownError)
		}
		if s.err == nil {
			if ms, err := s.events.end.Since(s.events.begin); err == nil {
				o.Nanoseconds = uint64(float64(ms) * 1e6)
			}
		}
		l.idle <- s.events
		l.finish(s, o)
	}
}

func (l *lane) finish(s submission, o ring.Outcome) {
	if s.held != nil {
		s.held.inUse.Done()
	}
	if err := l.c.ring.Finish(s.slot, o); err != nil {
		l.c.exit(ExitBell)
	}
}
