package index

// Resolve finishes the records that Load put into a range of slots: those that know their
// parents by key get them, depths are set, and every ancestor becomes as recent as its
// most recent descendant, so that chains lose their ends first. It is called when all
// records are loaded: a parent that is not in the table then is taken for lost, and the
// record for the head of a chain. Several ranges may be resolved at one time, and
// everything else goes on meanwhile.
func (t *Table) Resolve(r Range) {
	t.linkRange(r)
	t.raiseRange(r)
}

const (
	// resolveRun is how many records are linked under one hold of the lock, raiseRun how
	// many are touched under one hold for reading.
	resolveRun = 128
	raiseRun   = 4096
)

// step is a record on the way up a chain. The slot may hold another one when the lock is
// taken again.
type step struct {
	ref Ref
	seq uint64
}

// linker goes up from a record to the first ancestor whose depth is known, and down
// again, setting depths.
type linker struct {
	t    *Table
	path []step
}

func (t *Table) linkRange(r Range) {
	l := linker{t: t}
	for ref, end := r.Base, r.Base+Ref(r.Slots); ref < end; {
		if len(l.path) == 0 {
			ref = t.linked(ref, end)
		}
		if ref < end {
			ref = l.run(ref, end)
		}
	}
}

// linked returns the first record from ref on that is to be linked, or one that is as good to go
// on from.
func (t *Table) linked(ref, end Ref) Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return end
	}
	for stop := min(end, ref+raiseRun); ref < stop; ref++ {
		if e := t.entry(ref); e.seq != 0 && e.flags != 0 {
			break
		}
	}
	return ref
}

// run links for one hold of the lock and returns the record to go on with.
func (l *linker) run(ref, end Ref) Ref {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return end
	}
	for budget := resolveRun; budget > 0; budget-- {
		if len(l.path) > 0 {
			l.step()
			continue
		}
		for ; ref < end && budget > 0; budget-- {
			e := t.entry(ref)
			if e.seq != 0 && e.flags != 0 {
				l.path = append(l.path, step{ref, e.seq})
				break
			}
			ref++
		}
		if ref == end {
			break
		}
	}
	return ref
}

// step looks at the last record of the path: up to its parent if that has to be linked
// first, or its depth is set.
func (l *linker) step() {
	t, last := l.t, len(l.path)-1
	at := l.path[last]
	e := t.entry(at.ref)
	if e.seq != at.seq {
		l.path = l.path[:0] // gone meanwhile: once more from below
		return
	}
	if e.isPending() {
		e.parent, e.depth, e.flags = t.findHash(e.awaited()), 0, unsure
	}
	ref := t.validParent(e)
	if ref == NoRef {
		e.place(NoRef, nil)
	} else if p := t.entry(ref); p.flags != 0 {
		l.path = append(l.path, step{ref, p.seq})
		return
	} else {
		e.place(ref, p)
	}
	t.cold.lower(at.ref, t.order(e))
	l.path = l.path[:last]
}

// raiseRange goes from the last slot to the first, since the ends of chains most often
// lie after their heads: an ancestor is then raised once and not by each of its
// descendants. Where it is otherwise the coarse ticks of loaded records bound the
// work.
func (t *Table) raiseRange(r Range) {
	up := climb{t: t, rest: NoRef}
	for end := r.Base + Ref(r.Slots); end > r.Base || up.rest != NoRef; {
		end = up.run(r.Base, end)
	}
}

// run raises the ancestors of the slots from end down to begin for one hold of the lock
// and returns where it stopped.
func (up *climb) run(begin, end Ref) Ref {
	t := up.t
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		up.rest = NoRef
		return begin
	}
	up.resume()
	for budget := raiseRun; budget > 0; budget-- {
		budget -= up.climb(budget)
		if up.rest != NoRef {
			continue
		}
		if end == begin {
			break
		}
		end--
		if e := t.entry(end); e.seq != 0 {
			up.rest, up.tick = t.validParent(e), e.tick()
		}
	}
	up.pause()
	return end
}
