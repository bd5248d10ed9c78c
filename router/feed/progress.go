package feed

// progress is how much is known of what a rank holds, and which batch comes next. Engines number their
// batches from 0 in each process, and numbers ascend on one connection.
//
//	       batch 0 is the first one,
//	       or nothing was published yet
//	  ┌────────────────────────────────────┐
//	  │                                    ▼
//	blank ─────────────► partial ◄─────── whole
//	  ▲    another batch    │    a replayed  │
//	  │    is the first     │    batch is    │
//	  │                     │    malformed   │
//	  └─────────────────────┴────────────────┘
//	           forget: it may be wrong
//
// Batches in sequence change nothing else. A new connection puts what is known in doubt: the engine may be
// another process. The doubt ends when a replay brings the last batch as it was, or with forget.
type progress struct {
	extent  extent
	doubted bool
	// next is the number expected, unless blank; sum is the checksum of the batch before it. A batch has its
	// time in it, so an engine that still has a batch of this sum under that number is the same process.
	next, sum uint64
	// torn is set if what a batch said is lost for good: what is known may be wrong.
	torn bool
	// heard is the highest number on this connection, if hasHeard; what a replay has brought since may be
	// ahead of it. had is the highest one that was applied, heard or replayed, if hasHad.
	heard, had       uint64
	hasHeard, hasHad bool
}

type extent uint8

const (
	blank   extent = iota // nothing: any batch may be the first
	partial               // what is known is true, but batches are missing
	whole                 // everything since the engine's start
)

// sound reports whether what is known is true, without doubt.
func (p *progress) sound() bool { return !p.doubted && !p.torn }

// connected notes that numbers from now on come over a new connection.
func (p *progress) connected() { p.hasHeard, p.hasHad, p.doubted = false, false, p.extent != blank }

func (p *progress) confirmed() { p.doubted = false }

// forget makes any batch the first one.
func (p *progress) forget() { p.extent, p.doubted, p.torn = blank, false, false }

// nothingPublished notes that the engine has not published anything yet.
func (p *progress) nothingPublished() { p.extent, p.doubted, p.next = whole, false, 0 }

// malformed notes that what a batch said is lost for good.
func (p *progress) malformed() { p.extent, p.torn = partial, true }

// applied notes that the batch of that number and checksum, and all before it, are applied.
func (p *progress) applied(seq, sum uint64) {
	if p.extent == blank {
		p.extent = partial
		if seq == 0 {
			p.extent = whole
		}
	}
	p.next, p.sum, p.doubted = seq+1, sum, false
	if !p.hasHad || seq > p.had {
		p.had, p.hasHad = seq, true
	}
}

// lacks reports whether a batch that was applied on this connection is not known now.
func (p *progress) lacks() bool { return p.hasHad && !p.has(p.had) }

// has reports whether the batch of that number is applied.
func (p *progress) has(seq uint64) bool { return p.extent != blank && seq < p.next }

// misses reports whether batches before that number are missing.
func (p *progress) misses(seq uint64) bool { return p.extent != blank && seq > p.next }

// last is the number of the last batch applied, if there is one.
func (p *progress) last() (seq uint64, ok bool) { return p.next - 1, p.extent != blank && p.next > 0 }

// verdict is what a batch's number says.
type verdict uint8

const (
	inOrder   verdict = iota + 1
	duplicate         // its events have been applied
	gap               // batches before it are missing
	restarted         // the engine counts from 0 again
)

func (p *progress) judge(seq uint64) verdict {
	repeated, backwards := p.hasHeard && seq == p.heard, p.hasHeard && seq < p.heard
	p.heard, p.hasHeard = seq, true
	switch {
	case repeated:
		return duplicate
	case backwards:
		p.hasHad = false
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
