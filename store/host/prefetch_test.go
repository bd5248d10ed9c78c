package host_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// prefetches returns one on the rig's cache, which the test may close before its end.
func (r *rig) prefetches() *host.Prefetches {
	r.t.Helper()
	p, err := host.NewPrefetches(r.cache, connector.NamespaceDigest{}, func(s connector.Shard) bool { return s != elsewhere })
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// elsewhere is a shard of a rank on another node.
const elsewhere = connector.Shard(7)

// ask has records [first, first+n) read.
func ask(p *host.Prefetches, first, n int) {
	blocks := make([]connector.PlanBlock, n)
	for i := range blocks {
		rec := record(first + i)
		blocks[i] = connector.PlanBlock{Key: rec.ID.Key, Proof: rec.Proof}
	}
	p.Prefetch(connector.NamespaceDigest{}, []connector.Shard{0}, record(first).Parent, blocks)
}

func (r *rig) mustLoad(first, n int) {
	r.t.Helper()
	for i, err := range r.load(r.t.Context(), r.account, numbers(first, first+n)...) {
		if err != nil {
			r.t.Errorf("record %d: %v", first+i, err)
		}
	}
}

func TestLoadFindsWhatWasReadBeforeIt(t *testing.T) {
	r := newRig(t, newFakeTier(100), 0)
	p := r.prefetches()
	defer p.Close()
	r.mustLoad(5, 2)
	rec := record(50)
	p.Prefetch(connector.NamespaceDigest{}, []connector.Shard{elsewhere}, rec.Parent, []connector.PlanBlock{{Key: rec.ID.Key, Proof: rec.Proof}})
	ask(p, 0, 40)
	until(t, "the records are not read", func() bool { return r.cache.Stats().Prefetched == 38 })
	if st := r.cache.Stats(); st.PrefetchedBytes != 38*slotBytes || st.PrefetchUsed != 0 {
		t.Errorf("%+v", st)
	}
	r.mustLoad(0, 40)
	r.mustLoad(0, 40) // the second load finds them as any other
	if st := r.cache.Stats(); st.PrefetchedBytes != 0 || st.PrefetchUsed != 38 || st.PrefetchWasted != 0 || st.PrefetchRefused != 0 || st.Misses != 2 || st.Hits != 80 {
		t.Errorf("%+v", st)
	}
	for n := range 40 {
		if got := r.tier.reads[record(n).ID]; got != 1 {
			t.Errorf("record %d was read %d times", n, got)
		}
	}
}

// A request that is scheduled at once does not read again what is being read.
func TestLoadJoinsWhatIsBeingReadBeforeIt(t *testing.T) {
	tier := newFakeTier(100)
	reading, release := make(chan struct{}), make(chan struct{})
	first := true
	tier.before = func(context.Context, *store.ReadOp) error {
		if first {
			first = false
			close(reading)
			<-release
		}
		return nil
	}
	r := newRig(t, tier, 0)
	p := r.prefetches()
	defer p.Close()
	ask(p, 0, 10)
	<-reading
	done := make(chan struct{})
	go func() { defer close(done); r.mustLoad(0, 10) }()
	until(t, "the load does not join", func() bool { return r.cache.Stats().Joined == 10 })
	close(release)
	<-done
	if st := r.cache.Stats(); st.PrefetchUsed != 10 || st.PrefetchedBytes != 0 {
		t.Errorf("%+v", st)
	}
	for n := range 10 {
		if got := tier.reads[record(n).ID]; got != 1 {
			t.Errorf("record %d was read %d times", n, got)
		}
	}
}

// A record that cannot be read is read again by its load, which reports it.
func TestFailedReadBeforeALoadCostsNothing(t *testing.T) {
	tier := newFakeTier(100)
	damaged := true
	tier.before = func(_ context.Context, op *store.ReadOp) error {
		if damaged && op.ID == record(3).ID {
			return store.ErrCorrupt
		}
		return nil
	}
	r := newRig(t, tier, 0)
	p := r.prefetches()
	ask(p, 0, 6)
	until(t, "the others are not read", func() bool { return r.cache.Stats().Prefetched == 5 })
	p.Close()
	if st := r.cache.Stats(); st.UsedBytes != 0 || st.PrefetchedBytes != 5*slotBytes {
		t.Errorf("%+v", st)
	}
	for i, err := range r.load(t.Context(), r.account, numbers(0, 6)...) {
		if errors.Is(err, store.ErrCorrupt) != (i == 3) {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

// A tier is told which reads no load has asked for, and a load's own are not among them.
func TestReadsBeforeLoadsAreMarked(t *testing.T) {
	tier := newFakeTier(100)
	var mu sync.Mutex
	ahead := make(map[store.RecordID]bool)
	tier.before = func(_ context.Context, op *store.ReadOp) error {
		mu.Lock()
		defer mu.Unlock()
		ahead[op.ID] = op.Ahead
		return nil
	}
	r := newRig(t, tier, 0)
	p := r.prefetches()
	ask(p, 0, 6)
	until(t, "it is not read", func() bool { return r.cache.Stats().Prefetched == 6 })
	p.Close()
	r.mustLoad(0, 12)
	for n := range 12 {
		if ahead[record(n).ID] != (n < 6) {
			t.Errorf("record %d was read before its load: %t", n, ahead[record(n).ID])
		}
	}
}

// What is read before its load takes an eighth of the memory at most, counts as wasted if no load
// comes, and gives way to the reads of loads.
func TestReadsBeforeLoadsAreBounded(t *testing.T) {
	const limit = (4 << 20) / 8 / slotBytes
	tier := newFakeTier(2000)
	tier.queued.Store(1)
	r := newRig(t, tier, 0)
	p := r.prefetches()
	defer p.Close()
	ask(p, 0, 2*limit)
	r.mustLoad(1000, 10)
	if st := r.cache.Stats(); st.Prefetched != 0 {
		t.Errorf("%d records were read while the tier owed others", st.Prefetched)
	}
	tier.queued.Store(0)
	until(t, "it is not refused", func() bool { return r.cache.Stats().PrefetchRefused == 1 })
	if st := r.cache.Stats(); st.Prefetched != limit || st.PrefetchedBytes != limit*slotBytes {
		t.Errorf("%d records with %d bytes, want %d", st.Prefetched, st.PrefetchedBytes, limit)
	}
	r.mustLoad(0, 10) // which makes room for 10 more
	ask(p, 500, 20)
	until(t, "it is not refused again", func() bool { return r.cache.Stats().PrefetchRefused == 2 })
	if st := r.cache.Stats(); st.Prefetched != limit+10 {
		t.Errorf("%d records, want %d", st.Prefetched, limit+10)
	}
	for n := 1000; n < 1900; n += 100 {
		r.mustLoad(n, 100)
	}
	if st := r.cache.Stats(); st.PrefetchedBytes != 0 || st.PrefetchWasted != limit {
		t.Errorf("%d bytes are left, %d records were wasted, want %d", st.PrefetchedBytes, st.PrefetchWasted, limit)
	}
}

// A session that ends does not wait for a tier that hangs.
func TestCloseGivesReadsBeforeLoadsUp(t *testing.T) {
	tier := newFakeTier(100)
	reading := make(chan struct{}, 100)
	tier.before = func(ctx context.Context, _ *store.ReadOp) error {
		reading <- struct{}{}
		<-ctx.Done()
		return store.ErrTimeout
	}
	r := newRig(t, tier, 0)
	p := r.prefetches()
	for range 200 {
		ask(p, 0, 20)
	}
	<-reading
	p.Close()
	ask(p, 0, 20)
	if st := r.cache.Stats(); st.UsedBytes != 0 || st.Accounts != 1 || st.PrefetchRefused == 0 {
		t.Errorf("%+v", st)
	}
}

// froms loads records and counts them by the tier that they came from.
func (r *rig) froms(first, n int) map[string]int {
	r.t.Helper()
	var mu sync.Mutex
	out := map[string]int{}
	r.cache.Load(r.t.Context(), r.t.Context(), r.account, n, wants(numbers(first, first+n)), func(it *host.Item) {
		mu.Lock()
		defer mu.Unlock()
		out[it.From]++
		it.Slot.Release()
	})
	return out
}

// What was read before its load came from the tier, once.
func TestItemsSayThatTheyWereReadForTheirLoad(t *testing.T) {
	r := newRig(t, newFakeTier(100), 0)
	p := r.prefetches()
	defer p.Close()
	ask(p, 0, 8)
	until(t, "the records are not read", func() bool { return r.cache.Stats().Prefetched == 8 })
	if got := r.froms(0, 8); got["fake"] != 8 {
		t.Errorf("read before the load: %v", got)
	}
	if got := r.froms(0, 8); got[""] != 8 {
		t.Errorf("in memory: %v", got)
	}
}

// Whatever a client asks for, what waits to be read takes a bounded part of the daemon's memory.
func TestRequestsForReadsBeforeLoadsAreBounded(t *testing.T) {
	tier := newFakeTier(0)
	tier.queued.Store(1) // nothing is read
	r := newRig(t, tier, 0)
	p := r.prefetches()
	defer p.Close()
	blocks := make([]connector.PlanBlock, 1<<18)
	for range 3 { // the first may be taken from the queue at once
		p.Prefetch(connector.NamespaceDigest{}, []connector.Shard{0}, connector.Key{}, blocks)
	}
	if n := r.cache.Stats().PrefetchRefused; n == 0 {
		t.Error("no request is refused")
	}
}

// A load needs a block of all shards: where there is no room for all blocks, the first ones are
// there as a whole, and shards of other nodes take no room.
func TestShardsOfALoadAreReadTogether(t *testing.T) {
	const limit = (4 << 20) / 8 / slotBytes
	tier := newFakeTier(limit)
	blocks, keys := make([]connector.PlanBlock, limit), make([]connector.Key, limit)
	for i := range blocks {
		rec := record(i)
		blocks[i], keys[i] = connector.PlanBlock{Key: rec.ID.Key, Proof: rec.Proof}, rec.ID.Key
		rec.ID.Shard = 1
		tier.has[rec.ID] = true
	}
	r := newRig(t, tier, 0)
	p := r.prefetches()
	defer p.Close()
	p.Prefetch(connector.NamespaceDigest{}, []connector.Shard{elsewhere, 0, 1}, record(0).Parent, blocks)
	until(t, "there is room for all", func() bool { return r.cache.Stats().PrefetchRefused == 1 })
	for shard := range connector.Shard(2) {
		at := make([]bool, limit)
		r.cache.Present(connector.NamespaceDigest{}, shard, keys, at)
		for i, there := range at {
			if there != (i < limit/2) {
				t.Fatalf("shard %d, block %d of %d: read %t", shard, i, limit, there)
			}
		}
	}
}
