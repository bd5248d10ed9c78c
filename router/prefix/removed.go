package prefix

// Removed says that a holder's engine has dropped blocks. A block that was stored several
// times stays until it has been removed as often. It returns how many of ids the holder
// didn't have.
func (x *Index) Removed(h Holder, ids []uint64) (unknown int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return len(ids)
	}
	x.places = x.places[:0]
	ho.names.warm(ids)
	for _, id := range ids {
		if p, ok := x.find(h, ho, id); ok {
			x.places = append(x.places, p)
		} else {
			unknown++
		}
	}
	for rest := x.places; len(rest) > 0; {
		n, low := consecutive(rest)
		unknown += x.releaseRange(h, ho, low, uint32(n))
		rest = rest[n:]
	}
	if cap(x.places) > maxRun {
		x.places = nil
	}
	x.stats.Seq++
	x.stats.Removed += uint64(len(ids) - unknown)
	x.stats.UnknownRemovals += uint64(unknown)
	return unknown
}

// consecutive is how many places at the beginning of a list follow each other in one run,
// forward or backward, and the lowest of them.
func consecutive(list []place) (n int, low place) {
	step := place(1)
	if len(list) > 1 && list[1]+1 == list[0] {
		step = ^place(0)
	}
	for n = 1; n < len(list) && list[n] == list[n-1]+step && list[n].run() == list[0].run(); n++ {
	}
	return n, min(list[0], list[n-1])
}

// releaseRange takes n blocks from a holder, and returns how many of them it didn't have.
func (x *Index) releaseRange(h Holder, ho *holder, low place, n uint32) (unknown int) {
	r := x.runs[low.run()]
	if r == nil {
		return int(n) // dropped since it was found: a block named twice
	}
	from, to := low.off(), low.off()+n
	c := r.cover.Load()
	f, at, end := c.find(h)
	if to > end || len(ho.copies) > 0 || n == 1 {
		for off := to; off > from; off-- {
			if !x.release(h, ho, r, off-1) {
				unknown++
			}
		}
		return unknown
	}
	ho.blocks -= int64(n)
	switch {
	case to < end:
		x.stats.Splits++
		b := newBitmap(end)
		b.set(0, from)
		b.set(to, end)
		r.cover.Store(c.without(h, f, at).withHoled(h, b))
	case from == 0:
		r.cover.Store(c.without(h, f, at))
	case f == formCut:
		c.cuts[at].Store(makeCut(h, from))
	default:
		r.cover.Store(c.withoutMember(h).withCut(at, h, from))
	}
	if r.cover.Load() != c {
		x.recount(r)
	}
	if to == r.len() {
		x.trim(r)
	}
	return 0
}

// release takes one copy of a block from a holder, and reports whether it had it.
func (x *Index) release(h Holder, ho *holder, r *run, off uint32) bool {
	c := r.cover.Load()
	f, at, end := c.find(h)
	has := off < end
	if f == formHoled {
		has = c.more.holed[at].bits.has(off)
	}
	if !has {
		return false
	}
	if n, ok := ho.copies[makePlace(r, off)]; ok {
		if n == 1 {
			x.dropCopies(ho, makePlace(r, off))
		} else {
			ho.copies[makePlace(r, off)] = n - 1
		}
		return true
	}
	ho.blocks--
	switch {
	case f == formHoled:
		b := c.more.holed[at].bits
		if b.clear(off); b.count == 0 {
			r.cover.Store(c.withHoled(h, nil))
		} else {
			x.heal(h, r, c, b)
		}
	case end == 1:
		r.cover.Store(c.without(h, f, at))
	case off < end-1:
		x.stats.Splits++
		b := newBitmap(end)
		b.set(0, off)
		b.set(off+1, end)
		r.cover.Store(c.without(h, f, at).withHoled(h, b))
	case f == formCut:
		c.cuts[at].Store(makeCut(h, end-1))
	default:
		r.cover.Store(c.withoutMember(h).withCut(at, h, end-1))
	}
	if r.cover.Load() != c {
		x.recount(r)
	}
	if off == r.len()-1 {
		x.trim(r)
	}
	return true
}

// dropCopies forgets the further copies of a block.
func (x *Index) dropCopies(ho *holder, p place) {
	if _, ok := ho.copies[p]; ok {
		delete(ho.copies, p)
		x.stats.Bytes -= copyBytes
	}
}

// releaseRun takes all blocks of a run from a holder, and its predictions.
func (x *Index) releaseRun(h Holder, ho *holder, r *run) {
	c := r.cover.Load()
	f, at, end := c.find(h)
	if f == formHoled {
		end = c.more.holed[at].bits.count
	}
	c = c.without(h, f, at)
	c = c.withoutPredictions(func(p prediction) bool { return p.h == h })
	if c != r.cover.Load() {
		ho.blocks -= int64(end)
		r.cover.Store(c)
		x.recount(r)
	}
}

// trim drops the blocks at a run's end that nobody holds and nothing hangs at; the run if
// none is left, and then what that leaves bare above.
func (x *Index) trim(r *run) {
	for {
		n, length := max(r.cover.Load().heldEnd(), r.kidEnd()), r.len()
		if n >= length {
			return
		}
		x.unname(r, n)
		x.stats.Blocks -= int(length - n)
		if n > 0 {
			r.shrink(n)
			x.recount(r)
			return
		}
		up, off := r.parent, r.parentOff
		if x.dropRun(r); up == nil {
			return
		}
		if up.dropKid(off); off != up.len()-1 {
			return
		}
		r = up
	}
}

// dropRun takes a run that has nothing left out of the trie.
func (x *Index) dropRun(r *run) {
	x.stats.Bytes += x.heads.remove(r) - int64(r.counted)
	x.runs[r.id] = nil
	x.free = append(x.free, r.id)
	// Predictions refer to the run until they expire: it keeps no memory, nor those above it.
	r.keys.Store(&keyArray{})
	r.cover.Store(&coverage{})
	r.parent, r.named, r.kids, r.written, r.id = nil, nil, nil, 0, 0
	x.stats.Runs--
}
