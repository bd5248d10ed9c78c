package fence

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Revocations are runs of blocks that the engine has taken back from saves that have not ended. The page has the number of
// those that were written since it began, and the last ones in a ring of 64-bit words: a run's first block in the lower
// half, the number of its blocks in the upper one.
const (
	offsetRevoked = 192
	offsetRing    = 2048
	ringRuns      = (pageBytes - offsetRing) / 8
)

// revocations are the part of a page that holds them. The engine's side alone writes it.
type revocations struct {
	count *atomic.Uint64
	ring  *[ringRuns]atomic.Uint64
}

func revocationsIn(mem []byte) revocations {
	return revocations{
		count: (*atomic.Uint64)(unsafe.Pointer(&mem[offsetRevoked])),
		ring:  (*[ringRuns]atomic.Uint64)(unsafe.Pointer(&mem[offsetRing])),
	}
}

// add writes one run. The order matters: whoever sees the count sees the run.
func (r *revocations) add(run uint64) {
	r.ring[r.count.Load()%ringRuns].Store(run)
	r.count.Add(1)
}

func runOf(first, blocks uint32) uint64 { return uint64(blocks)<<32 | uint64(first) }

// allBlocks is the run of all blocks that there can be.
var allBlocks = runOf(0, math.MaxUint32)

// Revoked says which blocks were revoked since a count. Its zero value has none.
type Revoked struct {
	all  bool
	n    int
	runs [ringRuns]uint64
}

// Any reports whether a block may have been revoked.
func (r *Revoked) Any() bool { return r.all || r.n > 0 }

// Has reports whether a block was revoked, of whichever layer group.
func (r *Revoked) Has(block uint32) bool {
	if r.all {
		return true
	}
	for _, run := range r.runs[:r.n] {
		if run == allBlocks {
			return true // the last number of a block, too
		}
		if first := uint32(run); block >= first && block-first < uint32(run>>32) {
			return true
		}
	}
	return false
}

// ReadRevoked fills r with what was revoked since the engine's count was that, all blocks where the ring does not reach back
// that far. Bytes that were copied before the call from blocks that r does not have are those from before the revocation.
func (p *Page) ReadRevoked(since uint64, r *Revoked) {
	r.all, r.n = false, 0
	count := p.revoked.count.Load()
	if count == since {
		return
	}
	// One run less than the ring has: the engine may be writing the next one.
	const most = ringRuns - 1
	if count-since > most {
		r.all = true
		return
	}
	for i := since; i != count; i++ {
		r.runs[r.n] = p.revoked.ring[i%ringRuns].Load()
		r.n++
	}
	r.all = p.revoked.count.Load()-since > most
}

// Ledger is the engine's side of revocations. It outlives the pages of single registrations: their numbers go on from one
// page to the next, so that a count means the same whichever page a save goes with. Its zero value is ready. It is safe for
// concurrent use.
type Ledger struct {
	mu    sync.Mutex
	count uint64
	ring  [ringRuns]uint64
	page  *Page
}

// Attach writes what was revoked to a page that no daemon has yet, and further revocations when they come. The page before
// gets no more: it must be fenced.
func (l *Ledger) Attach(p *Page) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.ring {
		p.revoked.ring[i].Store(l.ring[i])
	}
	p.revoked.count.Store(l.count)
	l.page = p
}

// Detach forgets a page that was fenced: call it before the page is closed.
func (l *Ledger) Detach(p *Page) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.page == p {
		l.page = nil
	}
}

// Count is the number of revocations so far. A save that is told a count keeps nothing of what is revoked afterwards.
func (l *Ledger) Count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// Revoke takes blocks back from all saves that were told of a lower count. When it returns they may be overwritten. It waits
// for nobody. Where the blocks are more runs than a page has room for, all blocks are revoked. It may sort blocks.
func (l *Ledger) Revoke(blocks []uint32) {
	if !slices.IsSorted(blocks) {
		slices.Sort(blocks)
	}
	runs := make([]uint64, 0, 8)
	for i := 0; i < len(blocks); {
		first, end := blocks[i], i+1
		for end < len(blocks) && blocks[end]-blocks[end-1] <= 1 {
			end++
		}
		if blocks[end-1]-first == math.MaxUint32 || len(runs) == ringRuns-1 {
			runs = append(runs[:0], allBlocks)
			break
		}
		runs = append(runs, runOf(first, blocks[end-1]-first+1))
		i = end
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, run := range runs {
		l.ring[l.count%ringRuns] = run
		l.count++
		if l.page != nil {
			l.page.revoked.add(run)
		}
	}
}
