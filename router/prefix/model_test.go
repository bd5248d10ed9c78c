package prefix

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// block is a block of one token in a random tree; its number is its token and its place
// in the tree's list.
type block struct {
	parent int // -1 at the root
	path   []int
	keys   []connector.Key // of the path
}

// randomTree makes n blocks in chains that fork now and then.
func randomTree(rng *rand.Rand, n int) []block {
	blocks := make([]block, n)
	for i := range blocks {
		parent := i - 1
		switch {
		case i == 0 || rng.IntN(200) == 0:
			parent = -1
		case rng.IntN(40) == 0:
			parent = rng.IntN(i)
		}
		b := &blocks[i]
		b.parent = parent
		var key connector.Key
		if parent >= 0 {
			key = blocks[parent].keys[len(blocks[parent].keys)-1]
			b.path, b.keys = blocks[parent].path, blocks[parent].keys
		}
		key, _ = connector.NextKey(key, connector.AppendTokens(nil, []uint32{uint32(i)}), nil)
		b.path = append(slices.Clip(b.path), i)
		b.keys = append(slices.Clip(b.keys), key)
	}
	return blocks
}

// modelHolder is a holder as a set of blocks with a count each.
type modelHolder struct {
	h      Holder
	tier   Tier
	domain string
	salt   uint64
	count  []int
	// predicted are the deadlines by block.
	predicted []int64
}

func (m *modelHolder) has(b int, now int64) bool { return m.count[b] > 0 || m.predicted[b] > now }

// model is the simple exact index: sets per block, walks by definition.
type model struct {
	t       *testing.T
	x       *Index
	rng     *rand.Rand
	blocks  []block
	holders []*modelHolder
	ranks   []Rank
	byRank  [][]*modelHolder
	view    *Ranks
	now     int64
	// alive counts the holdings of a block and of all below it; a block is known while it
	// is above 0.
	alive []int
	// exactNames says that all holders of a domain agree on names, so that it is known
	// which parents the index knows.
	exactNames bool
	// bounded says that the index forgets, so that it may know less than the model.
	bounded bool
	named   map[string][]bool
	// spots are of predictions that have not ended since.
	spots []foretold

	scratch Scratch
	tokens  []uint32
	out     []Result
}

func newModel(t *testing.T, number, blocks int, odd bool, o Options) *model {
	rng := seed.Random(t, number)
	x, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, x: x, rng: rng, blocks: randomTree(rng, blocks), alive: make([]int, blocks), exactNames: !odd, named: map[string][]bool{}}
	add := func(tier Tier, domain string, salt uint64) *modelHolder {
		h, err := x.AddHolder(domain)
		if err != nil {
			t.Fatal(err)
		}
		e := &modelHolder{h: h, tier: tier, domain: domain, salt: salt, count: make([]int, blocks), predicted: make([]int64, blocks)}
		m.holders = append(m.holders, e)
		if m.named[domain] == nil {
			m.named[domain] = make([]bool, blocks)
		}
		return e
	}
	disks := []*modelHolder{add(Disk, KeyDomain, 0), add(Disk, KeyDomain, 0), add(Disk, "engine disk", 9)}
	bucket := add(Object, KeyDomain, 0)
	for i := range 24 {
		domain, salt := "a", uint64(1)
		if i%6 == 5 {
			domain, salt = "b", 2
		}
		if odd && i%8 == 3 {
			salt = uint64(100 + i)
		}
		gpu := add(GPU, domain, salt)
		rank, of := Rank{GPU: gpu.h, HasGPU: true}, []*modelHolder{gpu}
		if i%4 > 0 {
			d := disks[i%3]
			rank.Disks, of = append(rank.Disks, d.h), append(of, d)
		}
		if i%5 == 0 {
			rank.Disks, of = append(rank.Disks, disks[(i+1)%3].h), append(of, disks[(i+1)%3])
		}
		if i%2 > 0 {
			rank.Objects, of = []Holder{bucket.h}, append(of, bucket)
		}
		m.ranks, m.byRank = append(m.ranks, rank), append(m.byRank, of)
	}
	m.ranks, m.byRank = append(m.ranks, Rank{}, Rank{Disks: []Holder{disks[0].h}}), append(m.byRank, nil, []*modelHolder{disks[0]})
	if m.view, err = NewRanks(m.ranks); err != nil {
		t.Fatal(err)
	}
	m.out = make([]Result, len(m.ranks))
	return m
}

func (m *model) id(h *modelHolder, b int) uint64 {
	if h.domain == KeyDomain {
		k := m.blocks[b].keys
		return KeyID(k[len(k)-1])
	}
	return uint64(b+1)*0x9e3779b97f4a7c15 ^ h.salt*0xbf58476d1ce4e5b9
}

func (m *model) live(b, by int) {
	for _, i := range m.blocks[b].path {
		if m.alive[i] += by; m.alive[i] == 0 {
			for _, named := range m.named {
				named[i] = false
			}
		}
	}
}

// store lets a holder store a part of a path, and checks what the index says of it.
func (m *model) store() {
	h := m.holders[m.rng.IntN(len(m.holders))]
	path := m.blocks[m.rng.IntN(len(m.blocks))].path
	from := max(0, len(path)-1-m.rng.IntN(40))
	if m.rng.IntN(3) == 0 {
		from = 0
	}
	keys := m.blocks[path[len(path)-1]].keys[from:]
	path = path[from:]
	ids := make([]uint64, len(path))
	for i, b := range path {
		ids[i] = m.id(h, b)
	}
	var parent uint64
	known := true
	if from > 0 {
		p := m.blocks[path[0]].parent
		parent, known = m.id(h, p), m.named[h.domain][p]
		if k, ok := m.x.ParentKey(h.h, parent); ok && k != m.blocks[p].keys[from-1] || ok != known && m.exactNames {
			m.t.Fatalf("ParentKey of block %d: %v %v, known %v", p, k, ok, known)
		}
	}
	err := m.x.Stored(h.h, parent, from > 0, ids, keys)
	if errors.Is(err, ErrUnknownParent) && (!known || !m.exactNames) {
		return
	}
	if err != nil || !known && m.exactNames {
		m.t.Fatalf("Stored after %d blocks: %v, parent known: %v", from, err, known)
	}
	for _, b := range path {
		if h.domain == KeyDomain && h.count[b] > 0 {
			continue
		}
		if h.count[b]++; h.count[b] == 1 {
			m.live(b, 1)
		}
		m.named[h.domain][b] = true
	}
}

// remove lets a holder drop blocks of one path: its tail, its head, or any.
func (m *model) remove() {
	h := m.holders[m.rng.IntN(len(m.holders))]
	path := m.blocks[m.rng.IntN(len(m.blocks))].path
	n := min(len(path), 1+m.rng.IntN(80))
	var drop []int
	switch m.rng.IntN(4) {
	case 0, 1:
		drop = slices.Clone(path[len(path)-n:])
		slices.Reverse(drop)
	case 2:
		drop = path[:n]
	default:
		for range 1 + m.rng.IntN(3) {
			drop = append(drop, path[m.rng.IntN(len(path))])
		}
	}
	m.drop(h, drop)
}

func (m *model) drop(h *modelHolder, blocks []int) {
	unknown := 0
	var ids []uint64
	for _, b := range blocks {
		ids = append(ids, m.id(h, b))
		if h.count[b] == 0 {
			unknown++
			continue
		}
		if h.count[b]--; h.count[b] == 0 {
			m.live(b, -1)
		}
	}
	if got := m.x.Removed(h.h, ids); got != unknown && !m.bounded || got < unknown {
		m.t.Fatalf("Removed of %v: %d unknown, want %d", blocks, got, unknown)
	}
}

func (m *model) clear(h *modelHolder) {
	m.x.Clear(h.h)
	for b, n := range h.count {
		if n > 0 {
			m.live(b, -1)
		}
		if h.predicted[b] > 0 {
			m.live(b, -1)
		}
		h.count[b], h.predicted[b] = 0, 0
	}
	m.forgetEnded()
}

// foretold is a path that was predicted for a holder.
type foretold struct {
	h    *modelHolder
	path []int
	spot Spot
}

// forgetEnded forgets the spots of predictions that have ended.
func (m *model) forgetEnded() {
	m.spots = slices.DeleteFunc(m.spots, func(f foretold) bool { return f.h.predicted[f.path[len(f.path)-1]] == 0 })
}

// extend has predictions of one path last longer.
func (m *model) extend() {
	if len(m.spots) == 0 {
		return
	}
	f := m.spots[m.rng.IntN(len(m.spots))]
	deadline := m.now + 1 + m.rng.Int64N(50)
	m.x.Extend(f.h.h, f.spot, time.Unix(0, deadline))
	for _, b := range f.path {
		f.h.predicted[b] = max(f.h.predicted[b], deadline)
	}
}

// predict foretells a path for a holder until some time.
func (m *model) predict() {
	h := m.holders[m.rng.IntN(len(m.holders))]
	end := m.blocks[m.rng.IntN(len(m.blocks))]
	deadline := m.now + 1 + m.rng.Int64N(50)
	spot, err := m.x.Predict(h.h, end.keys, time.Unix(0, deadline))
	if err != nil {
		m.t.Fatal(err)
	}
	m.spots = append(m.spots, foretold{h, end.path, spot})
	for _, b := range end.path {
		if h.predicted[b] == 0 {
			m.live(b, 1)
		}
		h.predicted[b] = max(h.predicted[b], deadline)
	}
}

func (m *model) expire() {
	m.now++
	m.x.Expire(time.Unix(0, m.now))
	for _, h := range m.holders {
		for b, deadline := range h.predicted {
			if deadline > 0 && deadline <= m.now {
				h.predicted[b] = 0
				m.live(b, -1)
			}
		}
	}
	m.forgetEnded()
}

// want is the definition of a result.
func (m *model) want(holders []*modelHolder, path []int) (r Result) {
	has := func(b int, t Tier) bool {
		return slices.ContainsFunc(holders, func(h *modelHolder) bool { return h.tier == t && h.has(b, m.now) })
	}
	stretch := func(from int, t Tier) int {
		n := from
		for n < len(path) && has(path[n], t) {
			n++
		}
		return n - from
	}
	gpu := stretch(0, GPU)
	disk := stretch(gpu, Disk)
	r.GPU, r.Disk, r.Object = int32(gpu), int32(disk), int32(stretch(gpu+disk, Object))
	for _, b := range path {
		switch {
		case has(b, GPU):
			r.FromGPU++
		case has(b, Disk):
			r.FromDisk++
		case has(b, Object):
			r.FromObject++
		default:
			return r
		}
		r.Usable++
	}
	return r
}

// walk compares a walk with the definition, for every rank.
func (m *model) walk() {
	end := m.blocks[m.rng.IntN(len(m.blocks))]
	beyond := m.rng.Uint32() | 1<<31 // no block's token
	var depth int
	if m.rng.IntN(2) == 0 {
		depth = m.x.Walk(m.view, append(slices.Clip(end.keys), connector.Key{1}), m.out)
	} else {
		m.tokens = m.tokens[:0]
		for _, b := range end.path {
			m.tokens = append(m.tokens, uint32(b))
		}
		m.tokens = append(m.tokens, beyond)
		depth = m.x.WalkTokens(m.view, testRoot, m.tokens, 1, &m.scratch, m.out)
	}
	most := 0
	for i, holders := range m.byRank {
		want := m.want(holders, end.path)
		if m.bounded {
			if got := m.out[i]; got.GPU > want.GPU || got.Usable > want.Usable || got.FromGPU+got.FromDisk+got.FromObject != got.Usable {
				m.t.Fatalf("rank %d: %+v, more than %+v", i, got, want)
			}
			continue
		}
		if m.out[i] != want {
			m.t.Fatalf("rank %d with %d blocks: %+v, want %+v", i, len(end.path), m.out[i], want)
		}
		most = max(most, int(want.Usable))
	}
	if depth != most && !m.bounded {
		m.t.Fatalf("depth %d, the longest usable prefix is %d", depth, most)
	}
}

func (m *model) step(withPredictions bool) {
	switch n := m.rng.IntN(1000); {
	case n < 300:
		m.store()
	case n < 720:
		m.remove()
	case n < 728:
		m.clear(m.holders[m.rng.IntN(len(m.holders))])
	case n < 746:
		if withPredictions {
			m.predict()
		}
	case n < 750:
		m.expire()
	case n < 756:
		if withPredictions {
			m.extend()
		}
	default:
		m.walk()
	}
}
