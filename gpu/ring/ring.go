// Package ring is the shared memory through which the daemon hands batches of copies to a copier process and learns
// of their ends. The daemon fills a slot and rings a bell; the copier writes the slot's outcome and rings another.
// No byte of KV passes through it, and neither side waits for the other but at the bells.
package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// Slots is how many batches are under way at most.
	Slots = 32
	// MaxRuns is how many runs a batch has at most.
	MaxRuns = 4096
	// pageBytes of the header, on whose cache lines the queue lies.
	pageBytes = 4096
)

// Run is one contiguous copy between engine memory and the arena.
type Run struct {
	// Region and Offset say where it begins in the engine's memory.
	Region uint32
	_      uint32
	Offset uint64
	// Arena is where it begins in the host tier's arena.
	Arena uint64
	Bytes uint64
}

// Outcome of a batch.
type Outcome struct {
	// Code is 0, or the driver's CUresult.
	Code int32
	// Refused is set if the copier found the batch wrong and copied nothing.
	Refused bool
	// Kernel is set if a kernel collected or spread the runs.
	Kernel bool
	// Nanoseconds that the copies took on the device; 0 if that is unknown.
	Nanoseconds uint64
}

// Batch is one slot. The daemon owns it until it submits it and from its end on, and the copier between.
type Batch struct {
	memory    uint32
	direction uint32
	count     uint32
	code      int32
	refused   uint32
	done      atomic.Uint32
	nanos     uint64
	wanted    uint32
	used      uint32
	_         [24]byte
	runs      [MaxRuns]Run
}

// queue is at the beginning of the shared memory.
type queue struct {
	tail  atomic.Uint64
	_     [56]byte
	slots [Slots]atomic.Uint32
	_     [64]byte
	// pinned and refused are what the copier says of the arena.
	pinned  atomic.Int64
	refused atomic.Int32
}

const (
	slotBytes   = int(unsafe.Sizeof(Batch{}))
	memoryBytes = pageBytes + Slots*slotBytes
)

// Ring is one mapping of the shared memory, with its two bells.
type Ring struct {
	mem   []byte
	queue *queue
	// toCopier and toDaemon are eventfds.
	toCopier, toDaemon *os.File
	file               *os.File
	// head is how many batches the copier has taken.
	head uint64
}

// Files are what the copier needs: the memory, and the two bells.
func (r *Ring) Files() [3]*os.File { return [3]*os.File{r.file, r.toCopier, r.toDaemon} }

// New makes the shared memory and the bells.
func New() (*Ring, error) {
	var files [3]*os.File
	fd, err := unix.MemfdCreate("kvconn-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		files[0] = os.NewFile(uintptr(fd), "kvconn-ring")
		err = files[0].Truncate(int64(memoryBytes))
	}
	if err == nil {
		_, err = unix.FcntlInt(files[0].Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	for i := 1; i < len(files) && err == nil; i++ {
		if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
			files[i] = os.NewFile(uintptr(fd), "kvconn-bell")
		}
	}
	if err == nil {
		return Open(files)
	}
	for _, f := range files {
		_ = f.Close()
	}
	return nil, fmt.Errorf("make a ring: %w", err)
}

// Open maps a ring that another process made, and takes its files over.
func Open(files [3]*os.File) (*Ring, error) {
	r := &Ring{file: files[0], toCopier: files[1], toDaemon: files[2]}
	info, err := r.file.Stat()
	if err == nil && info.Size() != int64(memoryBytes) {
		err = fmt.Errorf("it has %d bytes, not %d", info.Size(), memoryBytes)
	}
	if err == nil {
		r.mem, err = unix.Mmap(int(r.file.Fd()), 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a ring: %w", err), r.Close())
	}
	r.queue = (*queue)(unsafe.Pointer(&r.mem[0]))
	return r, nil
}

// Close unmaps the ring. Nobody may wait at a bell of this side any more.
func (r *Ring) Close() error {
	var err error
	if r.mem != nil {
		err = unix.Munmap(r.mem)
		r.mem, r.queue = nil, nil
	}
	return errors.Join(err, r.file.Close(), r.toCopier.Close(), r.toDaemon.Close())
}

// Batch is the slot of a number below [Slots].
func (r *Ring) Batch(slot int) *Batch {
	return (*Batch)(unsafe.Pointer(&r.mem[pageBytes+slot*slotBytes]))
}

// SetPinned tells the daemon how many bytes of the arena are locked for the device, and with what code of the driver it
// refused to lock more, 0 if it did not.
func (r *Ring) SetPinned(bytes int64, refused int32) {
	r.queue.pinned.Store(bytes)
	r.queue.refused.Store(refused)
}

// Pinned is what the copier said last by SetPinned. It is for people to read: nothing may depend on it.
func (r *Ring) Pinned() (bytes int64, refused int32) {
	return r.queue.pinned.Load(), r.queue.refused.Load()
}

// Submit hands a filled slot to the copier. Calls must not run side by side.
func (r *Ring) Submit(slot int) error {
	b := r.Batch(slot)
	b.done.Store(0)
	tail := r.queue.tail.Load()
	r.queue.slots[tail%Slots].Store(uint32(slot))
	r.queue.tail.Store(tail + 1)
	return ringBell(r.toCopier)
}

// Take is the next batch that was submitted, if there is one. Only the copier calls it, from one goroutine.
func (r *Ring) Take() (slot int, ok bool) {
	if r.head == r.queue.tail.Load() {
		return 0, false
	}
	slot = int(r.queue.slots[r.head%Slots].Load())
	r.head++
	return slot, slot < Slots
}

// Finish writes a batch's outcome, and tells the daemon.
func (r *Ring) Finish(slot int, o Outcome) error {
	b := r.Batch(slot)
	b.code, b.nanos, b.refused, b.used = o.Code, o.Nanoseconds, word(o.Refused), word(o.Kernel)
	b.done.Store(1)
	return ringBell(r.toDaemon)
}

func word(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}

// AwaitBatches waits until batches were submitted since its last call. It blocks its thread, which wakes up sooner
// than a goroutine that waits in Go's poller.
func (r *Ring) AwaitBatches() error { return await(r.toCopier) }

// AwaitEnds waits until batches ended since its last call, or Wake was called.
func (r *Ring) AwaitEnds() error { return await(r.toDaemon) }

// Wake ends a wait of AwaitEnds.
func (r *Ring) Wake() error { return ringBell(r.toDaemon) }

func ringBell(f *os.File) error {
	one := [8]byte{1}
	if _, err := unix.Write(int(f.Fd()), one[:]); err != nil {
		return fmt.Errorf("ring a copier's bell: %w", err)
	}
	return nil
}

func await(f *os.File) error {
	var n [8]byte
	for {
		_, err := unix.Read(int(f.Fd()), n[:])
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait at a copier's bell: %w", err)
		}
	}
}

// Reset begins a batch of one rank's memory. Direction is that of package gpu.
func (b *Batch) Reset(memory uint32, direction uint8) {
	b.memory, b.direction, b.count, b.wanted = memory, uint32(direction), 0, 0
}

// WantKernel asks the copier to have a kernel collect or spread the runs, if it can.
func (b *Batch) WantKernel() { b.wanted = 1 }

// WantsKernel reports whether that was asked for.
func (b *Batch) WantsKernel() bool { return b.wanted == 1 }

// Append adds a run, and reports false if the batch is full.
func (b *Batch) Append(r Run) bool {
	if b.count >= MaxRuns {
		return false
	}
	b.runs[b.count] = r
	b.count++
	return true
}

// Memory is the number of the memory that was opened, and Direction that of package gpu.
func (b *Batch) Memory() uint32 { return b.memory }

// Direction of the copies.
func (b *Batch) Direction() uint8 { return uint8(b.direction) }

// Runs of the batch.
func (b *Batch) Runs() []Run { return b.runs[:min(b.count, MaxRuns)] }

// Outcome reports whether the batch has ended, and how.
func (b *Batch) Outcome() (Outcome, bool) {
	if b.done.Load() == 0 {
		return Outcome{}, false
	}
	return Outcome{Code: b.code, Refused: b.refused != 0, Kernel: b.used != 0, Nanoseconds: b.nanos}, true
}
