package gpubench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/cuda"
	"github.com/kvconn/kvconn/gpu/libcuda"
)

const (
	// pinBytes is how much host memory one call registers, plainBytes the size of a plain copy. None crosses two registrations.
	pinBytes   = 256 << 20
	plainBytes = 64 << 20
	// stagingBytes holds a run of any shape.
	stagingBytes = 32 << 20
	// granuleBytes is what allocations are rounded up to. A smaller one may share what its handle exports with others.
	granuleBytes = 2 << 20
)

// rig is the engine's side, this process with a context on the GPU, and the daemon's side: an arena and a driver with its
// copier.
type rig struct {
	lib  *libcuda.Library
	uuid libcuda.UUID
	name string
	ctx  *libcuda.Context
	// streams of the engine's own copies, by direction, and a buffer of plainBytes on the device for each.
	streams [2]*libcuda.Stream
	plain   [2]libcuda.DevicePtr
	// arena is registered with both processes. Loads use its first half, saves the second.
	arena   []byte
	staging []byte
	driver  *cuda.Driver
	// undo gives everything back, the last first.
	undo []func() error
}

// newRig takes what all cases share. needBytes of the device's memory will be wanted beside it.
func newRig(o *Options, lib *libcuda.Library, dev libcuda.Device, arenaBytes, needBytes int64) (*rig, error) {
	r := &rig{lib: lib}
	if err := r.take(o, dev, arenaBytes, needBytes); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rig) take(o *Options, dev libcuda.Device, arenaBytes, needBytes int64) (err error) {
	if r.uuid, err = dev.UUID(); err != nil {
		return err
	}
	if r.name, err = dev.Name(); err != nil {
		return err
	}
	if r.ctx, err = dev.Retain(); err != nil {
		return err
	}
	r.undo = append(r.undo, r.ctx.Release)
	free, _, err := r.ctx.MemInfo()
	if err != nil {
		return fmt.Errorf("free memory of the GPU: %w", err)
	}
	if needBytes += 2 * plainBytes; free < needBytes {
		return fmt.Errorf("bench gpu: %d bytes of the GPU's memory are free, and %d are needed: copy fewer bytes a round", free, needBytes)
	}
	for i := range r.streams {
		if r.streams[i], err = r.ctx.NewStream(0); err != nil {
			return err
		}
		r.undo = append(r.undo, r.streams[i].Destroy)
		if r.plain[i], err = r.alloc(plainBytes); err != nil {
			return err
		}
	}
	if r.staging, err = unix.Mmap(-1, 0, stagingBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return fmt.Errorf("bench gpu: memory for comparisons: %w", err)
	}
	r.undo = append(r.undo, func() error { return unix.Munmap(r.staging) })
	if err := r.register(r.staging); err != nil {
		return err
	}
	return r.takeArena(o, arenaBytes)
}

// takeArena makes the arena, registers it here, and hands it to a driver.
func (r *rig) takeArena(o *Options, bytes int64) error {
	fd, err := unix.MemfdCreate("kvconn-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bench gpu: make an arena: %w", err)
	}
	file := os.NewFile(uintptr(fd), "kvconn-bench")
	r.undo = append(r.undo, file.Close)
	if err := file.Truncate(bytes); err != nil {
		return fmt.Errorf("bench gpu: an arena of %d bytes: %w", bytes, err)
	}
	if r.arena, err = unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return fmt.Errorf("bench gpu: map an arena of %d bytes: %w", bytes, err)
	}
	r.undo = append(r.undo, func() error { return unix.Munmap(r.arena) })
	for half := range 2 {
		if err := r.register(r.half(half)); err != nil {
			return err
		}
	}
	if r.driver, err = cuda.New(cuda.Options{Library: o.Library, Command: o.Copier}); err != nil {
		return err
	}
	unpin, err := r.driver.PinHost(file, r.arena)
	if err != nil {
		return err
	}
	r.undo = append(r.undo, unpin)
	return nil
}

// half of the arena: 0 for loads, 1 for saves.
func (r *rig) half(i int) []byte {
	n := len(r.arena) / 2
	return r.arena[i*n : (i+1)*n : (i+1)*n]
}

// register locks host memory for this process's context.
func (r *rig) register(mem []byte) error {
	for len(mem) > 0 {
		part := mem[:min(len(mem), pinBytes)]
		if err := r.ctx.HostRegister(part); err != nil {
			return fmt.Errorf("bench gpu: %w: raise the limit on locked memory (ulimit -l), or copy fewer bytes a round", err)
		}
		r.undo = append(r.undo, func() error { return r.ctx.HostUnregister(part) })
		mem = mem[len(part):]
	}
	return nil
}

// alloc allocates device memory until close.
func (r *rig) alloc(bytes int64) (libcuda.DevicePtr, error) {
	p, err := r.ctx.Alloc(bytes)
	if err == nil {
		r.undo = append(r.undo, func() error { return r.ctx.Free(p) })
	}
	return p, err
}

func (r *rig) close() error {
	var err error
	for i := len(r.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, r.undo[i]())
	}
	r.undo = nil
	return err
}

const (
	pinPoll = 10 * time.Millisecond
	// pinStill is how long a copier registers nothing more before it is taken to be unable to.
	pinStill = 10 * time.Second
)

// awaitPinned waits until the copier has registered the whole arena, which it does while it already serves, and reports
// whether it could.
func (r *rig) awaitPinned(ctx context.Context) (bool, error) {
	poll := time.NewTicker(pinPoll)
	defer poll.Stop()
	still := time.NewTimer(pinStill)
	defer still.Stop()
	var last int64
	for {
		pinned, refused := r.pinned()
		if refused || pinned == int64(len(r.arena)) {
			return !refused, nil
		}
		if pinned != last {
			last = pinned
			still.Reset(pinStill)
		}
		select {
		case <-poll.C:
		case <-still.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// pinned is how much of the arena the copier has registered, and whether it was refused more.
func (r *rig) pinned() (bytes int64, refused bool) {
	for _, d := range r.driver.Devices() {
		if d.UUID == r.uuid.String() {
			return d.PinnedBytes, d.PinError != ""
		}
	}
	return 0, false
}

// copyPlain moves bytes between the arena and the device in large copies, by the directions, and waits for them. It is what
// the bus can do.
func (r *rig) copyPlain(load, save bool, bytes int) error {
	var err error
	for at := 0; at < bytes && err == nil; at += plainBytes {
		end := min(at+plainBytes, bytes)
		if load {
			err = r.streams[0].CopyToDevice(r.plain[0], r.half(0)[at:end])
		}
		if save && err == nil {
			err = r.streams[1].CopyToHost(r.half(1)[at:end], r.plain[1])
		}
	}
	return errors.Join(err, r.streams[0].Synchronize(), r.streams[1].Synchronize())
}
