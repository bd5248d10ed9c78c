package index

import "slices"

// A span is a tracked range as a whole: the owner gives whole ranges up, those of other
// classes when their records were used before a class's next victim. Its heat is the mean tick of
// its records, estimated from a sample. It rises with every use, unnoticed, so that a
// span that looks cold is sampled once more before it is believed.
type span struct {
	Range
	made uint64 // the heat while it is empty
	heat uint64
}

const (
	// sampleGroups of a span are looked at to estimate its heat.
	sampleGroups = 16
	// warmTries is how many spans may turn out to be warmer than they looked in one choice,
	// refusedTries how many may be pinned or of no use: those stay the coldest, and must not
	// stand before all others as long as a lease or a request that hangs lasts.
	warmTries, refusedTries = 4, 64
)

// ColdestRange returns a range whose records were on average used before a tick: the coldest
// one of all classes but the one given (0 is no class). It passes over ranges in which it
// finds a pinned record, and those that usable refuses. A few ranges are looked at, and of a
// large one a sample.
func (t *Table) ColdestRange(but int64, before uint64, usable func(Range) bool) (Range, bool) {
	t.cold.choosing.Lock()
	defer t.cold.choosing.Unlock()
	var tried []Ref
	for warm := 0; warm < warmTries && len(tried) < refusedTries; {
		r, ok := t.coldestSpan(but, before, tried)
		if !ok {
			break
		}
		heat, free := t.sample(r)
		t.noteHeat(r.Range, heat)
		switch {
		case heat >= before:
			warm++
		case free && usable(r.Range):
			return r.Range, true
		}
		tried = append(tried, r.Base)
	}
	return Range{}, false
}

func (t *Table) coldestSpan(but int64, before uint64, tried []Ref) (best span, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.cold.mu.Lock()
	defer t.cold.mu.Unlock()
	for class, c := range t.cold.classes {
		if class == but {
			continue
		}
		for _, s := range c.spans {
			if s.heat < before && !slices.Contains(tried, s.Base) {
				best, before, ok = s, s.heat, true
			}
		}
	}
	return best, ok
}

// sample returns the mean tick of a sample of a span's records, and whether none of them
// is pinned.
func (t *Table) sample(s span) (heat uint64, free bool) {
	free = true
	groups := (s.Slots + groupSlots - 1) / groupSlots
	step := max(1, groups/sampleGroups)
	var sum, n uint64
	for g := uint32(0); g < groups; g += step {
		from := g * groupSlots
		if !t.sampleGroup(Range{Base: s.Base + Ref(from), Slots: min(groupSlots, s.Slots-from)}, &sum, &n) {
			free = false
		}
	}
	if n == 0 {
		return s.made, free
	}
	return sum / n, free
}

// sampleGroup counts pinned records, too: a range that is in use must not look colder for it.
func (t *Table) sampleGroup(r Range, sum, n *uint64) (free bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return true
	}
	free = true
	for ref := r.Base; ref < r.Base+Ref(r.Slots); ref++ {
		e := t.entry(ref)
		free = free && e.pins() == 0
		if e.seq != 0 {
			*sum += t.full(e.tick())
			*n++
		}
	}
	return free
}

// noteHeat keeps the heat of a tracked range.
func (t *Table) noteHeat(r Range, heat uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.cold.mu.Lock()
	defer t.cold.mu.Unlock()
	for _, c := range t.cold.classes {
		for i := range c.spans {
			if c.spans[i].Base == r.Base {
				c.spans[i].heat = heat
				return
			}
		}
	}
}
