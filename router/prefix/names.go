package prefix

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// KeyDomain is the domain of holders whose blocks are named by [KeyID]: kvconn's own
// stores. Their blocks are held or not; in every other domain copies are counted. Nobody would give
// this name to a model or a domain of engines.
const KeyDomain = "\x00kvconn keys"

// KeyID is the name of a block in [KeyDomain]: the first 8 bytes of its key, little-endian.
func KeyID(k connector.Key) uint64 { return binary.LittleEndian.Uint64(k[:8]) }

const (
	nameShards = 16
	// tagBits is how many bits of a name's hash an entry holds, beside a place of 38 bits. The tag says
	// where an entry belongs in the table (so that a table grows and closes gaps without
	// looking at the names) and rules out nearly all other names.
	tagBits   = 26
	placeBits = 64 - tagBits
	// absentName stands for the name 0, which says that a block has none.
	absentName = 0x9e3779b97f4a7c15
)

// names is one domain's map from the engines' block names to places. It holds no names:
// an entry is a part of the name's hash and the place. The run there has the name itself.
type names struct {
	domain string
	// keyed says that names are parts of keys.
	keyed bool
	// holders is how many holders use the domain.
	holders int
	// account is a count of bytes that the map adds its own to.
	account *int64
	seed    uint64
	// warmed keeps the compiler from leaving out the reads of warm.
	warmed uint64
	shards [nameShards]nameTable
}

// nameTable is an open-addressing table with linear probing; 0 is an empty slot.
type nameTable struct {
	slots []uint64
	used  int
}

func newNames(domain string, account *int64) *names {
	// The seed keeps engines from choosing names that collide; no answer depends on it.
	d := &names{domain: domain, keyed: domain == KeyDomain, seed: rand.Uint64(), account: account}
	*account += d.bytes()
	return d
}

// normal returns a name in the form that is stored.
func normal(id uint64) uint64 {
	if id == 0 {
		return absentName
	}
	return id
}

// slot is the table of a name and its tag there.
func (d *names) slot(id uint64) (t *nameTable, tag uint64) {
	h := (id ^ d.seed) * 0x9fb21c651e98df25
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return &d.shards[h&(nameShards-1)], h >> (64 - tagBits)
}

func (t *nameTable) home(tag uint64) int { return int(tag * uint64(len(t.slots)) >> tagBits) }

func (t *nameTable) next(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

func entryPlace(e uint64) place { return place(e & (1<<placeBits - 1)) }

// nameAt is the name of the block at p, 0 if it has none.
func (d *names) nameAt(runs []*run, p place) uint64 {
	r := runs[p.run()]
	if d.keyed {
		return normal(KeyID(r.published()[p.off()]))
	}
	if n := r.namesIn(d); n != nil && int(p.off()) < len(n.ids) {
		return n.ids[p.off()]
	}
	return 0
}

// warm reads the slots that names belong in, all at once, so that the look-ups that follow
// wait for memory once and not every time.
func (d *names) warm(ids []uint64) {
	var sum uint64
	for _, id := range ids {
		t, tag := d.slot(normal(id))
		if len(t.slots) > 0 {
			sum ^= t.slots[t.home(tag)]
		}
	}
	d.warmed = sum
}

// get finds the place of a name (normal).
func (d *names) get(runs []*run, id uint64) (place, bool) {
	t, tag := d.slot(id)
	if len(t.slots) == 0 {
		return 0, false
	}
	for i := t.home(tag); ; {
		e := t.slots[i]
		if e == 0 {
			return 0, false
		}
		if e>>placeBits == tag && d.nameAt(runs, entryPlace(e)) == id {
			return entryPlace(e), true
		}
		i = t.next(i)
	}
}

// put enters the name (normal) of the block at p. If another block has it, that block's place is
// returned; with move the name is p's from now on.
func (d *names) put(runs []*run, id uint64, p place, move bool) (other place, taken bool) {
	t, tag := d.slot(id)
	if t.used >= len(t.slots)*3/4 {
		d.resize(t, max(16, t.used*2))
	}
	entry := tag<<placeBits | uint64(p)
	for i := t.home(tag); ; {
		e := t.slots[i]
		switch {
		case e == entry:
			return 0, false
		case e == 0:
			t.slots[i] = entry
			t.used++
			return 0, false
		case e>>placeBits == tag && d.nameAt(runs, entryPlace(e)) == id:
			if move {
				t.slots[i] = entry
			}
			return entryPlace(e), true
		}
		i = t.next(i)
	}
}

// drop forgets the name (normal) of the block at p.
func (d *names) drop(id uint64, p place) {
	t, tag := d.slot(id)
	if len(t.slots) == 0 {
		return
	}
	entry := tag<<placeBits | uint64(p)
	i := t.home(tag)
	for t.slots[i] != entry {
		if t.slots[i] == 0 {
			return
		}
		i = t.next(i)
	}
	t.close(i)
	t.used--
	if len(t.slots) > 64 && t.used < len(t.slots)/4 {
		d.resize(t, t.used*3/2)
	}
}

// close empties a slot and moves up the entries after it that would not be found then.
func (t *nameTable) close(gap int) {
	size := len(t.slots)
	for i := gap; ; {
		i = t.next(i)
		e := t.slots[i]
		if e == 0 {
			break
		}
		// How far back home and gap are from the entry.
		fromHome, fromGap := i-t.home(e>>placeBits), i-gap
		if fromHome < 0 {
			fromHome += size
		}
		if fromGap < 0 {
			fromGap += size
		}
		if fromHome >= fromGap {
			t.slots[gap] = e
			gap = i
		}
	}
	t.slots[gap] = 0
}

// resize moves the entries of one of the tables to another one of a given size. Entries keep their
// sequence, so it goes through both tables once.
func (d *names) resize(t *nameTable, size int) {
	old := t.slots
	t.slots = make([]uint64, size)
	for _, e := range old {
		if e == 0 {
			continue
		}
		i := t.home(e >> placeBits)
		for t.slots[i] != 0 {
			i = t.next(i)
		}
		t.slots[i] = e
	}
	*d.account += 8 * int64(size-len(old))
}

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
		x.restate(ho, r, from, ids)
	}
	x.setNames(d, r, from, ids, true)
}

// restate notes the blocks that a holder may have had under the domain's name and that get a name of its own.
func (x *Index) restate(ho *holder, r *run, from uint32, ids []uint64) {
	for i, id := range ids {
		p := makePlace(r, from+uint32(i))
		if before := ho.names.nameAt(x.runs, p); before != 0 && before != normal(id) && ho.own.nameAt(x.runs, p) == 0 {
			x.restated = append(x.restated, p)
		}
	}
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
			x.restated = append(x.restated, p)
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

func (d *names) bytes() int64 {
	const namesBytes = nameShards*32 + 64
	n := int64(namesBytes)
	for i := range d.shards {
		n += 8 * int64(len(d.shards[i].slots))
	}
	return n
}
