package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
)

const payloadBytes = 5000

// rig is a chain of a fast and a slow tier in memory with one namespace.
type rig struct {
	*testing.T
	fast, slow *tiertest.Memory
	chain      *store.Chain
	ns         connector.NamespaceDigest
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, fast: tiertest.NewMemory(tiertest.Options{Name: "fast"}), slow: tiertest.NewMemory(tiertest.Options{Name: "slow"})}
	r.chain = store.NewChain(r.fast, r.slow)
	var err error
	if r.ns, err = r.chain.OpenNamespace(manifests.Model("m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.chain.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) record(shard connector.Shard, n byte) store.Record {
	return store.Record{ID: store.RecordID{Namespace: r.ns, Shard: shard, Key: connector.Key{n}}, Proof: connector.Proof{n}}
}

func keys(n byte) (list []connector.Key) {
	for i := range n {
		list = append(list, connector.Key{i})
	}
	return list
}

func payload(n byte) []byte {
	b := store.AlignedBuffer(payloadBytes)
	for i := range b {
		b[i] = n
	}
	return b
}

// put writes blocks of a shard to a tier.
func (r *rig) put(w store.Writer, shard connector.Shard, blocks ...byte) {
	r.Helper()
	var all sync.WaitGroup
	for _, n := range blocks {
		all.Add(1)
		op := &store.WriteOp{Record: r.record(shard, n), Payload: payload(n), Scope: connector.ScopeDigest{n}}
		if _, err := w.Write([]*store.WriteOp{op}, func(op *store.WriteOp) {
			if op.Err != nil {
				r.Error(op.Err)
			}
			all.Done()
		}); err != nil {
			r.Fatal(err)
		}
	}
	all.Wait()
}

// read reads blocks of shard 0 from the chain.
func (r *rig) read(blocks ...byte) []*store.ReadOp {
	ops := make([]*store.ReadOp, len(blocks))
	for i, n := range blocks {
		ops[i] = &store.ReadOp{Record: r.record(0, n), Payload: store.AlignedBuffer(payloadBytes)}
	}
	ended := make(chan *store.ReadOp, 2*len(ops))
	r.chain.Read(r.Context(), ops, func(op *store.ReadOp) { ended <- op })
	if len(ended) != len(ops) {
		r.Errorf("%d ends were reported for %d ops", len(ended), len(ops))
	}
	return ops
}

func TestChainReadsFromTheFirstTierThatDelivers(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 0, 1, 2, 3)
	r.put(r.slow, 0, 2, 3, 4)
	r.fast.Flip(r.record(0, 1).ID)
	r.fast.Flip(r.record(0, 2).ID)
	for i, op := range r.read(0, 1, 2, 3, 4, 5) {
		want := []struct {
			err  error
			from string
		}{{nil, "fast"}, {store.ErrCorrupt, ""}, {nil, "slow"}, {nil, "fast"}, {nil, "slow"}, {store.ErrGone, ""}}[i]
		if !errors.Is(op.Err, want.err) || op.From != want.from || op.Promote != (want.from == "slow") {
			t.Errorf("block %d: %v from %q, promote %v; want %v from %q", i, op.Err, op.From, op.Promote, want.err, want.from)
		}
		if op.Err == nil && (!slices.Equal(op.Payload, payload(byte(i))) || op.Scope != connector.ScopeDigest{byte(i)}) {
			t.Errorf("block %d has other bytes or another scope", i)
		}
	}
}

// A buffer that a tier may still write to is not given to the next.
func TestChainAsksNoOtherTierForABufferInUse(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 1)
	r.put(r.slow, 0, 1)
	resume := r.fast.Stall()
	defer resume()
	op := &store.ReadOp{Record: r.record(0, 1), Payload: store.AlignedBuffer(payloadBytes)}
	settled := make(chan struct{})
	op.OnSettled = func(*store.ReadOp) { close(settled) }
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r.chain.Read(ctx, []*store.ReadOp{op}, func(*store.ReadOp) {})
	if !errors.Is(op.Err, store.ErrTimeout) || op.Settled() {
		t.Errorf("%v, settled %v", op.Err, op.Settled())
	}
	resume()
	<-settled
}

// tierOf is a slow tier that does what a test says.
type tierOf struct {
	store.Tier
	read  func(ops []*store.ReadOp, done func(*store.ReadOp))
	open  func() (connector.NamespaceDigest, error)
	close func() error
}

func (t *tierOf) Read(_ context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	t.read(ops, done)
}

func (t *tierOf) Close() error { return t.close() }

func (t *tierOf) OpenNamespace(*connector.Manifest) (connector.NamespaceDigest, error) {
	return t.open()
}

// That an earlier tier had another error does not hide that a buffer is in use.
func TestChainReportsATimeoutForABufferInUse(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 1)
	r.fast.Flip(r.record(0, 1).ID)
	r.chain = store.NewChain(r.fast, &tierOf{read: func(ops []*store.ReadOp, done func(*store.ReadOp)) {
		ops[0].Err = store.ErrTimeout
		ops[0].SetSettled(false)
		done(ops[0])
	}})
	if op := r.read(1)[0]; !errors.Is(op.Err, store.ErrTimeout) || op.Settled() {
		t.Errorf("%v, settled %v", op.Err, op.Settled())
	}
	r.chain = store.NewChain(r.fast, r.slow)
}

func TestChainReadsElsewhereWhatADiskDoesNotGive(t *testing.T) {
	r := newRig(t)
	r.put(r.slow, 0, 1)
	fails := &tierOf{read: func(ops []*store.ReadOp, done func(*store.ReadOp)) {
		for _, op := range ops {
			op.Err = store.ErrIO
			done(op)
		}
	}}
	r.chain = store.NewChain(fails, r.slow)
	ops := r.read(1, 2)
	if ops[0].Err != nil || ops[0].From != "slow" || !errors.Is(ops[1].Err, store.ErrIO) {
		t.Errorf("%v from %q, and %v of a record that the slow tier does not have", ops[0].Err, ops[0].From, ops[1].Err)
	}
	r.chain = store.NewChain(r.fast, r.slow)
}

// The slow tiers read the events of the first until they are closed. What one fails to do keeps no
// other open.
func TestChainClosesTheFirstTierLast(t *testing.T) {
	var closed []string
	tier := func(name string, err error) store.Tier {
		return &tierOf{close: func() error { closed = append(closed, name); return err }}
	}
	err := store.NewChain(tier("disk", store.ErrIO), tier("far", nil), tier("farther", store.ErrTimeout)).Close()
	if !slices.Equal(closed, []string{"farther", "far", "disk"}) || !errors.Is(err, store.ErrIO) || !errors.Is(err, store.ErrTimeout) {
		t.Errorf("%v were closed, %v", closed, err)
	}
}

func TestChainAsksASlowTierForSomethingOnly(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 1)
	asked := 0
	slow := &tierOf{Tier: r.slow, read: func(ops []*store.ReadOp, done func(*store.ReadOp)) {
		asked++
		r.slow.Read(t.Context(), ops, done)
	}}
	r.chain = store.NewChain(r.fast, slow)
	r.read(1)
	if asked > 0 {
		t.Error("the slow tier is asked for records that the fast one delivered")
	}
	r.read(1, 2)
	if asked != 1 {
		t.Errorf("the slow tier is asked %d times, want once", asked)
	}
	r.chain = store.NewChain(r.fast, r.slow)
}

func TestPrefixOfAChainSpansTiers(t *testing.T) {
	r := newRig(t)
	both := []connector.Shard{0, 1}
	for _, shard := range both {
		r.put(r.fast, shard, 0, 1, 4, 5)
		r.put(r.slow, shard, 1, 2, 3)
	}
	r.put(r.fast, 0, 6) // the shards of this block are in two tiers
	r.put(r.slow, 1, 6)
	r.put(r.fast, 0, 7) // and this one lacks a shard
	r.put(r.slow, 0, 8)
	r.put(r.slow, 1, 8)
	n, lease := r.chain.Lookup(r.ns, both, keys(9), time.Minute)
	if n != 7 || lease == 0 {
		t.Fatalf("prefix of %d blocks, want 7", n)
	}
	if r.fast.Leases() == 0 || r.slow.Leases() == 0 {
		t.Errorf("%d and %d leases of the tiers, want some in both", r.fast.Leases(), r.slow.Leases())
	}
	if !r.chain.Renew(lease, time.Minute) {
		t.Error("the lease cannot be renewed")
	}
	r.chain.Release(lease)
	if r.fast.Leases() != 0 || r.slow.Leases() != 0 || r.chain.Renew(lease, time.Minute) {
		t.Error("the lease has not ended in all tiers")
	}
	// Some shards of the first block are no prefix, and pin nothing.
	if n, lease := r.chain.Lookup(r.ns, both, keys(9)[7:], time.Minute); n != 0 || lease != 0 || r.fast.Leases() != 0 {
		t.Errorf("prefix of %d blocks with lease %d", n, lease)
	}
	_, lease = r.chain.Lookup(r.ns, both, keys(3), time.Minute)
	if r.chain.Renew(lease, -time.Second); r.chain.Renew(lease, time.Minute) {
		t.Error("a lease is renewed whose parts have run out")
	}
	r.chain.Release(lease)
	for _, t := range []*tiertest.Memory{r.fast, r.slow} { // either part has ended
		_, lease = r.chain.Lookup(r.ns, both, keys(3), time.Minute)
		for id := range store.LeaseID(20) {
			t.Release(id)
		}
		if t.Leases() != 0 || r.chain.Renew(lease, time.Minute) {
			r.Errorf("a lease is renewed that has ended in tier %s", t.Name())
		}
		r.chain.Release(lease)
	}
}

func TestChainWritesToTheFirstTierAndHasWhatAnyHas(t *testing.T) {
	r := newRig(t)
	r.put(r.chain, 0, 1)
	r.put(r.slow, 0, 2)
	at := make([]bool, 4)
	r.chain.Present(r.ns, 0, keys(4), at)
	if !slices.Equal(at, []bool{false, true, true, false}) {
		t.Errorf("present %v", at)
	}
	if r.fast.Usage().Records != 1 || r.slow.Usage().Records != 1 {
		t.Error("a write went to another tier than the first")
	}
	if r.chain.PayloadBytes(r.ns, 0) != payloadBytes || r.chain.PayloadBytes(r.ns, 1) != 0 {
		t.Error("the payload size is not that of the records")
	}
	if got := r.chain.Tiers(); len(got) != 2 || got[0] != r.fast || got[1] != r.slow {
		t.Errorf("tiers %v", got)
	}
}

// What one tier refuses no other keeps.
func TestNamespacesOfAChainAreThoseOfAllTiers(t *testing.T) {
	r := newRig(t)
	r.put(r.slow, 1, 1)
	if err := r.chain.HoldPayload(r.ns, 1, 100); !errors.Is(err, store.ErrPayloadSize) {
		t.Errorf("a size that the slow tier's records do not have: %v", err)
	}
	if err := r.fast.HoldPayload(r.ns, 1, 200); err != nil {
		t.Errorf("the fast tier holds the size that was refused: %v", err)
	}
	r.fast.ReleasePayload(r.ns, 1)
	if err := r.chain.HoldPayload(r.ns, 0, 100); err != nil {
		t.Error(err)
	}
	r.chain.ReleasePayload(r.ns, 0)
	if err := r.chain.HoldPayload(r.ns, 0, 200); err != nil {
		t.Error(err)
	}
	if r.chain.CloseNamespace(r.ns); r.fast.Opened(r.ns) != 0 || r.slow.Opened(r.ns) != 0 {
		t.Error("a tier keeps a namespace open that was closed")
	}
	_ = r.slow.Close()
	other := manifests.Model("other")
	if _, err := r.chain.OpenNamespace(other); !errors.Is(err, store.ErrClosed) {
		t.Errorf("open with a tier closed: %v", err)
	}
	if r.fast.Opened(other.Digest()) != 0 {
		t.Error("the fast tier keeps a namespace open that the slow one refused")
	}
	refuses := &tierOf{open: func() (ns connector.NamespaceDigest, err error) { return ns, store.ErrClosed }}
	if _, err := store.NewChain(r.fast, refuses).OpenNamespace(other); !errors.Is(err, store.ErrClosed) || r.fast.Opened(other.Digest()) != 0 {
		t.Errorf("%v; a tier that refuses without a digest leaves the namespace open %d times", err, r.fast.Opened(other.Digest()))
	}
}

// stub finds all or none of a chain.
type stub struct {
	store.Tier
	blocks int
}

func (s *stub) Lookup(_ connector.NamespaceDigest, _ []connector.Shard, chain []connector.Key, _ time.Duration) (int, store.LeaseID) {
	return min(s.blocks, len(chain)), 7
}
func (s *stub) Present(_ connector.NamespaceDigest, _ connector.Shard, keys []connector.Key, at []bool) {
	for i := range min(s.blocks, len(keys)) {
		at[i] = true
	}
}
func (s *stub) Release(store.LeaseID) {}

func TestLookupOfAChainDoesNotAllocate(t *testing.T) {
	chain, shards := keys(200), []connector.Shard{0, 1}
	for _, c := range []*store.Chain{store.NewChain(&stub{blocks: 150}), store.NewChain(&stub{blocks: 150}, &stub{blocks: 40})} {
		if n := testing.AllocsPerRun(100, func() {
			_, lease := c.Lookup(connector.NamespaceDigest{}, shards, chain, time.Minute)
			c.Release(lease)
			c.Lookup(connector.NamespaceDigest{}, shards, nil, time.Minute)
		}); n != 0 {
			t.Errorf("%v allocations with %d tiers", n, len(c.Tiers()))
		}
	}
}

// counter counts the look-ups of a tier, and hears of uses.
type counter struct {
	store.Tier
	lookups int
	used    []string
}

func (c *counter) Lookup(ns connector.NamespaceDigest, s []connector.Shard, chain []connector.Key, ttl time.Duration) (int, store.LeaseID) {
	c.lookups++
	return c.Tier.Lookup(ns, s, chain, ttl)
}

func (c *counter) Used(_ connector.NamespaceDigest, s []connector.Shard, chain []connector.Key) {
	c.used = append(c.used, fmt.Sprint(s, len(chain)))
}

// An engine's ranks are on two nodes: its own shards are on disk, the others' in the bucket. That costs a lease for
// each tier, however long the chain is and however many ranks there are.
func TestShardsInTwoTiersTakeFewLeases(t *testing.T) {
	const shards, blocks = 8, 100
	r := newRig(t)
	var all []connector.Shard
	for s := range connector.Shard(shards) {
		all = append(all, s)
		to := store.Writer(r.fast)
		if s%2 == 1 {
			to = r.slow
		}
		for n := range byte(blocks) {
			r.put(to, s, n)
		}
	}
	fast, slow := &counter{Tier: r.fast}, &counter{Tier: r.slow}
	chain := store.NewChain(fast, slow)
	n, lease := chain.Lookup(r.ns, all, keys(blocks+20), time.Minute)
	if n != blocks || r.fast.Leases() != 1 || r.slow.Leases() != 1 || fast.lookups != 2 || slow.lookups != 1 {
		t.Errorf("%d blocks by %d and %d leases in %d and %d look-ups", n, r.fast.Leases(), r.slow.Leases(), fast.lookups, slow.lookups)
	}
	chain.Release(lease)
	if r.fast.Leases()+r.slow.Leases() != 0 {
		t.Error("leases are left")
	}
}

// Slow tiers hear what was found and touched in the first; others may listen too.
func TestSlowTiersHearOfUses(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 0, 1, 2)
	fast, slow, other := &counter{Tier: r.fast}, &counter{Tier: r.slow}, &counter{}
	chain := store.NewChain(fast, slow)
	chain.Listen(other)
	_, lease := chain.Lookup(r.ns, []connector.Shard{0}, keys(5), time.Minute)
	chain.Release(lease)
	if n, _ := chain.Lookup(r.ns, []connector.Shard{1}, keys(5), time.Minute); n != 0 {
		t.Errorf("%d blocks", n)
	}
	if want := []string{"[0] 3"}; len(fast.used) != 0 || !slices.Equal(slow.used, want) || !slices.Equal(other.used, want) {
		t.Errorf("the first heard %v, the slow one %v, another %v", fast.used, slow.used, other.used)
	}
	alone := store.NewChain(r.fast)
	alone.Listen(other)
	alone.Release(lease)
	if _, lease = alone.Lookup(r.ns, []connector.Shard{0}, keys(2), time.Minute); len(other.used) != 2 {
		t.Errorf("heard %v", other.used)
	}
	alone.Release(lease)
}

// forgetful says that it has records which it does not find.
type forgetful struct {
	store.Tier
	keeps int
}

func (f *forgetful) Lookup(ns connector.NamespaceDigest, s []connector.Shard, chain []connector.Key, ttl time.Duration) (int, store.LeaseID) {
	return f.Tier.Lookup(ns, s, chain[:min(f.keeps, len(chain))], ttl)
}

// What goes between two looks at it is no part of the prefix.
func TestPrefixEndsWhereRecordsGo(t *testing.T) {
	r := newRig(t)
	r.put(r.fast, 0, 0, 1)
	r.put(r.slow, 0, 2, 3, 4, 5)
	r.put(r.fast, 1, 0, 1, 2, 3, 4, 5)
	chain := store.NewChain(r.fast, &forgetful{Tier: r.slow, keeps: 2})
	n, lease := chain.Lookup(r.ns, []connector.Shard{0, 1}, keys(6), time.Minute)
	if n != 4 {
		t.Errorf("%d blocks, want 4", n)
	}
	chain.Release(lease)
	if r.fast.Leases()+r.slow.Leases() != 0 {
		t.Error("leases are left")
	}
}

// prefix finds a prefix block by block.
func (r *rig) prefix(shards []connector.Shard, chain []connector.Key) int {
	for n := range chain {
		for _, s := range shards {
			at := []bool{false}
			r.chain.Present(r.ns, s, chain[n:n+1], at)
			if !at[0] {
				return n
			}
		}
	}
	return len(chain)
}

// Whatever is where, the prefix is what all tiers have together, and what is found is pinned.
func TestPrefixOfRandomTiers(t *testing.T) {
	rng := seed.Random(t, 0)
	for range 30 {
		r := newRig(t)
		var shards []connector.Shard
		for s := range connector.Shard(1 + rng.IntN(4)) {
			shards = append(shards, s)
			for n := range byte(40) {
				switch p := rng.IntN(100); {
				case p < 50:
					r.put(r.fast, s, n)
				case p < 90:
					r.put(r.slow, s, n)
				case p < 99:
					r.put(r.fast, s, n)
					r.put(r.slow, s, n)
				}
			}
		}
		first := rng.IntN(40)
		chain := keys(40)[first:]
		n, lease := r.chain.Lookup(r.ns, shards, chain, time.Minute)
		if want := r.prefix(shards, chain); n != want || lease == 0 != (n == 0) {
			t.Errorf("prefix of %d blocks with lease %d, want %d", n, lease, want)
		}
		if r.chain.Release(lease); r.fast.Leases()+r.slow.Leases() != 0 {
			t.Error("leases are left")
		}
	}
}

// Tiers that have every other block each end the prefix before they are out of leases. A chain longer than what is
// looked for at one time is found whole.
func TestLongChainsOfTwoTiers(t *testing.T) {
	const blocks = 5000
	long := make([]connector.Key, blocks)
	for i := range long {
		long[i] = connector.Key{byte(i), byte(i >> 8), 1}
	}
	even, odd := &every{of: 2, at: 0, whole: 3000}, &every{of: 2, at: 1, whole: 3000}
	chain := store.NewChain(even, odd)
	if n, _ := chain.Lookup(connector.NamespaceDigest{}, []connector.Shard{0}, long[:3000], time.Minute); n != 3000 || even.leases+odd.leases != 1 {
		t.Errorf("%d blocks, %d leases", n, even.leases+odd.leases)
	}
	even.leases, odd.leases, even.whole, odd.whole = 0, 0, 10, 0
	if n, _ := chain.Lookup(connector.NamespaceDigest{}, []connector.Shard{0}, long, time.Minute); n < 2000 || even.leases+odd.leases > 2100 {
		t.Errorf("%d blocks, %d leases", n, even.leases+odd.leases)
	}
	even.leases, odd.leases, even.whole, odd.whole = 0, 0, 10, blocks
	if n, _ := chain.Lookup(connector.NamespaceDigest{}, []connector.Shard{0}, long, time.Minute); n != blocks || even.leases+odd.leases > 10 {
		t.Errorf("%d blocks, %d leases", n, even.leases+odd.leases)
	}
}

// every has one block in every few, and the first ones all.
type every struct {
	store.Tier
	of, at, whole, leases int
}

func (e *every) has(k connector.Key) bool {
	n := int(k[0]) | int(k[1])<<8
	return n < e.whole || n%e.of == e.at
}

func (e *every) Present(_ connector.NamespaceDigest, _ connector.Shard, chain []connector.Key, at []bool) {
	for i, k := range chain {
		at[i] = at[i] || e.has(k)
	}
}

func (e *every) Lookup(_ connector.NamespaceDigest, _ []connector.Shard, chain []connector.Key, _ time.Duration) (int, store.LeaseID) {
	n := slices.IndexFunc(chain, func(k connector.Key) bool { return !e.has(k) })
	if n < 0 {
		n = len(chain)
	}
	if n == 0 {
		return 0, 0
	}
	e.leases++
	return n, 1
}
