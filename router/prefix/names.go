package prefix

import (
	"encoding/binary"
	"math/rand/v2"

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
