package feed

// progress is how much is known of what a rank holds, and which batch comes next. Engines number their
// batches from 0 in each process, and numbers ascend on one connection.
//
//	       batch 0 is the first one,
//	       or nothing was published yet
//	  ┌────────────────────────────────────┐
//	  │                                    ▼
//	blank ─────────────► partial ◄─────── whole
//	  ▲    another batch    │    a batch is  │
//	  │    is the first     │    unreadable: │
//	  │                     │    forget      │
//	  └─────────────────────┴────────────────┘
//	           forget: it may be wrong
//
// Batches in sequence change nothing else. A new connection puts what is known in doubt: the engine may be
// another process. The doubt ends when a replay brings the last batch as it was, or with forget.
type progress struct {
	extent  extent
	doubted bool
	// next is the number expected, first that of the first batch applied, unless blank. sums are the checksums of the
	// last sumsKept batches, each at its number modulo sumsKept. A batch has its time in it, so an engine that still has
	// the last batch of that sum under that number is the same process.
	next, first uint64
	sums        []uint64
	// heard is the last batch on this connection, if hasHeard: its number is the highest. What a replay has brought
	// since may be ahead of it. taken is the last one of these that is applied, if hasTaken.
	heard, taken       batchID
	hasHeard, hasTaken bool
}

// sumsKept is how far a replay may be ahead of what is heard: engines keep 10,000 batches, and the queue has some.
const sumsKept = 1 << 14

// batchID is the number of a batch and its checksum.
type batchID struct{ seq, sum uint64 }

type extent uint8

const (
	blank   extent = iota // nothing: any batch may be the first
	partial               // what is known is true, but batches are missing
	whole                 // everything since the engine's start
)

// connected notes that numbers from now on come over a new connection.
func (p *progress) connected() { p.hasHeard, p.hasTaken, p.doubted = false, false, p.extent != blank }

func (p *progress) confirmed() { p.doubted = false }

// forget makes any batch the first one.
func (p *progress) forget() { p.extent, p.doubted = blank, false }

// nothingPublished notes that the engine has not published anything yet.
func (p *progress) nothingPublished() { p.extent, p.doubted, p.next, p.first = whole, false, 0, 0 }

// unreadable forgets what is known: what a batch said is lost for good. What follows it is known to follow.
func (p *progress) unreadable(seq, sum uint64) {
	p.forget()
	p.applied(seq, sum)
	p.extent = partial
}

// applied notes that the batch of that number and checksum, and all before it, are applied.
func (p *progress) applied(seq, sum uint64) {
	if p.extent == blank {
		p.extent, p.first = partial, seq
		if seq == 0 {
			p.extent = whole
		}
	}
	if p.sums == nil {
		p.sums = make([]uint64, sumsKept)
	}
	p.sums[seq%sumsKept] = sum
	p.next, p.doubted = seq+1, false
}

// took notes that the last batch heard is applied.
func (p *progress) took() { p.taken, p.hasTaken = p.heard, true }

// lacks reports whether a batch is not known that was heard and applied, or was published before the last one heard.
func (p *progress) lacks() bool {
	return p.hasTaken && !p.has(p.taken.seq) || p.hasHeard && p.heard.seq > 0 && !p.has(p.heard.seq-1)
}

// contradicts reports whether another batch was applied under that number, or it is so old that it must have been.
func (p *progress) contradicts(b batchID) bool {
	return p.has(b.seq) && b.seq >= p.first && (p.next-b.seq > sumsKept || p.sums[b.seq%sumsKept] != b.sum)
}

// has reports whether the batch of that number is applied.
func (p *progress) has(seq uint64) bool { return p.extent != blank && seq < p.next }

// misses reports whether batches before that number are missing.
func (p *progress) misses(seq uint64) bool { return p.extent != blank && seq > p.next }

// last is the last batch applied, if there is one.
func (p *progress) last() (b batchID, ok bool) {
	if p.extent == blank || p.next == 0 {
		return batchID{}, false
	}
	seq := p.next - 1
	return batchID{seq, p.sums[seq%sumsKept]}, true
}

// verdict is what a batch's number says.
type verdict uint8

const (
	inOrder   verdict = iota + 1
	duplicate         // its events have been applied
	gap               // batches before it are missing
	restarted         // the engine counts from 0 again
)

func (p *progress) judge(seq, sum uint64) verdict {
	last, known, b := p.heard, p.hasHeard, batchID{seq, sum}
	p.heard, p.hasHeard = b, true
	switch {
	case known && b == last:
		return duplicate
	case known && seq <= last.seq, p.contradicts(b):
		p.hasTaken = false
		return restarted
	case p.extent == blank && seq > 0:
		return gap
	case p.doubted: // even if the number is the one expected: what was held may be gone
		return restarted
	case p.has(seq):
		return duplicate
	case p.misses(seq):
		return gap
	}
	return inOrder
}
