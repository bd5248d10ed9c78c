package segment

import (
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/report"
)

// slotFaults keeps apart slots that cannot be written or read from a disk that fails for a
// while. A slot whose write fails is a suspect: it goes to the far end of the free slots
// after a pause. If it fails again, and others were written in between, it is bad: it is set
// aside, and not used again before its segment is made again. So is the slot of a record
// that cannot be read. All of it is guarded by the mutex of the space.
type slotFaults struct {
	bad      map[index.Ref]struct{}
	suspects map[index.Ref]suspect
	written  uint64 // writes that succeeded
	// streak is how many writes failed since the last that succeeded, probeAt when the next
	// may be tried in a long streak.
	streak  int
	probeAt time.Time

	refusing report.Incident
}

// suspect is a slot whose last write failed.
type suspect struct {
	written uint64    // as slotFaults has it at the time
	until   time.Time // when it may be used again
	cooling bool      // it is not among the free ones yet
}

const (
	// suspectPause is how long a slot rests after a write that failed.
	suspectPause = time.Second
	// longStreak of failed writes is a disk that refuses writes, not a bad slot: one write
	// each probeInterval is tried from then on, so that not every slot becomes a suspect.
	longStreak    = 16
	probeInterval = 250 * time.Millisecond
	// A segment with badSlots bad ones, or with badPart of its slots, is given up.
	badSlots, badPart = 8, 8
)

// MayWrite reports whether a write may be tried: while the disk refuses all of them only
// now and then.
func (p *Space) MayWrite(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streak < longStreak {
		return true
	}
	if now.Before(p.probeAt) {
		return false
	}
	p.probeAt = now.Add(probeInterval)
	return true
}

// Wrote notes that the write into a slot succeeded. It reports whether that ends a time in
// which the disk refused writes.
func (p *Space) Wrote(ref index.Ref) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written++
	p.streak = 0
	if len(p.suspects) > 0 {
		delete(p.suspects, ref)
	}
	return p.refusing.Ends()
}

// WriteFailed takes back a slot that take gave and whose write failed. It reports whether
// the disk has begun to refuse writes.
func (p *Space) WriteFailed(ref index.Ref, err error, now time.Time) (refusing bool) {
	g := p.At(ref)
	p.mu.Lock()
	defer p.mu.Unlock()
	g.writing.Add(-1)
	p.streak++
	refusing = p.streak >= longStreak && p.refusing.Begins()
	switch old, again := p.suspects[ref]; {
	case g.retired:
	case !fsio.OfMedium(err):
		p.freeLast(ref)
	case again && p.written > old.written:
		delete(p.suspects, ref)
		p.setBad(ref)
	default:
		p.suspects[ref] = suspect{written: p.written, until: now.Add(suspectPause), cooling: true}
	}
	return refusing
}

// freeLast puts a slot where it is taken last. p.mu is held.
func (p *Space) freeLast(ref index.Ref) {
	c := p.At(ref).class
	c.free = append(c.free, ref)
	copy(c.free[1:], c.free)
	c.free[0] = ref
	c.wake()
}

// CoolDown makes those suspects free whose pause is over.
func (p *Space) CoolDown(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref, e := range p.suspects {
		if e.cooling && !now.Before(e.until) {
			e.cooling = false
			p.suspects[ref] = e
			p.freeLast(ref)
		}
	}
}

// cooling is how many slots rest. p.mu is held.
func (p *Space) coolingSlots() (n int64) {
	for _, e := range p.suspects {
		if e.cooling {
			n++
		}
	}
	return n
}

func (p *Space) isBad(ref index.Ref) bool {
	if len(p.bad) == 0 {
		return false
	}
	_, bad := p.bad[ref]
	return bad
}

// setBad sets a slot aside, which holds no record and is in no list. p.mu is held.
func (p *Space) setBad(ref index.Ref) {
	p.bad[ref] = struct{}{}
	p.At(ref).bad++
}

// Spoil sets aside the slot of a record that could not be read. The committer calls it
// when it has taken the record out of the index.
func (p *Space) Spoil(ref index.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isBad(ref) {
		p.setBad(ref)
	}
}

// spoilt returns a segment with too many bad slots. One whose headers are being read waits:
// what they name would be added to a segment that is no more. p.mu is held.
func (p *Space) spoilt() *Segment {
	if len(p.bad) == 0 {
		return nil
	}
	for _, g := range p.segments {
		if !g.retired && !g.unread.Load() && g.bad > 0 && (g.bad >= badSlots || uint32(g.bad)*badPart >= g.Slots) {
			return g
		}
	}
	return nil
}

// forgetFaults forgets what is known of a segment's slots: the suspects, and with all set
// the bad ones, too. p.mu is held.
func (p *Space) forgetFaults(g *Segment, all bool) {
	end := g.Base + index.Ref(g.Slots)
	for ref := range p.suspects {
		if ref >= g.Base && ref < end {
			delete(p.suspects, ref)
		}
	}
	for ref := range p.bad {
		if all && ref >= g.Base && ref < end {
			delete(p.bad, ref)
		}
	}
}
