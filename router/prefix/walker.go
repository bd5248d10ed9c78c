package prefix

import (
	"math/bits"

	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// walker is the state of one walk. It follows the holders of the stretches that the walk goes through, and
// accounts for a rank only where the set of tiers that have its next block changes:
//
//	runs        |-------A-------|-------B--------|--------C---------|
//	stretches   |       1       |       2        |     3     |  the prompt leaves run C
//	rank's GPU  ###################......####################
//	its disk    ##############################...............
//	mask        |     gpu+disk     |disk |both|     gpu      |  each | after the first is a call of account
//
// For each stretch [walker.gather] sorts the holders by what they have of it: all (next) or some (part).
// [walker.stretch] compares this with who had the block before (have). Where a holder changed, or has only
// part, [walker.look] finds the mask of each of its ranks, or [walker.lookInside] the masks where they change
// within the stretch. [walker.lookSole] does both for the frequent case of a rank with one holder, which has no
// other rank. [walker.change] notes a rank's new mask and passes the blocks up to there to [walker.account],
// which adds them to the rank's result.
type walker struct {
	v   *Ranks
	out []Result
	// pos is how many blocks have been walked, alive how many ranks have them all.
	pos, alive int32
	depth      int32
	first      bool

	// have, next and part are sets of holders: those with the block before pos, with the
	// whole of the coming stretch, with some of it. moving are holders with a bitmap that was read in the
	// previous stretch: it may have changed between the two looks, so they are looked at again, whatever they have.
	have, next, part, moving []uint64
	// moved says that moving is not empty.
	moved bool
	// spans say what each holder of part has; spanOf is the index of its span by holder.
	spans  []span
	spanOf []uint16

	ranks []rankState
	step  uint32
}

// span is what a holder has of a run: the first end blocks, and those in bits if not nil.
type span struct {
	end  uint32
	bits *coverage.Bitmap
}

type rankState struct {
	since int32
	// step is the last stretch that the rank was looked at for.
	step uint32
	// mask has the bits of the tiers that have the blocks from since on; 0 if the rank is out of the
	// walk. phase is the tier that a loader that turns to each tier once has come to.
	mask  uint8
	phase Tier
}

func newWalker(v *Ranks) *walker {
	words := len(v.relevant)
	sets := make([]uint64, 4*words)
	return &walker{
		v:    v,
		have: sets[:words], next: sets[words : 2*words], part: sets[2*words : 3*words], moving: sets[3*words:],
		spanOf: make([]uint16, words*64),
		ranks:  make([]rankState, v.Len()),
	}
}

func (v *Ranks) begin(out []Result) *walker {
	w := v.walkers.Get().(*walker)
	w.out = out[:v.Len()]
	clear(w.out)
	clear(w.ranks)
	clear(w.have)
	clear(w.moving)
	w.moved = false
	w.pos, w.alive, w.depth, w.step, w.first = 0, 0, 0, 0, true
	return w
}

// end finishes the ranks that are still in the walk and releases the walker. It returns
// the largest usable prefix.
func (w *walker) end() int {
	if w.alive > 0 {
		for r := range w.ranks {
			if st := &w.ranks[r]; st.mask != 0 {
				w.account(uint32(r), st, w.pos)
				w.out[r].Usable = w.pos
			}
		}
		w.depth = max(w.depth, w.pos)
	}
	depth := w.depth
	w.out = nil
	w.v.walkers.Put(w)
	return int(depth)
}

// stretch walks over the first n blocks of a run with coverage c.
func (w *walker) stretch(c *coverage.Coverage, n uint32) {
	w.gather(c, n)
	w.step++
	for i, whole := range w.next {
		part := w.part[i] &^ whole
		for changed := (w.have[i] ^ whole) | part; changed != 0; changed &= changed - 1 {
			h := Holder(i*64 + bits.TrailingZeros64(changed))
			if bit := changed & -changed; w.v.sole[i]&bit != 0 {
				w.lookSole(h, whole&bit != 0, part&bit != 0, n)
				continue
			}
			for _, r := range w.v.usersOf(h) {
				w.look(r, n)
			}
		}
	}
	for i, whole := range w.next {
		for part := w.part[i] &^ whole; part != 0; part &= part - 1 {
			if w.spans[w.spanOf[Holder(i*64+bits.TrailingZeros64(part))]].bits != nil {
				w.moving[i] |= part & -part
				w.moved = true
			}
		}
		w.have[i] = whole
	}
	w.first = false
	w.pos += int32(n)
}

// gather sorts the holders of a run's first n blocks into next and part.
func (w *walker) gather(c *coverage.Coverage, n uint32) {
	clear(w.next)
	clear(w.part)
	w.spans = w.spans[:0]
	if w.moved {
		w.putMoving(n)
	}
	for i := range c.Cuts {
		h, end := c.Cut(i)
		w.put(h, end, nil, n)
	}
	m := c.More
	if m == nil {
		return
	}
	for i := range min(len(m.Group), len(w.next)) {
		group := m.Group[i] & w.v.relevant[i]
		if m.GroupEnd >= n {
			w.next[i] |= group
			continue
		}
		for ; group != 0; group &= group - 1 {
			w.put(Holder(i*64+bits.TrailingZeros64(group)), m.GroupEnd, nil, n)
		}
	}
	for _, e := range m.Holed {
		w.put(e.Holder, 0, e.Blocks, n)
	}
	for _, p := range m.Predicted {
		w.put(p.Holder, p.End, nil, n)
	}
}

// putMoving notes that the holders of moving have some of the stretch, at least nothing: so they are looked at.
func (w *walker) putMoving(n uint32) {
	for i, moving := range w.moving {
		for ; moving != 0; moving &= moving - 1 {
			w.put(Holder(i*64+bits.TrailingZeros64(moving)), 0, nil, n)
		}
	}
	clear(w.moving)
	w.moved = false
}

// put notes that a holder has the first end blocks of a run, and those in b if not nil. A
// holder may come twice: predicted blocks add to those that it has.
func (w *walker) put(h Holder, end uint32, b *coverage.Bitmap, n uint32) {
	word, bit := int(h/64), uint64(1)<<(h%64)
	if word >= len(w.next) || w.v.relevant[word]&bit == 0 {
		return
	}
	if end >= n {
		w.next[word] |= bit
		return
	}
	if w.part[word]&bit == 0 {
		w.part[word] |= bit
		w.spanOf[h] = uint16(len(w.spans))
		w.spans = append(w.spans, span{end: end, bits: b})
		return
	}
	s := &w.spans[w.spanOf[h]]
	s.end = max(s.end, end)
	if b != nil {
		s.bits = b
	}
}

// at says whether a span has block i, and up to which block that stays so.
func (s *span) at(i uint32) (has bool, until uint32) {
	if i < s.end {
		return true, s.end
	}
	if s.bits == nil {
		return false, maxRun
	}
	return s.bits.Stretch(i)
}

// lookSole is look for a holder whose only rank has no other holder. The holder has the
// whole stretch, or part of it, or nothing.
func (w *walker) lookSole(h Holder, whole, part bool, n uint32) {
	r := w.v.users[w.v.firstUser[h]]
	st := &w.ranks[r]
	if st.mask == 0 && !w.first {
		return
	}
	bit := w.v.holders[w.v.first[r]].bit
	if whole {
		w.change(r, st, bit, w.pos)
		return
	}
	end := uint32(0)
	if part {
		s := &w.spans[w.spanOf[h]]
		if end = s.end; s.bits != nil {
			if has, until := s.bits.Stretch(end); has {
				end = until
			}
		}
	}
	if end = min(end, n); end > 0 {
		w.change(r, st, bit, w.pos)
	}
	if end < n {
		w.change(r, st, 0, w.pos+int32(end))
	}
}

// look updates a rank for a stretch of n blocks.
func (w *walker) look(r, n uint32) {
	st := &w.ranks[r]
	if st.mask == 0 && !w.first || st.step == w.step {
		return
	}
	st.step = w.step
	var mask uint8
	holders := w.v.holders[w.v.first[r]:w.v.first[r+1]]
	for _, t := range holders {
		word, bit := t.h/64, uint64(1)<<(t.h%64)
		if w.next[word]&bit != 0 {
			mask |= t.bit
		} else if w.part[word]&bit != 0 {
			w.lookInside(r, n, st, holders)
			return
		}
	}
	w.change(r, st, mask, w.pos)
}

// lookInside is look for a rank whose holders change inside the stretch.
func (w *walker) lookInside(r, n uint32, st *rankState, holders []tiered) {
	for i := uint32(0); i < n; {
		var mask uint8
		until := n
		for _, t := range holders {
			word, bit := t.h/64, uint64(1)<<(t.h%64)
			if w.next[word]&bit != 0 {
				mask |= t.bit
			} else if w.part[word]&bit != 0 {
				has, end := w.spans[w.spanOf[t.h]].at(i)
				if until = min(until, end); has {
					mask |= t.bit
				}
			}
		}
		if w.change(r, st, mask, w.pos+int32(i)); mask == 0 {
			return
		}
		i = until
	}
}

// change notes that the tiers of mask have a rank's blocks from pos on.
func (w *walker) change(r uint32, st *rankState, mask uint8, pos int32) {
	if mask == st.mask {
		return
	}
	if st.mask == 0 {
		w.alive++
	} else {
		w.account(r, st, pos)
	}
	st.mask, st.since = mask, pos
	if mask == 0 {
		w.alive--
		w.out[r].Usable = pos
		w.depth = max(w.depth, pos)
	}
}

// account adds the blocks from since to pos, which the tiers of the rank's mask have, to
// its result.
func (w *walker) account(r uint32, st *rankState, pos int32) {
	out, n := &w.out[r], pos-st.since
	if st.mask&(1<<GPU) != 0 && st.phase == GPU {
		out.GPU += n
		out.FromGPU += n
		return
	}
	switch {
	case st.mask&(1<<GPU) != 0:
		out.FromGPU += n
	case st.mask&(1<<Disk) != 0:
		out.FromDisk += n
	default:
		out.FromObject += n
	}
	// A loader turns to one tier after the other, each once.
	for st.phase = max(st.phase, Disk); st.phase < tiers; st.phase++ {
		if st.mask>>st.phase&1 == 0 {
			continue
		}
		if st.phase == Disk {
			out.Disk += n
		} else {
			out.Object += n
		}
		return
	}
}
