package prefix

const (
	// epochParts is how many times the eviction clock ticks while as many blocks are made
	// as there are: the resolution of "least recently used".
	epochParts = 64
	// evictSample is how many runs an eviction chooses from. A sample of 16 is close to exact
	// LRU and costs less than a list that every walk would have to write to.
	evictSample = 16
	// evictWhole is the largest run that is dropped at once; of a longer one the second
	// half goes first.
	evictWhole = 64
)

func (x *Index) bound() {
	for (x.stats.Blocks > x.opts.MaxBlocks || x.stats.Bytes > x.opts.MaxBytes) && x.evict() {
	}
}

// evict drops the tail of the least useful of some runs, and reports whether there was
// one. A block is not dropped before the blocks below it.
func (x *Index) evict() bool {
	var victim *run
	for seen, found := 0, 0; seen < len(x.runs) && found < evictSample; seen++ {
		if x.hand++; int(x.hand) >= len(x.runs) {
			x.hand = 1
		}
		if int(x.hand) >= len(x.runs) {
			break
		}
		r := x.runs[x.hand]
		if r == nil || r.kidEnd() == r.len() {
			continue
		}
		found++
		if victim == nil || x.lessUseful(r, victim) {
			victim = r
		}
	}
	if victim == nil {
		return false
	}
	keep, n := victim.kidEnd(), victim.len()
	if n > evictWhole {
		keep = max(keep, n/2)
	}
	x.stats.EvictedBlocks += uint64(n - keep)
	x.cutTail(victim, keep)
	x.trim(victim)
	return true
}

// lessUseful says whether a is to go before b: first the one unused for longer, then the one with
// fewer holders.
func (x *Index) lessUseful(a, b *run) bool {
	epoch := x.epoch.Load()
	ageA, ageB := epoch-a.seen.Load(), epoch-b.seen.Load()
	if ageA != ageB {
		return ageA > ageB
	}
	return a.cover.Load().Holders() < b.cover.Load().Holders()
}

// cutTail takes the blocks from offset keep on from all holders that have them or are expected to.
func (x *Index) cutTail(r *run, keep uint32) {
	end := r.len()
	r.cover.Store(r.cover.Load().Truncated(keep, func(h Holder, lost uint32) {
		ho := x.holders[h]
		ho.blocks -= int64(lost)
		ho.evicted = true
		for i := keep; i < end && len(ho.copies) > 0; i++ {
			x.dropCopies(ho, makePlace(r, i))
		}
	}))
	x.recount(r)
}

// Evicted says that the index has forgotten blocks of a holder because of its bounds, since the holder was
// cleared last: then [ErrUnknownParent] does not mean that events of the holder were missed.
func (x *Index) Evicted(h Holder) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	return ho != nil && ho.evicted
}
