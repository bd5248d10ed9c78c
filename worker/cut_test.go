package worker

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// damagedTier has one damaged record. Records that come after it are not delivered before release is
// closed, or the read is given up.
type damagedTier struct {
	slowStore
	bad byte // first byte of its key
}

func (d *damagedTier) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	var wait sync.WaitGroup
	for _, op := range ops {
		switch n := op.ID.Key[0]; {
		case n == d.bad:
			op.Err = store.ErrCorrupt
			done(op)
		case n < d.bad:
			done(op)
		default:
			wait.Go(func() {
				select {
				case <-d.release:
				case <-ctx.Done():
					op.Err = store.ErrTimeout
				}
				done(op)
			})
		}
	}
	wait.Wait()
}

// An engine recomputes everything from the first failed block on. Nothing waits for the rest.
func TestLoadEndsWithItsFirstFailedBlock(t *testing.T) {
	for name, c := range map[string]struct {
		load   []connector.Transfer
		failed []uint32
	}{
		"one stretch": {[]connector.Transfer{transfer(0, 5, 6, 7, 8, 9)}, []uint32{7, 8, 9}},
		// Which blocks of the second come before the damaged one in the prompt is not known.
		"two stretches": {[]connector.Transfer{transfer(2, 7), transfer(20, 5, 6)}, []uint32{5, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			tier := &damagedTier{slowStore{release: make(chan struct{})}, 3}
			m := newEngineMemory(t)
			w := newWorker(t, tier, nil)
			register(t, w, m)
			for slot := range blocks {
				m.fill(slot, 1)
			}
			if _, err := w.Load(t.Context(), loads(loadOf("r", c.load...))); err != nil {
				t.Fatal(err)
			}
			got := poll(t, w, 1)[0].FailedBlocks
			if slices.Sort(got); !slices.Equal(got, c.failed) {
				t.Errorf("blocks %v failed, want %v", got, c.failed)
			}
			close(tier.release)
			settle(t, w)
			for _, slot := range c.failed {
				if !m.holds(int(slot), 1) {
					t.Errorf("slot %d was written though its block failed", slot)
				}
			}
			if st := w.Stats(); st.LoadsFailed != 1 || st.FailedBlocks != uint64(len(c.failed)) || st.LoadsInFlight != 0 || pinned(w) != 0 {
				t.Errorf("%+v, %d bytes pinned", st, pinned(w))
			}
			if more, err := w.Poll(t.Context()); len(more.Finished) > 0 || err != nil {
				t.Errorf("reported again: %v, %v", more, err)
			}
		})
	}
}

// An engine that brings its own keys keeps what has arrived: a damaged record costs nothing but what
// follows it in its part.
func TestDamageInOnePartOfALoadByKeyLeavesTheOthers(t *testing.T) {
	tier := &damagedTier{slowStore{release: make(chan struct{})}, 3}
	w := newWorker(t, tier, func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
	register(t, w, newEngineMemory(t))
	// What follows the damaged record comes only if the test lets it, and is not waited for.
	if err := w.Fetch(t.Context(), keyedMove("f", part(2, 7, 8, 9), part(1, 5))); err != nil {
		t.Fatal(err)
	}
	got := poll(t, w, 1)[0].FailedBlocks
	if slices.Sort(got); !slices.Equal(got, []uint32{8, 9}) {
		t.Errorf("blocks %v failed, want 8 and 9", got)
	}
	// A part that is read slowly goes on to its end.
	if err := w.Fetch(t.Context(), keyedMove("g", part(3, 7), part(20, 5, 6))); err != nil {
		t.Fatal(err)
	}
	for w.Stats().FailedBlocks == 2 {
		time.Sleep(time.Millisecond)
	}
	close(tier.release)
	if got := poll(t, w, 1)[0].FailedBlocks; !slices.Equal(got, []uint32{7}) {
		t.Errorf("blocks %v failed, want 7", got)
	}
	settle(t, w)
	if st := w.Stats(); st.LoadsInFlight != 0 || pinned(w) != 0 {
		t.Errorf("%+v, %d bytes pinned", st, pinned(w))
	}
}
