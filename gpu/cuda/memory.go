package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/choice"
	"github.com/kvconn/kvconn/gpu/copier"
	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/gpu/ring"
)

// Shape of a device's copies: few calls with much in each.
const (
	calls      = 4
	batchBytes = 8 << 20
)

// memory is one rank's memory in a copier.
type memory struct {
	g      *device
	c      *process
	number uint32
	sizes  []int64
	closed sync.Once
	err    error
}

var (
	_ gpu.Memory  = (*memory)(nil)
	_ gpu.Awaiter = (*memory)(nil)
)

func (*memory) Shape() gpu.Shape { return gpu.Shape{Calls: calls, BatchBytes: batchBytes, Later: true} }

func (m *memory) RegionBytes() []int64 { return m.sizes }

// Close has the copier unmap the memory. When it returns, no copy touches the memory any more: a copier that does not
// say so in time is killed.
func (m *memory) Close() error {
	m.closed.Do(func() {
		if m.c.ended() {
			return
		}
		_, err := m.c.ask(m.c.device.o.OpenTimeout, &copier.Request{Op: copier.Close, Memory: m.number})
		if !errors.Is(err, gpu.ErrLost) {
			m.err = err
		}
	})
	return m.err
}

// Copy hands the pieces to the copier, in several batches if they are many, and waits for all of them.
func (m *memory) Copy(ctx context.Context, b *gpu.Batch) error {
	for i := range b.Pieces {
		if err := m.check(&b.Pieces[i]); err != nil {
			return err
		}
	}
	if err := m.Await(ctx, b); err != nil {
		return err
	}
	pieces := gpu.Merge(b.Pieces)
	var err error
	for len(pieces) > 0 && err == nil {
		n := min(len(pieces), ring.MaxRuns)
		err = m.run(ctx, b.Direction, pieces[:n])
		pieces = pieces[n:]
	}
	return err
}

// check refuses pieces outside of the memory or the arena.
func (m *memory) check(p *gpu.Piece) error {
	if err := p.Check(m.sizes); err != nil {
		return err
	}
	mem := m.c.device.arena.mem
	at, arena := address(p.Host), address(mem)
	if at < arena || at-arena > uintptr(len(mem)) || uintptr(len(p.Host)) > uintptr(len(mem))-(at-arena) {
		return fmt.Errorf("%w: host memory that was not prepared for copies", gpu.ErrBounds)
	}
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// callPause is how often it is looked whether the engine's stream has come to a call. It is short beside a forward
// pass, and a thousandth of a core.
const callPause = 50 * time.Microsecond

// Await waits until the engine's stream has executed what was queued before the call. The number comes through host
// memory, so nothing on the device waits, and the end of ctx leaves nothing behind. The wait holds no slot of the ring, and
// ends with the copier that the copy would go to.
func (m *memory) Await(ctx context.Context, b *gpu.Batch) error {
	if b.AfterCall == 0 || b.Reached == nil {
		return nil
	}
	for b.Reached() < b.AfterCall {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the engine's stream has not come to its call: %w", ctx.Err())
		case <-m.c.gone:
			return m.c.lost()
		case <-time.After(callPause):
		}
	}
	return nil
}

// run has the copier copy one batch, and waits for its end. It cannot be called back once the copier has it.
func (m *memory) run(ctx context.Context, d gpu.Direction, pieces []gpu.Piece) error {
	c := m.c
	if !c.enter() {
		return c.lost()
	}
	defer c.users.Done()
	var bytes uint64
	for j := range pieces {
		bytes += uint64(len(pieces[j].Host))
	}
	switch {
	case bytes == 0:
		return nil
	case d == gpu.Load:
		c.pace.beginLoad()
		defer c.pace.endLoad()
	case c.pace.beginSave(ctx, c.gone, bytes):
		defer c.pace.endSave(bytes)
	case c.ended():
		return c.lost()
	default:
		return fmt.Errorf("wait for a turn to save: %w", ctx.Err())
	}
	var i int
	select {
	case i = <-c.free:
	case <-c.gone:
		return c.lost()
	case <-ctx.Done():
		return fmt.Errorf("wait for a GPU's copier: %w", ctx.Err())
	}
	b, s := c.ring.Batch(i), &c.slots[i]
	b.Reset(m.number, uint8(d))
	arena := address(c.device.arena.mem)
	for j := range pieces {
		p := &pieces[j]
		if len(p.Host) == 0 {
			continue
		}
		b.Append(ring.Run{Region: p.Region, Offset: p.Offset, Arena: uint64(address(p.Host) - arena), Bytes: uint64(len(p.Host))})
	}
	way := m.g.learnt.Choose(uint8(d), len(pieces), bytes)
	if way == choice.Kernel {
		b.WantKernel()
	}
	if err := c.submit(i); err != nil {
		return err
	}
	o, ended := c.awaitEnd(s)
	if !ended {
		if way == choice.Kernel {
			m.g.kernelLost(c)
		}
		return c.lost()
	}
	c.free <- i
	if err := outcomeError(o); err != nil {
		return err
	}
	m.g.note(d, len(pieces), bytes, way, o)
	return nil
}

// awaitEnd waits for the outcome of a slot's batch, and reports false if the copier has gone. One that does not copy in
// time is killed.
func (p *process) awaitEnd(s *slot) (o ring.Outcome, ended bool) {
	limit, quit := p.device.o.CopyTimeout, p.device.quit
	s.timer.Reset(limit)
	defer s.timer.Stop()
	for {
		select {
		case o = <-s.outcome:
			return o, true
		case <-quit:
			quit, limit = nil, min(limit, p.device.o.QuitTimeout)
			s.timer.Reset(limit)
		case <-s.timer.C:
			p.end(fmt.Errorf("%w: a batch was not copied within %s", errTimeout, limit))
			<-p.gone
			return o, false
		case <-p.gone:
			return o, false
		}
	}
}

// submit hands a slot to the copier.
func (p *process) submit(i int) error {
	p.submitting.Lock()
	defer p.submitting.Unlock()
	p.slots[i].busy = true
	return p.ring.Submit(i)
}

// lost is the error of memory whose copier has gone.
func (p *process) lost() error { return fmt.Errorf("%w: %w: %w", gpu.ErrLost, gpu.ErrAgain, p.cause()) }

func outcomeError(o ring.Outcome) error {
	switch {
	case o.Refused:
		return fmt.Errorf("%w: the copier refused a batch", gpu.ErrBounds)
	case o.Code != 0:
		return &libcuda.Error{Entry: "copy", Code: libcuda.Code(o.Code)}
	}
	return nil
}
