package prefix

import (
	"slices"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix/coverage"
)

const (
	// offsetBits is how many bits an offset in a run has, maxRun how many blocks a run has at most.
	// Longer stretches are runs one below the other. They are bounded so that a place fits
	// beside a good part of a hash in 64 bits (see [names]), and so that changing a run
	// costs little.
	offsetBits = 12
	maxRun     = coverage.MaxBlocks // 1 << offsetBits
	// rewriteBlocks is the largest run whose keys are copied to replace a tail that
	// was trimmed; below a longer one the new blocks become a run of their own.
	rewriteBlocks = 128
)

type run struct {
	// head is the first block's key, depth the number of blocks before it. They, the parent and
	// the offset there don't change.
	head      connector.Key
	parent    *run
	parentOff uint32
	depth     uint32

	keys  atomic.Pointer[keyArray]
	cover atomic.Pointer[coverage.Coverage]
	// seen is the index's epoch when the run was last walked or stored.
	seen atomic.Uint32

	// The rest is the writer's.

	// id is the run's number in the table of runs; 0 once the run is dropped.
	id uint32
	// written is how many of the array's keys were ever published: a walk may be
	// looking at them, although the run has been trimmed since.
	written uint32
	// reached counts the calls of regroup since it last looked at the cuts.
	reached uint32
	// counted is the memory of the run that is in the account.
	counted int32
	named   []named
	kids    []fork
}

// keyArray is an array of keys; the first n are the run's. The array is as long as
// its capacity. Published keys are never written again.
type keyArray struct {
	n    atomic.Uint32
	keys []connector.Key
}

// named are the names of a run's blocks in one domain; 0 where there is none. It is empty
// for a domain whose names are parts of keys.
type named struct {
	in  *names
	ids []uint64
}

// fork counts the runs that hang at an offset.
type fork struct{ off, count uint32 }

// place is a block's position: a run's id and the offset in it.
type place uint64

func makePlace(r *run, off uint32) place { return place(r.id)<<offsetBits | place(off) }

func (p place) run() uint32 { return uint32(p >> offsetBits) }
func (p place) off() uint32 { return uint32(p & (maxRun - 1)) }

func (r *run) len() uint32 { return r.keys.Load().n.Load() }

func (r *run) published() []connector.Key {
	a := r.keys.Load()
	return a.keys[:a.n.Load()]
}

// common is the number of equal keys at the beginning of a and b. Keys are chained: where two
// are equal, all before are equal, so one comparison may do.
func common(a, b []connector.Key) int {
	n := min(len(a), len(b))
	if n == 0 || a[n-1] == b[n-1] {
		return n
	}
	low, high := 0, n-1 // equal before low, different from high on
	for low < high {
		mid := int(uint(low+high) / 2)
		if a[mid] == b[mid] {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// append adds the first of keys after the run's last and returns how many; 0
// if they have to become a run of their own.
func (r *run) append(keys []connector.Key) int {
	a := r.keys.Load()
	n := a.n.Load()
	keys = keys[:min(len(keys), maxRun-int(n))]
	if len(keys) == 0 {
		return 0
	}
	if stale := a.keys[n:r.written]; len(stale) > 0 {
		// A trimmed tail is still there. Keys that come back are published again.
		if c := common(stale, keys); c > 0 {
			a.n.Store(n + uint32(c))
			return c
		}
		if n > rewriteBlocks {
			return 0
		}
		a = r.resize(max(n+uint32(len(keys)), n+n/2))
	}
	end := n + uint32(len(keys))
	if int(end) > len(a.keys) {
		a = r.resize(min(max(end, n+n/2), maxRun))
	}
	copy(a.keys[n:], keys)
	r.written = end
	a.n.Store(end)
	return len(keys)
}

// resize gives the run another array with room for size keys.
func (r *run) resize(size uint32) *keyArray {
	old := r.published()
	a := &keyArray{keys: make([]connector.Key, size)}
	copy(a.keys, old)
	a.n.Store(uint32(len(old)))
	r.keys.Store(a)
	if r.written > uint32(len(old)) {
		// Other blocks may take the place of the trimmed ones. What a walk has read about the old ones
		// must not come to speak of the new ones: from now on another coverage is changed, see look.
		r.cover.Store(r.cover.Load().Truncated(maxRun, nil))
	}
	r.written = uint32(len(old))
	return a
}

// look returns the run's keys and who holds them, for a walk. The two belong together: a coverage that
// was there at the same time as the array speaks of the array's keys, and always will.
func (r *run) look() ([]connector.Key, *coverage.Coverage) {
	for {
		a := r.keys.Load()
		keys, c := a.keys[:a.n.Load()], r.cover.Load()
		if r.keys.Load() == a {
			return keys, c
		}
	}
}

// regroup is called when a holder got blocks at the run's end. After as many calls as half of the cuts, those that
// are there become a group, so that the calls pay for the work.
func (r *run) regroup() {
	c := r.cover.Load()
	r.reached++
	if len(c.Cuts) < coverage.GroupHolders || int(r.reached) < len(c.Cuts)/2 {
		return
	}
	r.reached = 0
	r.cover.Store(c.Regrouped(r.len()))
}

// shrink trims the run to its first n keys, and gives memory back if that is much.
func (r *run) shrink(n uint32) {
	a := r.keys.Load()
	a.n.Store(n)
	if size := uint32(len(a.keys)); size > 64 && n < size/2 {
		r.resize(n + n/4)
	}
}

func (r *run) addKid(off uint32) {
	i, ok := r.findKid(off)
	if !ok {
		r.kids = slices.Insert(r.kids, i, fork{off: off})
	}
	r.kids[i].count++
}

func (r *run) dropKid(off uint32) {
	i, ok := r.findKid(off)
	if !ok {
		panic("prefix: a run hung where its parent knows of none")
	}
	if r.kids[i].count--; r.kids[i].count == 0 {
		if r.kids = slices.Delete(r.kids, i, i+1); len(r.kids) == 0 {
			r.kids = nil
		}
	}
}

func (r *run) findKid(off uint32) (int, bool) {
	return slices.BinarySearchFunc(r.kids, off, func(f fork, off uint32) int { return int(f.off) - int(off) })
}

// kidEnd is one more than the last offset that a run hangs at.
func (r *run) kidEnd() uint32 {
	if len(r.kids) == 0 {
		return 0
	}
	return r.kids[len(r.kids)-1].off + 1
}

// namesIn returns the run's names in a domain, or nil.
func (r *run) namesIn(d *names) *named {
	for i := range r.named {
		if r.named[i].in == d {
			return &r.named[i]
		}
	}
	return nil
}

// bytes is the memory of a run and its arrays, without its coverage.
func (r *run) bytes() int64 {
	const runBytes, namedBytes = 128 + 8, 32
	n := runBytes + 32 + connector.KeySize*len(r.keys.Load().keys) + 8*cap(r.kids)
	for _, e := range r.named {
		n += namedBytes + 8*cap(e.ids)
	}
	return int64(n)
}
