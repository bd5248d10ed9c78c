package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/host"
)

// notes is an observer that keeps what it is told.
type notes struct {
	mu     sync.Mutex
	loads  []Load
	saves  []Save
	told   []any
	waited []time.Duration
}

func (n *notes) LoadEnded(l *Load) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loads = append(n.loads, *l)
}

func (n *notes) SaveStarted(waited time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waited = append(n.waited, waited)
}

func (n *notes) SaveEnded(ctx context.Context, s *Save) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.saves, n.told = append(n.saves, *s), append(n.told, ctx.Value(noteKey{}))
}

// noteKey is of a value that a call's context has.
type noteKey struct{}

// ended waits until as many loads and saves have ended.
func (n *notes) ended(t *testing.T, loads, saves int) {
	t.Helper()
	wait.For(t, "the observer to be told", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.loads) >= loads && len(n.saves) >= saves
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.loads) != loads || len(n.saves) != saves {
		t.Errorf("told of %d loads and %d saves, want %d and %d", len(n.loads), len(n.saves), loads, saves)
	}
}

func TestObserverIsToldOfLoadsAndSaves(t *testing.T) {
	s, m, n := openStore(t), newEngineMemory(t), new(notes)
	w := newWorker(t, s, nil)
	register(t, w, m)
	mustSave(t, w, transfer(0, 0, 1, 2, 3))
	other := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Observer = n })
	register(t, other, m)
	for i, plan := range [][]byte{loads(loadOf("good", transfer(0, 8, 9))), loads(loadOf("bad", transfer(40, 8))), loads(loadOf("empty"))} {
		if _, err := other.Load(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		poll(t, other, 1)
		n.ended(t, i+1, 0)
	}
	good, bad := n.loads[0], n.loads[1]
	if good.Request != "good" || len(good.Tiers) != 1 || good.Tiers[0].Tier != "disk" || good.FailedBlocks != 0 || good.CauseKind != "" || good.Waited <= 0 || good.Took < good.Waited {
		t.Errorf("%+v", good)
	}
	if bad.Request != "bad" || len(bad.Tiers) != 0 || bad.FailedBlocks != 1 || bad.CauseKind != "gone" || bad.Cause == nil || bad.Waited >= 0 {
		t.Errorf("%+v", bad)
	}
	mustSave(t, other, transfer(20, 0, 1))
	n.ended(t, 3, 1)
	if got := n.saves[0]; got.Took <= 0 || got.Began.IsZero() || got.Blocks != 2 || got.FailedBlocks != 0 || got.Bytes != 2*int64(w.BlockBytes()[0]) {
		t.Errorf("%+v", got)
	}
	ctx := context.WithValue(t.Context(), noteKey{}, "note")
	if _, err := other.Save(ctx, saves(transfer(60, 0))); err != nil {
		t.Fatal(err)
	}
	n.ended(t, 3, 2)
	if n.told[0] != nil || n.told[1] != "note" {
		t.Errorf("the observer is told %q", n.told)
	}
}

func TestObserverIsToldHowLongQueuedSavesWait(t *testing.T) {
	n := new(notes)
	w, d, l := newLaterWorker(t, func(o *Options, _ *host.AccountOptions) { o.Observer = n })
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1))
	d.Reach(1, nil)
	wantStored(t, w, savedAs("a", 2, 0, 0))
	n.ended(t, 0, 1)
	if len(n.waited) != 1 || n.waited[0] < 0 || n.told[0] != "note" {
		t.Errorf("waited %v, told %v", n.waited, n.told)
	}
}

// A save that finds the store full is given up, and told of once.
func TestObserverIsToldOfASaveThatIsRefused(t *testing.T) {
	n := new(notes)
	w := newWorker(t, &slowStore{Tier: openStore(t), refuse: true}, func(o *Options, _ *host.AccountOptions) { o.Observer = n })
	register(t, w, newEngineMemory(t))
	if r, err := w.Save(t.Context(), saves(transfer(0, 0, 1))); err != nil || r.Taken+r.Dropped != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	n.ended(t, 0, 1)
	if got := n.saves[0]; got.Blocks != 2 || got.FailedBlocks != 2 || got.Bytes != 0 {
		t.Errorf("%+v", got)
	}
}
