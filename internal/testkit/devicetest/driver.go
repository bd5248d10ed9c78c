// Package devicetest is a device for tests that need none of C, and cases that it and real drivers of devices must pass.
package devicetest

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/gpu"
)

// Driver is a [gpu.Driver] of one device, whose memory is no memory that the engine or the daemon could touch, and whose
// engine computes after its calls return. The zero value is ready to use. Its methods are safe for concurrent use.
type Driver struct {
	mu      sync.Mutex
	changed *sync.Cond
	vram    []byte
	reached uint64
	held    bool
	copyErr error
	openErr error
	copies  []Copy
}

// Copy is one that was asked for.
type Copy struct {
	Direction gpu.Direction
	// AfterCall is the engine's call that it belongs to.
	AfterCall uint64
}

var _ gpu.Driver = (*Driver)(nil)

// lock locks the device, and makes what the zero value lacks.
func (d *Driver) lock() {
	d.mu.Lock()
	if d.changed == nil {
		d.changed = sync.NewCond(&d.mu)
	}
}

// Open allocates memory as large as the files, and forgets that of the registration before. What was copied from there is
// forgotten too, and the engine's calls count from 1 again.
func (d *Driver) Open(files []*os.File) (gpu.Memory, error) {
	d.lock()
	defer d.mu.Unlock()
	if d.openErr != nil {
		return nil, d.openErr
	}
	m := &memory{d: d}
	var total int64
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("size of a region: %w", err)
		}
		m.sizes, m.at = append(m.sizes, info.Size()), append(m.at, total)
		total += info.Size()
	}
	d.vram, d.reached, d.copies = make([]byte, total), 0, nil
	return m, nil
}

// PinHost does nothing.
func (*Driver) PinHost(*os.File, []byte) (func() error, error) {
	return func() error { return nil }, nil
}

// change changes the device and wakes copies that wait.
func (d *Driver) change(f func()) {
	d.lock()
	defer d.mu.Unlock()
	f()
	d.changed.Broadcast()
}

// Reach has the engine's stream come to its call of that number. What it has computed until then, step writes to the
// memory, all regions one after the other; it may be nil.
func (d *Driver) Reach(call uint64, step func(vram []byte)) {
	d.change(func() {
		if step != nil {
			step(d.vram)
		}
		d.reached = call
	})
}

// Look calls f with the memory. Nothing is copied meanwhile.
func (d *Driver) Look(f func(vram []byte)) {
	d.lock()
	defer d.mu.Unlock()
	f(d.vram)
}

// Fail has copies fail with this error from now on, also those that wait: one that wraps [gpu.ErrLost] as a device that
// has failed for good. nil ends that.
func (d *Driver) Fail(err error) { d.change(func() { d.copyErr = err }) }

// FailOpen has registrations fail with this error from now on. nil ends that.
func (d *Driver) FailOpen(err error) { d.change(func() { d.openErr = err }) }

// Hold delays all copies until [Driver.Release]. Like those of a device they cannot be called back.
func (d *Driver) Hold() { d.change(func() { d.held = true }) }

// Release lets the copies go on.
func (d *Driver) Release() { d.change(func() { d.held = false }) }

// Copies lists what was asked for since the last registration: waits, and copies, which wait too.
func (d *Driver) Copies() []Copy {
	d.lock()
	defer d.mu.Unlock()
	return append([]Copy(nil), d.copies...)
}

// memory is one registration.
type memory struct {
	d *Driver
	// sizes of the regions, and where each begins.
	sizes, at []int64
}

var _ gpu.Awaiter = (*memory)(nil)

func (*memory) Shape() gpu.Shape       { return gpu.Shape{Calls: 1, BatchBytes: 64 << 20, Later: true} }
func (*memory) Close() error           { return nil }
func (m *memory) RegionBytes() []int64 { return m.sizes }

// Await waits for the engine's call, by what [Driver.Reach] says where the batch has no number of its own.
func (m *memory) Await(ctx context.Context, b *gpu.Batch) error {
	d := m.d
	defer context.AfterFunc(ctx, func() { d.change(func() {}) })()
	d.lock()
	defer d.mu.Unlock()
	return d.await(ctx, b)
}

// await notes what is asked for, and waits for its call. The device is locked.
func (d *Driver) await(ctx context.Context, b *gpu.Batch) error {
	d.copies = append(d.copies, Copy{b.Direction, b.AfterCall})
	for d.reached < b.AfterCall && d.copyErr == nil {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the engine's stream has not come to its call: %w", err)
		}
		d.changed.Wait()
	}
	return d.copyErr
}

// Copy waits as Await does, and copies.
func (m *memory) Copy(ctx context.Context, b *gpu.Batch) error {
	for i := range b.Pieces {
		if err := b.Pieces[i].Check(m.sizes); err != nil {
			return err
		}
	}
	d := m.d
	defer context.AfterFunc(ctx, func() { d.change(func() {}) })()
	d.lock()
	defer d.mu.Unlock()
	if err := d.await(ctx, b); err != nil {
		return err
	}
	for d.held && d.copyErr == nil {
		d.changed.Wait()
	}
	if d.copyErr != nil {
		return d.copyErr
	}
	for _, p := range gpu.Merge(b.Pieces) {
		vram := d.vram[m.at[p.Region]+int64(p.Offset):][:len(p.Host)]
		if b.Direction == gpu.Load {
			copy(vram, p.Host)
		} else {
			copy(p.Host, vram)
		}
	}
	return nil
}
