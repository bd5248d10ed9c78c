package host_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// farTier is a slow tier that wants to be asked for much at one time.
type farTier struct {
	store.Tier
	batch int // in bytes
	mu    sync.Mutex
	asked []int
}

func (f *farTier) BatchBytes() int { return f.batch }

func (f *farTier) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	f.mu.Lock()
	f.asked = append(f.asked, len(ops))
	f.mu.Unlock()
	f.Tier.Read(ctx, ops, done)
}

// tiers is a cache in front of a chain of two.
type tiers struct {
	t          *testing.T
	fast, slow *tiertest.Memory
	far        *farTier
	cache      *host.Cache
	account    *host.Account
	ns         connector.NamespaceDigest
}

func newTiers(t *testing.T) *tiers {
	t.Helper()
	r := &tiers{t: t, fast: tiertest.NewMemory(tiertest.Options{Name: "disk"}), slow: tiertest.NewMemory(tiertest.Options{Name: "object"})}
	r.far = &farTier{Tier: r.slow, batch: 40 * payloadBytes}
	chain := store.NewChain(r.fast, r.far)
	var err error
	if r.ns, err = chain.OpenNamespace(manifests.Model("m")); err != nil {
		t.Fatal(err)
	}
	a, err := host.New(host.Options{Bytes: 16 << 20, PopulateAheadBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.cache = host.NewCache(a, chain)
	if r.account, err = a.Account(host.AccountOptions{Namespace: r.ns}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.account.Close()
		if err := chain.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil { // a slot that was not released
			t.Error(err)
		}
	})
	return r
}

func (r *tiers) record(n int) store.Record {
	rec := record(n)
	rec.ID.Namespace = r.ns
	return rec
}

func (r *tiers) write(w store.Writer, numbers ...int) {
	r.t.Helper()
	var all sync.WaitGroup
	for _, n := range numbers {
		all.Add(1)
		op := &store.WriteOp{Record: r.record(n), Payload: store.AlignedBuffer(payloadBytes)}
		copy(op.Payload, content(op.ID))
		if _, err := w.Write([]*store.WriteOp{op}, func(*store.WriteOp) { all.Done() }); err != nil {
			r.t.Fatal(err)
		}
	}
	all.Wait()
}

// prefetch has records [first, first+n) read before their load.
func (r *tiers) prefetch(first, n int) *host.Prefetches {
	r.t.Helper()
	p, err := host.NewPrefetches(r.cache, r.ns, func(connector.Shard) bool { return true })
	if err != nil {
		r.t.Fatal(err)
	}
	blocks := make([]connector.PlanBlock, n)
	for i := range blocks {
		rec := r.record(first + i)
		blocks[i] = connector.PlanBlock{Key: rec.ID.Key, Proof: rec.Proof}
	}
	p.Prefetch(r.ns, []connector.Shard{0}, r.record(first).Parent, blocks)
	return p
}

// load counts records by the tier that their loads say they came from.
func (r *tiers) load(first, n int) map[string]int {
	r.t.Helper()
	var mu sync.Mutex
	out := map[string]int{}
	r.cache.Load(r.t.Context(), r.t.Context(), r.account, n, func(it *host.Item) error {
		it.Record, it.PayloadBytes = r.record(first+it.Index), payloadBytes
		return nil
	}, func(it *host.Item) {
		mu.Lock()
		defer mu.Unlock()
		if it.Err != nil {
			r.t.Error(it.Err)
			return
		}
		out[it.From]++
		it.Slot.Release()
	})
	return out
}

// What was read before its load, each tier in its own turn and batches, is counted by the tier that it came from.
func TestReadsBeforeLoadsWaitForTheTierTheyReadFrom(t *testing.T) {
	r := newTiers(t)
	r.write(r.fast, numbers(0, 20)...)
	r.write(r.slow, numbers(10, 120)...)
	r.fast.SetSpeed(store.Speed{QueuedBytes: 1}) // the disk is busy with loads
	p := r.prefetch(20, 100)
	defer p.Close()
	until(t, "what the slow tier has waits for the fast one", func() bool { return r.cache.Stats().Prefetched == 100 })
	r.far.mu.Lock()
	asked := slices.Clone(r.far.asked)
	r.far.mu.Unlock()
	if !slices.Equal(asked, []int{40, 40, 20}) {
		t.Errorf("the slow tier was asked for %v records", asked)
	}
	r.slow.SetSpeed(store.Speed{QueuedBytes: 1})
	r.fast.SetSpeed(store.Speed{})
	q := r.prefetch(0, 20)
	defer q.Close()
	until(t, "what the fast tier has waits for the slow one", func() bool { return r.cache.Stats().Prefetched == 120 })
	if got := r.load(0, 120); got["disk"] != 20 || got["object"] != 100 {
		t.Errorf("loads say that records came from %v", got)
	}
	if got := r.load(0, 120); got[""] != 120 {
		t.Errorf("in memory: %v", got)
	}
}

// A load that joins the read of another says where that came from.
func TestLoadsThatJoinNameTheTierThatDelivers(t *testing.T) {
	r := newTiers(t)
	r.write(r.fast, 0)
	r.write(r.slow, 1)
	resume := r.slow.Stall()
	held := r.fast.Stall()
	froms := make(chan map[string]int, 2)
	for range 2 {
		go func() { froms <- r.load(0, 2) }()
	}
	until(t, "no load joins", func() bool { return r.cache.Stats().Joined == 2 })
	resume()
	held()
	for range 2 {
		if got := <-froms; got["disk"] != 1 || got["object"] != 1 {
			t.Errorf("a load says that records came from %v", got)
		}
	}
}

// What a slower tier delivers for any parent goes to the first tier with its own.
func TestRecordsForAnyParentArePromotedWithTheirOwn(t *testing.T) {
	r := newTiers(t)
	r.write(r.slow, 3)
	r.cache.Load(t.Context(), t.Context(), r.account, 1, func(it *host.Item) error {
		it.Record, it.PayloadBytes = r.record(3), payloadBytes
		it.Parent, it.AnyParent = connector.Key{}, true
		return nil
	}, func(it *host.Item) {
		if it.Err != nil || it.Parent != r.record(3).Parent {
			t.Errorf("%v, parent %v", it.Err, it.Parent)
		}
		it.Slot.Release()
	})
	for _, parent := range []connector.Key{r.record(3).Parent, {}} {
		op := &store.ReadOp{Record: r.record(3), Payload: store.AlignedBuffer(payloadBytes)}
		op.Parent = parent
		r.fast.Read(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {})
		if (op.Err == nil) != (parent == r.record(3).Parent) {
			t.Errorf("in the first tier, with parent %v: %v", parent, op.Err)
		}
	}
}
