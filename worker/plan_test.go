package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Slots that the leader could not plan for are reported as failed, beside those that are
// loaded, and the load ends.
func TestLostSlotsAreReportedAsFailed(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	m := newEngineMemory(t)
	register(t, w, m)
	m.fill(0, 7)
	mustSave(t, w, transfer(0, 0))
	m.fill(3, 1)
	both := loadOf("both", transfer(0, 3))
	both.Lost = []uint32{9, 8}
	if n, err := w.Load(t.Context(), loads(both, connector.RequestLoad{Request: "lost", Lost: []uint32{5, 1 << 31}})); err != nil || n != 2 {
		t.Fatalf("Load = %d, %v", n, err)
	}
	for _, l := range poll(t, w, 2) {
		want := map[string][]uint32{"both": {9, 8}, "lost": {5, 1 << 31}}[l.Request]
		if !slices.Equal(l.FailedBlocks, want) {
			t.Errorf("load %s: blocks %v failed, want %v", l.Request, l.FailedBlocks, want)
		}
	}
	if !m.holds(3, 7) {
		t.Error("the block that was planned is not loaded")
	}
	if w.loads.blocks != 0 {
		t.Errorf("%d blocks still count as under way", w.loads.blocks)
	}
}

// scopeStore notes the scopes of what is written.
type scopeStore struct {
	slowStore
	scopes map[connector.Key]connector.ScopeDigest
}

func (s *scopeStore) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	for _, op := range ops {
		s.scopes[op.ID.Key] = op.Scope
		done(op)
	}
	return len(ops), nil
}

func TestScopeOfASaveReachesTheStore(t *testing.T) {
	s := &scopeStore{scopes: map[connector.Key]connector.ScopeDigest{}}
	w := newWorker(t, s, nil)
	register(t, w, newEngineMemory(t))
	tenant := connector.Scope{Salt: "tenant", LoRA: "adapter"}.Digest()
	a, b := transfer(0, 0, 1), transfer(5, 2)
	a.Scope = tenant
	if r, err := w.Save(t.Context(), saves(a, b)); err != nil || r.Taken != 3 {
		t.Fatal(r, err)
	}
	for key, want := range map[connector.Key]connector.ScopeDigest{{1}: tenant, {2}: tenant, {6}: {}} {
		if got := s.scopes[key]; got != want {
			t.Errorf("block %v is kept with scope %x, want %x", key, got, want)
		}
	}
}

func TestScopeOfAKeyedSaveReachesTheStore(t *testing.T) {
	s := &scopeStore{scopes: map[connector.Key]connector.ScopeDigest{}}
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) {
		m := *o.Manifest
		m.KeyScheme = connector.KeySchemeEngine
		o.Manifest = &m
	})
	register(t, w, newEngineMemory(t))
	for i, scope := range []connector.Scope{{Salt: "tenant"}, {}} {
		m := keyedMove("p", connector.KeyedPart{Hashes: []connector.Proof{{byte(i + 1)}}, Slots: []uint32{0}})
		m.Scope = scope
		if err := w.Put(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if r := stored(t, w, 1); r[0].Taken != 1 {
			t.Fatal(r)
		}
		if got := s.scopes[connector.Key{byte(i + 1)}]; got != scope.Digest() {
			t.Errorf("scope %x, want %x", got, scope.Digest())
		}
	}
}

// sizes says what is stored of each shard.
type sizes struct {
	slowStore
	stored map[connector.Shard]int
}

var errSizes = errors.New("other sizes are stored")

func (s *sizes) HoldPayload(_ connector.NamespaceDigest, shard connector.Shard, n int) error {
	if have, ok := s.stored[shard]; ok && have != n {
		return fmt.Errorf("%w: records have %d bytes", errSizes, have)
	}
	return nil
}

// Defect 14: an engine whose blocks are not like those that are stored is told at once.
func TestBlocksOfAnotherSizeAreRefusedAtRegistration(t *testing.T) {
	known := &sizes{stored: map[connector.Shard]int{}}
	w := newWorker(t, known, nil)
	m := newEngineMemory(t)
	register(t, w, m)
	known.stored[0] = 12345
	page, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.Close() }()
	l := testLayout()
	_, err = w.Register(t.Context(), &l, m.descriptor(), f)
	if !errors.Is(err, errSizes) || !errors.Is(err, connector.ErrBadRequest) {
		t.Fatalf("%v, want a refusal for the size", err)
	}
	for _, size := range []int{12345, layers * pieceBytes} {
		if !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("%q does not name %d bytes", err, size)
		}
	}
	if w.BlockBytes() != nil {
		t.Error("the memory counts as registered")
	}
	delete(known.stored, 0)
	register(t, w, m)
}

// Finding 30: a rank shares the host tier while it has memory registered, not from hello on.
func TestOnlyRegisteredRanksShareTheHostTier(t *testing.T) {
	s := openStore(t)
	a := newArena(t, 16<<20)
	var ranks []*Worker
	for range 3 {
		account, err := a.Account(host.AccountOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := New(Options{Namespace: testNamespace(), Driver: &gpu.HostDriver{}, Manifest: testManifest(), Cache: host.NewCache(a, s), Account: account})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		ranks = append(ranks, w)
	}
	for i, want := range []int{1, 2} {
		register(t, ranks[i], newEngineMemory(t))
		if st := a.Stats(); st.Active != want || st.Accounts != 3 {
			t.Errorf("%d of %d ranks share, want %d", st.Active, st.Accounts, want)
		}
	}
	if err := ranks[0].Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	ranks[1].Close()
	if n := a.Stats().Active; n != 0 {
		t.Errorf("%d ranks share that have no memory", n)
	}
}
