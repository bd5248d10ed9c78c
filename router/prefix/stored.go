package prefix

import (
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

// Stored says that a holder has blocks that follow the block which its engine calls parent;
// without hasParent they begin a prompt. keys are the blocks' chained keys, ids the
// engine's names for them. A block stored n times has to be removed n times, except in
// [KeyDomain].
//
// Errors: ErrUnknownHolder; ErrUnknownParent; ErrChain, with the blocks before the wrong one
// stored. The slices are not kept.
func (x *Index) Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error {
	if len(ids) != len(keys) {
		return fmt.Errorf("prefix index: %d names for %d blocks", len(ids), len(keys))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ho := x.holder(h)
	if ho == nil {
		return fmt.Errorf("%w: %d", ErrUnknownHolder, h)
	}
	var at *run
	var next uint32 // the offset after the parent
	if hasParent {
		p, ok := x.find(h, ho, parent)
		if !ok {
			return ErrUnknownParent
		}
		at, next = x.runs[p.run()], p.off()+1
	}
	for len(keys) > 0 {
		r, from, n, err := x.locate(at, next, keys)
		if err != nil {
			return err
		}
		x.name(ho, r, from, ids[:n])
		x.hold(h, ho, r, from, from+uint32(n))
		for _, p := range x.restated { // nothing will remove the copies of the old name
			x.dropCopies(ho, p)
		}
		x.restated = x.restated[:0]
		x.recount(r)
		if len(x.renamed) > 0 {
			x.dropRenamed(h, ho)
		}
		at, next = r, from+uint32(n)
		keys, ids = keys[n:], ids[n:]
	}
	x.bound()
	return nil
}

// locate finds the place of the first n > 0 of keys, or makes it: in run r from offset
// from on. The keys follow the first next blocks of at; a nil at is the root.
func (x *Index) locate(at *run, next uint32, keys []connector.Key) (r *run, from uint32, n int, err error) {
	if at != nil {
		rest := at.published()[next:]
		if c := common(rest, keys); c > 0 {
			x.touch(at)
			return at, next, c, nil
		}
		if len(rest) == 0 && at.kidEnd() < next {
			if n := x.extend(at, keys); n > 0 {
				return at, next, n, nil
			}
		}
	}
	if r = x.heads.find(&keys[0]); r != nil {
		if r.parent != at || at != nil && r.parentOff != next-1 {
			return nil, 0, 0, fmt.Errorf("%w: %v", ErrChain, keys[0])
		}
		x.touch(r)
		return r, 0, common(r.published(), keys), nil
	}
	if at != nil && next == at.len() {
		if n := x.extend(at, keys); n > 0 {
			return at, next, n, nil
		}
	}
	r = x.addRun(at, next, keys[:min(len(keys), maxRun)])
	return r, 0, int(r.len()), nil
}

// extend adds keys after the last of a run, and returns how many.
func (x *Index) extend(r *run, keys []connector.Key) int {
	n := r.append(keys)
	x.touch(r)
	x.grew(n)
	return n
}

// addRun makes a run of keys that follow the first next blocks of at.
func (x *Index) addRun(at *run, next uint32, keys []connector.Key) *run {
	r := &run{head: keys[0], parent: at, written: uint32(len(keys))}
	if n := len(x.free); n > 0 {
		r.id, x.free = x.free[n-1], x.free[:n-1]
		x.runs[r.id] = r
	} else {
		r.id = uint32(len(x.runs))
		x.runs = append(x.runs, r)
	}
	if at != nil {
		r.parentOff, r.depth = next-1, at.depth+next
		at.addKid(next - 1)
		x.recount(at)
	}
	a := &keyArray{keys: slices.Clone(keys)}
	a.keys = a.keys[:len(keys):len(keys)]
	a.n.Store(uint32(len(keys)))
	r.keys.Store(a)
	r.cover.Store(&coverage.Coverage{})
	x.touch(r)
	x.recount(r)
	x.stats.Runs++
	x.grew(len(keys))
	x.heads.add(r)
	return r
}

// grew accounts for new blocks and advances the eviction clock.
func (x *Index) grew(blocks int) {
	x.stats.Blocks += blocks
	if x.epochBlocks += blocks; x.epochBlocks > x.stats.Blocks/epochParts {
		x.epochBlocks = 0
		x.epoch.Add(1)
	}
}

func (x *Index) touch(r *run) {
	if e := x.epoch.Load(); r.seen.Load() != e {
		r.seen.Store(e)
	}
}

// recount brings the account of the memory up to date for a run.
func (x *Index) recount(r *run) {
	n := r.bytes() + r.cover.Load().Bytes()
	x.stats.Bytes += n - int64(r.counted)
	r.counted = int32(n)
}

// hold notes that a holder has the blocks [from, to) of a run.
func (x *Index) hold(h Holder, ho *holder, r *run, from, to uint32) {
	c := r.cover.Load()
	next, got := c.Add(h, from, to, func(from, to uint32) { x.addCopies(ho, r, from, to) })
	ho.blocks += int64(got)
	if next.Count(h) == got {
		x.noteRun(h, ho, r)
	}
	if next != c {
		r.cover.Store(next)
	}
	if got > 0 && to == r.len() {
		r.regroup()
	}
}

// publish replaces a run's coverage, unless the change was made in place.
func (x *Index) publish(r *run, before, after *coverage.Coverage) {
	if after != before {
		r.cover.Store(after)
		x.recount(r)
	}
}

// addCopies counts copies of the blocks [from, to), which the holder has already.
func (x *Index) addCopies(ho *holder, r *run, from, to uint32) {
	if ho.names.keyed {
		return
	}
	if ho.copies == nil {
		ho.copies = make(map[place]uint32)
	}
	before := len(ho.copies)
	for i := from; i < to; i++ {
		if p := makePlace(r, i); len(ho.copies) < maxCopies || ho.copies[p] > 0 {
			ho.copies[p]++
		}
	}
	x.stats.Bytes += int64(copyBytes * (len(ho.copies) - before))
}

// maxCopies bounds the blocks of one holder whose copies are counted. Beyond it a block
// counts as gone when its first copy is gone: that may miss a hit, but never invents one.
const maxCopies = 1 << 20
