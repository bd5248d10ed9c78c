package prefix

import "github.com/kvconn/kvconn/router/prefix/coverage"

// Removed says that a holder's engine has dropped blocks. A block that was stored several
// times stays until it has been removed that many times. It returns how many of ids the holder
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
		if r := x.runs[low.run()]; r == nil { // dropped since its blocks were found: one was named twice
			unknown += n
		} else {
			unknown += n - x.release(h, ho, r, low.off(), low.off()+uint32(n))
		}
		rest = rest[n:]
	}
	if cap(x.places) > maxRun {
		x.places = nil
	}
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

// release takes one copy of each of the blocks [from, to) of a run from a holder, and returns how many of them
// it had.
func (x *Index) release(h Holder, ho *holder, r *run, from, to uint32) (had int) {
	if len(ho.copies) == 0 {
		return x.take(h, ho, r, from, to)
	}
	for off := to; off > from; off-- {
		p := makePlace(r, off-1)
		switch n := ho.copies[p]; n {
		case 0:
			had += x.take(h, ho, r, off-1, off)
			continue
		case 1:
			x.dropCopies(ho, p)
		default:
			ho.copies[p] = n - 1
		}
		had++
	}
	return had
}

// take takes the blocks [from, to) of a run from a holder, and returns how many of them it had.
func (x *Index) take(h Holder, ho *holder, r *run, from, to uint32) (had int) {
	c := r.cover.Load()
	next, lost := c.Remove(h, from, to)
	ho.blocks -= int64(lost)
	x.publish(r, c, next)
	if lost > 0 && to >= r.len() {
		x.trim(r)
	}
	return int(lost)
}

func (x *Index) dropCopies(ho *holder, p place) {
	if _, ok := ho.copies[p]; ok {
		delete(ho.copies, p)
		x.stats.Bytes -= copyBytes
	}
}

// releaseRun takes all blocks of a run from a holder, and its predictions.
func (x *Index) releaseRun(h Holder, ho *holder, r *run) {
	c := r.cover.Load()
	next, lost := c.Remove(h, 0, maxRun)
	ho.blocks -= int64(lost)
	x.publish(r, c, next.WithoutPredictions(func(p coverage.Prediction) bool { return p.Holder == h }))
}

// trim drops the blocks at a run's end that nobody holds and nothing hangs at. If none is left it drops the
// run, and trims the run above.
func (x *Index) trim(r *run) {
	for {
		n, length := max(r.cover.Load().End(nil), r.kidEnd()), r.len()
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

// dropRun takes an empty run out of the trie.
func (x *Index) dropRun(r *run) {
	x.heads.remove(r)
	x.stats.Bytes -= int64(r.counted)
	x.runs[r.id] = nil
	x.free = append(x.free, r.id)
	// Predictions refer to the run until they expire, so it must keep no memory and no other runs.
	r.keys.Store(&keyArray{})
	r.cover.Store(&coverage.Coverage{})
	r.parent, r.named, r.kids, r.written, r.id = nil, nil, nil, 0, 0
	x.stats.Runs--
}
