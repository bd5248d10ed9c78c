package index

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
)

var oneShard = []connector.Shard{0}

// TestGrowthMovesAFewBucketsWithEachRecord is defect 26: the whole table was moved within
// a batch or two.
func TestGrowthMovesAFewBucketsWithEachRecord(t *testing.T) {
	m := newModel(t)
	grown := false
	for m.table.Len() < 40_000 {
		before, moved := m.table.hashes.Region, m.table.hashes.Moved
		m.insert(1)
		if m.table.hashes.Region == before && m.table.hashes.Moved-moved > hashtable.MoveAhead {
			t.Fatalf("one record moved %d buckets", m.table.hashes.Moved-moved)
		}
		if m.table.hashes.Region != before && len(before.Buckets) > 1 {
			grown = true
			if left := len(before.Buckets) - moved; left > hashtable.MoveAhead {
				t.Fatalf("one record moved the last %d buckets", left)
			}
		}
	}
	if !grown {
		t.Error("the table did not grow")
	}
	m.check()
}

// TestHashTableIsNeverFullWhileItGrows inserts nothing but new records: the old region has to
// take them until it is moved.
func TestHashTableIsNeverFullWhileItGrows(t *testing.T) {
	table, _ := fill(t, 300_000, 100)
	if load := float64(table.Len()) / float64(len(table.hashes.Region.Buckets)*hashtable.BucketSlots); load > 0.93 {
		t.Errorf("load %.3f", load)
	}
}

// TestOldChainIsTouchedUnderTheReadLock is defect 27: an insertion below a chain that was last
// used long ago walked it under the exclusive lock.
func TestOldChainIsTouchedUnderTheReadLock(t *testing.T) {
	const blocks = 3 * placeRun
	table, chains := fill(t, blocks, blocks)
	base, err := table.AddSlots(1)
	if err != nil {
		t.Fatal(err)
	}
	table.clock.Add(1 << 20)
	end := chains[0][blocks-1]
	batch := []Insertion{{ID: ID{Key: connector.Key{1}}, Parent: end, Ref: base, Seq: blocks + 1, Bytes: 1}}
	table.mu.RLock() // a lookup that takes its time
	placed := make(chan struct{})
	go func() {
		defer close(placed)
		table.Place(batch)
	}()
	<-placed
	table.mu.RUnlock()
	for i := range Ref(blocks) {
		if age := table.Clock() - table.full(table.entry(i).tick()); age > parentLag && age < 1<<40 {
			t.Fatalf("block %d was used %d ticks ago", i, age)
		}
	}
	before := table.entry(0).use
	table.Insert(batch)
	if table.entry(0).use != before {
		t.Error("the insertion touched the chain once more")
	}
	if p := table.entry(blocks - 1); batch[0].Depth != blocks || table.entry(base).tick() != p.tick() {
		t.Errorf("the new block has depth %d and another recency than its parent", batch[0].Depth)
	}
}

// TestInsertionAloneNeverWalksAChain: a record that is not placed gets the parent's recency.
func TestInsertionAloneNeverWalksAChain(t *testing.T) {
	table, chains := fill(t, 1000, 1000)
	base, err := table.AddSlots(1)
	if err != nil {
		t.Fatal(err)
	}
	table.clock.Add(1 << 20)
	before := table.entry(0).use
	table.Insert([]Insertion{{ID: ID{Key: connector.Key{1}}, Parent: chains[0][999], Ref: base, Seq: 2000, Bytes: 1}})
	if table.entry(0).use != before || table.entry(base).tick() != table.entry(999).tick() {
		t.Error("the chain was touched, or the record is more recent than its parent")
	}
}

// TestColderRangeOfAnotherClassIsFoundFromSamples is the other half of defect 28.
func TestColderRangeOfAnotherClassIsFoundFromSamples(t *testing.T) {
	table := New()
	defer table.Close()
	const slots = 100 * groupSlots
	src := rand.NewPCG(1, 9)
	seq := uint64(0)
	add := func(class int64) (Range, []connector.Key) {
		base, err := table.AddSlots(slots)
		if err != nil {
			t.Fatal(err)
		}
		r := Range{Base: base, Slots: slots}
		table.Track(class, r, table.Clock())
		var keys []connector.Key
		for i := range Ref(slots) {
			seq++
			keys = append(keys, randomKey(src))
			table.Insert([]Insertion{{ID: ID{Key: keys[i]}, Ref: base + i, Seq: seq, Bytes: 1}})
		}
		return r, keys
	}
	any := func(Range) bool { return true }
	cold, coldKeys := add(2)
	warm, _ := add(3)
	own, _ := add(1)
	first, ok := table.Choose(1)
	if !ok || first.Ref < own.Base {
		t.Fatal("nothing chosen, or of another class")
	}
	if r, ok := table.ColdestRange(1, first.Tick(), false, any); !ok || r != cold {
		t.Errorf("coldest range %v %v, want %v", r, ok, cold)
	}
	if r, ok := table.ColdestRange(1, first.Tick(), false, func(r Range) bool { return r != cold }); !ok || r != warm {
		t.Errorf("coldest range that is usable %v %v, want %v", r, ok, warm)
	}
	// What looks cold may have been used since.
	for _, k := range coldKeys {
		_, pins := table.Prefix(0, oneShard, []connector.Key{k}, nil)
		table.Unpin(pins...)
	}
	if r, ok := table.ColdestRange(1, first.Tick(), false, any); !ok || r != warm {
		t.Errorf("coldest range after use of the other %v %v, want %v", r, ok, warm)
	}
	table.Get(ID{Key: coldKeys[0]}, true)
	if r, ok := table.ColdestRange(0, ^uint64(0), false, any); !ok || r != warm {
		t.Errorf("coldest range of all %v %v, want %v", r, ok, warm)
	}
	table.Untrack(warm)
	if r, ok := table.ColdestRange(3, ^uint64(0), false, any); !ok || r != own {
		t.Errorf("coldest range where one has a pin %v %v, want %v", r, ok, own)
	}
}

// TestRecencyOutlivesTheTicks is defect 19: ticks have 32 bits. The order of use holds over
// many times as many, and what was loaded stays older than all that was used since.
func TestRecencyOutlivesTheTicks(t *testing.T) {
	table, chains := fill(t, 640, 64)
	base, err := table.AddSlots(1)
	if err != nil {
		t.Fatal(err)
	}
	table.Track(1, Range{Base: base, Slots: 1}, 0)
	loaded := ID{Key: connector.Key{9}}
	table.Load([]Loaded{{ID: loaded, Ref: base, Seq: 1<<63 - 1, Bytes: 1, Parent: NoRef}}, nil)
	if table.full(table.entry(base).tick()) >= clockStart {
		t.Error("a record that was loaded counts as used since")
	}
	for round := range 100 {
		table.clock.Add(1 << 26)
		// All but chain 0 are used in turn.
		c := 1 + round%(len(chains)-1)
		_, pins := table.Prefix(0, oneShard, chains[c], nil)
		table.Unpin(pins...)
	}
	var order []connector.Key
	for _, r := range evictAll(table, 1000) {
		order = append(order, r.ID.Key)
	}
	if len(order) != 641 || !slices.Contains(order[:65], loaded.Key) || !slices.Contains(order[:65], chains[0][0]) {
		t.Errorf("%d victims, the oldest did not go first", len(order))
	}
	for i := range 9 {
		c := 1 + (100+i)%9
		for k := range 64 {
			if got := order[65+64*i+k]; got != chains[c][63-k] {
				t.Fatalf("victim %d is not of the chain used %d rounds ago", 65+64*i+k, 9-i)
			}
		}
	}
}

// TestChainsLoseTheirEndsFirstUnderConcurrentUse looks up and extends chains at one time, and
// evicts: no parent goes before its child. Nothing is pinned while victims are chosen, since a
// pinned record may go a little later than its order says.
func TestChainsLoseTheirEndsFirstUnderConcurrentUse(t *testing.T) {
	m := newModel(t)
	m.addSlots(64 * 64)
	var mu sync.Mutex
	var pinned sync.RWMutex
	var chains [][]connector.Key
	stop := make(chan struct{})
	var users sync.WaitGroup
	for i := range 2 {
		users.Go(func() {
			g := rand.New(rand.NewPCG(uint64(i), 5))
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				var c []connector.Key
				if len(chains) > 0 {
					c = slices.Clone(chains[g.IntN(len(chains))])
				}
				mu.Unlock()
				pinned.RLock()
				_, pins := m.table.Prefix(0, oneShard, c[:g.IntN(len(c)+1)], nil)
				m.table.Unpin(pins...)
				pinned.RUnlock()
			}
		})
	}
	free := slices.Clone(m.free)
	at := make(map[connector.Key]int) // position in the chain
	seq := uint64(0)
	for range 300 {
		if len(free) < 64 {
			pinned.Lock()
			for _, r := range evictAll(m.table, 200) {
				free = append(free, r.Ref)
			}
			pinned.Unlock()
		}
		mu.Lock()
		if len(chains) == 0 || m.g.IntN(4) == 0 {
			chains = append(chains, nil)
		}
		c := m.g.IntN(len(chains))
		chain := slices.Clone(chains[c])
		mu.Unlock()
		// The chain goes on from what is left of it.
		n := 0
		for n < len(chain) && m.table.Has(ID{Key: chain[n]}) {
			n++
		}
		chain = chain[:n]
		var batch []Insertion
		for range 1 + m.g.IntN(60) {
			if len(free) == 0 {
				break
			}
			seq++
			in := Insertion{ID: ID{Key: randomKey(m.keys)}, Ref: free[len(free)-1], Seq: seq, Bytes: 1}
			if len(chain) > 0 {
				in.Parent = chain[len(chain)-1]
			}
			free = free[:len(free)-1]
			at[in.ID.Key] = len(chain)
			chain = append(chain, in.ID.Key)
			batch = append(batch, in)
		}
		m.table.Place(batch)
		m.table.Insert(batch)
		mu.Lock()
		chains[c] = chain
		mu.Unlock()
	}
	close(stop)
	users.Wait()
	for _, chain := range chains {
		gone := false
		for i, k := range chain {
			there := m.table.Has(ID{Key: k})
			if there && gone && at[k] == i {
				t.Fatalf("block %d is there, one before it is not", i)
			}
			gone = gone || !there
		}
	}
}

// Ranges with pinned records, and such as cannot be used, do not stand before the others.
func TestPinnedRangesHideNoOther(t *testing.T) {
	table, _ := fill(t, 64*40, 1)
	r := Range{Base: 0, Slots: 64}
	table.Untrack(Range{Base: 0, Slots: 64 * 40})
	for ; r.Base < 64*40; r.Base += 64 {
		table.Track(2, r, 0)
		table.Survey(r, nil)
		if r.Base < 64*10 { // the coldest
			if _, _, ok := table.PinSlot(r.Base + 5); !ok {
				t.Fatal("no record")
			}
		}
	}
	for range 2 {
		got, ok := table.ColdestRange(1, ^uint64(0), false, func(r Range) bool { return r.Base >= 64*20 })
		if want := (Range{Base: 64 * 20, Slots: 64}); !ok || got != want {
			t.Fatalf("%v, %v, want %v", got, ok, want)
		}
	}
}

// A range that is in use is not taken for an empty one.
func TestPinnedRangeIsNotCold(t *testing.T) {
	table, chains := fill(t, 64*8, 64)
	table.Untrack(Range{Base: 0, Slots: 64 * 8})
	for r := (Range{Base: 0, Slots: 64}); r.Base < 64*8; r.Base += 64 {
		table.Track(2, r, 0)
		table.Survey(r, nil)
	}
	var pins []Ref
	for _, chain := range chains[:6] {
		_, pins = table.Prefix(0, []connector.Shard{0}, chain, pins)
	}
	any := func(Range) bool { return true }
	if got, ok := table.ColdestRange(1, ^uint64(0), false, any); !ok || got.Base != 64*6 {
		t.Errorf("%v, %v while the others are pinned", got, ok)
	}
	table.Unpin(pins...)
	if got, ok := table.ColdestRange(1, ^uint64(0), false, any); !ok || got.Base != 64*6 {
		t.Errorf("%v, %v when they were used last", got, ok)
	}
}
