package cuda

import (
	"context"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/gpu/ring"
)

const (
	// maxSaves leaves half of the ring's slots to loads.
	maxSaves = ring.Slots / 2
	// saveBytes keep a bus busy while the next batch is prepared, and hold up a load that comes then for about a millisecond.
	saveBytes = 32 << 20
	// saveBytesBesideLoads is one batch: saves get on, and leave the host's memory and the device's time to loads.
	saveBytesBesideLoads = 8 << 20
)

// pace holds saves back from a copier, so that loads, which requests wait for, do not queue after them. One save at
// least is under way, however many loads there are, and the first to come is the first to go. The zero value is ready to use.
type pace struct {
	mu    sync.Mutex
	loads int
	// saves are those in the copier, of bytes together.
	saves   int
	bytes   uint64
	waiting []*heldSave
}

// heldSave is a save that waits. Its fields are guarded by the pace's mutex.
type heldSave struct {
	bytes uint64
	// goes is closed when the save is let in.
	goes chan struct{}
	isIn bool
}

func (p *pace) beginLoad() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loads++
}

func (p *pace) endLoad() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loads--
	p.letIn()
}

// beginSave waits for its turn, and reports false if ctx or gone ended first. A save that need not wait allocates nothing.
func (p *pace) beginSave(ctx context.Context, gone <-chan struct{}, bytes uint64) bool {
	p.mu.Lock()
	if len(p.waiting) == 0 && p.hasRoom(bytes) {
		p.add(bytes)
		p.mu.Unlock()
		return true
	}
	s := &heldSave{bytes: bytes, goes: make(chan struct{})}
	p.waiting = append(p.waiting, s)
	p.mu.Unlock()
	select {
	case <-s.goes:
		return true
	case <-ctx.Done():
	case <-gone:
	}
	p.giveUp(s)
	return false
}

// endSave ends a save that beginSave let in.
func (p *pace) endSave(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(bytes)
}

// giveUp ends a save that does not wait any longer. It may have been let in meanwhile.
func (p *pace) giveUp(s *heldSave) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.isIn {
		p.remove(s.bytes)
		return
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(w *heldSave) bool { return w == s })
	p.letIn() // it may have been the first
}

func (p *pace) hasRoom(bytes uint64) bool {
	limit := uint64(saveBytes)
	if p.loads > 0 {
		limit = saveBytesBesideLoads
	}
	return p.saves == 0 || p.saves < maxSaves && p.bytes+bytes <= limit
}

func (p *pace) add(bytes uint64) {
	p.saves++
	p.bytes += bytes
}

func (p *pace) remove(bytes uint64) {
	p.saves--
	p.bytes -= bytes
	p.letIn()
}

// letIn lets saves in that there is room for, in their order.
func (p *pace) letIn() {
	n := 0
	for n < len(p.waiting) && p.hasRoom(p.waiting[n].bytes) {
		s := p.waiting[n]
		p.add(s.bytes)
		s.isIn = true
		close(s.goes)
		n++
	}
	p.waiting = slices.Delete(p.waiting, 0, n)
}
