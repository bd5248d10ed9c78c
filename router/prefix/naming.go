package prefix

import "slices"

// name enters a holder's names for the blocks of r from offset from on. If the domain
// has other names for them, or the same names for other blocks, the holder gets a map of
// its own, unless it is alone in the domain: then the latest name counts.
func (x *Index) name(ho *holder, r *run, from uint32, ids []uint64) {
	d := ho.names
	if d.keyed {
		x.nameByKey(d, r, from, uint32(len(ids)))
		return
	}
	if ho.own == nil {
		done := 0
		if !x.conflicts(d, r, from, ids) {
			if done = x.setNames(d, r, from, ids, d.holders == 1); done == len(ids) {
				return
			}
		}
		if d.holders > 1 {
			ho.own = newNames("", &x.stats.Bytes)
		}
		from, ids = from+uint32(done), ids[done:]
	}
	if ho.own != nil {
		d = ho.own
	}
	x.setNames(d, r, from, ids, true)
}

// nameByKey enters the names of n blocks, which are parts of their keys.
func (x *Index) nameByKey(d *names, r *run, from, n uint32) {
	if r.namesIn(d) == nil {
		r.named = append(r.named, named{in: d})
	}
	for i, k := range r.published()[from : from+n] {
		d.put(x.runs, normal(KeyID(k)), makePlace(r, from+uint32(i)), true)
	}
}

// conflicts says whether d knows one of the blocks by another name.
func (x *Index) conflicts(d *names, r *run, from uint32, ids []uint64) bool {
	n := r.namesIn(d)
	if n == nil || int(from) >= len(n.ids) {
		return false
	}
	for i, known := range n.ids[from:min(int(from)+len(ids), len(n.ids))] {
		if known != 0 && known != normal(ids[i]) {
			return true
		}
	}
	return false
}

// setNames enters names for the blocks from an offset on, in place of known ones, and returns how many it
// entered: all of them with move, else those before the first name of another block.
func (x *Index) setNames(d *names, r *run, from uint32, ids []uint64, move bool) int {
	n := r.namesIn(d)
	if n == nil {
		r.named = append(r.named, named{in: d})
		n = &r.named[len(r.named)-1]
	}
	to := int(from) + len(ids)
	if to > len(n.ids) {
		if to > cap(n.ids) {
			grown := make([]uint64, len(n.ids), len(r.keys.Load().keys))
			copy(grown, n.ids)
			n.ids = grown
		}
		// The blocks between were trimmed or never named in this domain.
		clear(n.ids[len(n.ids):to])
		n.ids = n.ids[:to]
	}
	if known := n.ids[from:to]; !slices.Equal(known, ids) {
		d.warm(ids)
	}
	for i, id := range ids {
		id = normal(id)
		slot := &n.ids[int(from)+i]
		if *slot == id {
			continue
		}
		p := makePlace(r, from+uint32(i))
		if *slot != 0 {
			d.drop(*slot, p)
		}
		other, taken := d.put(x.runs, id, p, move)
		if taken && !move {
			*slot = 0
			return i
		}
		if taken {
			x.runs[other.run()].namesIn(d).ids[other.off()] = 0
			x.renamed = append(x.renamed, other)
		}
		*slot = id
	}
	return len(ids)
}

// dropRenamed takes from a holder the blocks whose names it has just used for others: it
// cannot have both, and no removal would name them again. Some may have got another name since.
func (x *Index) dropRenamed(h Holder, ho *holder) {
	d := ho.names
	if ho.own != nil {
		d = ho.own
	}
	for _, p := range x.renamed {
		r := x.runs[p.run()]
		if r == nil || p.off() >= r.len() || d.nameAt(x.runs, p) != 0 {
			continue
		}
		for x.release(h, ho, r, p.off(), p.off()+1) > 0 {
		}
	}
	x.renamed = x.renamed[:0]
}

// unname forgets the names of a run's blocks from offset from on, in all domains.
func (x *Index) unname(r *run, from uint32) {
	for i := range r.named {
		n := &r.named[i]
		if n.in.keyed {
			for j, k := range r.published()[from:] {
				n.in.drop(normal(KeyID(k)), makePlace(r, from+uint32(j)))
			}
			continue
		}
		for j := int(from); j < len(n.ids); j++ {
			if n.ids[j] != 0 {
				n.in.drop(n.ids[j], makePlace(r, uint32(j)))
			}
		}
		if int(from) >= len(n.ids) {
			continue
		}
		if n.ids = n.ids[:from]; cap(n.ids) > 64 && int(from) < cap(n.ids)/2 {
			n.ids = append(make([]uint64, 0, from+from/4), n.ids...)
		}
	}
}

// forgetNames takes a domain that is no longer used out of a run. The domain's map is not
// cleaned: it is dropped as a whole.
func (x *Index) forgetNames(r *run, d *names) {
	before := len(r.named)
	r.named = slices.DeleteFunc(r.named, func(n named) bool { return n.in == d })
	if len(r.named) != before {
		x.recount(r)
	}
}

// bytes is the memory of a domain's map.
func (d *names) bytes() int64 {
	const namesBytes = nameShards*32 + 64
	n := int64(namesBytes)
	for i := range d.shards {
		n += 8 * int64(len(d.shards[i].slots))
	}
	return n
}
