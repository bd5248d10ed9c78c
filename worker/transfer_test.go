package worker

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

func mustSave(t *testing.T, w *Worker, ts ...connector.Transfer) {
	t.Helper()
	want := 0
	for _, x := range ts {
		want += len(x.Blocks)
	}
	before := w.Stats().SavedBlocks
	r, err := w.Save(t.Context(), saves(ts...))
	if err != nil || r.Taken != want {
		t.Fatalf("Save = %+v, %v; want %d taken", r, err, want)
	}
	settle(t, w)
	if got := w.Stats().SavedBlocks - before; got != uint64(want) {
		t.Fatalf("%d blocks saved, want %d", got, want)
	}
}

// A report says where the blocks came from; one that has failed counts for no tier.
func TestReportSaysWhereBlocksCameFrom(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	mustSave(t, w, transfer(0, 0, 1, 2, 3))
	other := newWorker(t, s, nil) // its host tier is empty
	register(t, other, m)
	brought := func(missing uint32, slots ...uint32) map[string]connector.TierBlocks {
		t.Helper()
		ts := []connector.Transfer{transfer(0, slots...)}
		if missing > 0 {
			ts = append(ts, transfer(40, missing))
		}
		if _, err := other.Load(t.Context(), loads(loadOf("r", ts...))); err != nil {
			t.Fatal(err)
		}
		l := poll(t, other, 1)[0]
		if l.Took <= 0 || (len(l.FailedBlocks) > 0) != (missing > 0) {
			t.Errorf("took %v, failed %v", l.Took, l.FailedBlocks)
		}
		out := map[string]connector.TierBlocks{}
		for _, b := range l.Tiers {
			out[b.Tier] = b
		}
		return out
	}
	const bytes = layers * pieceBytes
	disk := map[string]connector.TierBlocks{"disk": {Tier: "disk", Blocks: 2, Bytes: 2 * bytes}}
	if got := brought(0, 8, 9); !reflect.DeepEqual(got, disk) {
		t.Errorf("first load: %+v, want %+v", got, disk)
	}
	both := map[string]connector.TierBlocks{"host": {Tier: "host", Blocks: 2, Bytes: 2 * bytes}, "disk": {Tier: "disk", Blocks: 1, Bytes: bytes}}
	if got := brought(0, 8, 9, 10); !reflect.DeepEqual(got, both) {
		t.Errorf("second load: %+v, want %+v", got, both)
	}
	if got := brought(12, 8, 9, 10); got["host"].Blocks > 3 || len(got) > 1 {
		t.Errorf("a load that fails: %+v, want no more than the blocks that are there", got)
	}
}

// From disk, from the host tier of the rank that saved, and both at once.
func TestBlocksComeBackToOtherSlots(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w, other := newWorker(t, s, nil), newWorker(t, s, nil)
	register(t, w, m)
	register(t, other, m)
	for slot := range 12 {
		m.fill(slot, 50+slot)
	}
	mustSave(t, w, transfer(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
	for round, reader := range []*Worker{other, w, other} {
		for slot := range blocks {
			m.fill(slot, 1)
		}
		n, err := reader.Load(t.Context(), loads(loadOf("a", transfer(0, 15, 14, 13)), loadOf("b", transfer(8, 3, 2), transfer(10, 1, 0))))
		if err != nil || n != 2 {
			t.Fatalf("Load = %d, %v", n, err)
		}
		for _, l := range poll(t, reader, 2) {
			if len(l.FailedBlocks) != 0 {
				t.Errorf("round %d: load %s: blocks %v failed", round, l.Request, l.FailedBlocks)
			}
		}
		for slot, n := range map[int]int{15: 50, 14: 51, 13: 52, 3: 58, 2: 59, 1: 60, 0: 61, 7: 1, 12: 1} {
			if !m.holds(slot, n) {
				t.Errorf("round %d: slot %d does not hold content %d", round, slot, n)
			}
		}
	}
	if st := s.Stats(); st.Reads != 7 {
		t.Errorf("%d reads of the disk: want each block read once, by the worker that had not saved it", st.Reads)
	}
}

// A save is copied before Save returns: the engine overwrites the block at once.
func TestSaveIsCopiedBeforeItReturns(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	for round := range 20 {
		m.fill(0, round)
		if _, err := w.Save(t.Context(), saves(transfer(round, 0))); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, w)
	for round := range 20 {
		if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(round, 5)))); err != nil {
			t.Fatal(err)
		}
		if l := poll(t, w, 1); len(l[0].FailedBlocks) != 0 || !m.holds(5, round) {
			t.Errorf("block %d came back wrong (failed %v)", round, l[0].FailedBlocks)
		}
	}
}

func TestMissingAndForeignBlocksFailAloneAndLeaveMemoryAlone(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	m.fill(0, 7)
	mustSave(t, w, transfer(0, 0))
	fresh := newWorker(t, s, nil)
	register(t, fresh, m)
	for name, reader := range map[string]*Worker{"from memory": w, "from disk": fresh} {
		t.Run(name, func(t *testing.T) {
			for slot := range blocks {
				m.fill(slot, 1)
			}
			otherProof := transfer(0, 10)
			otherProof.Blocks[0].Proof[5]++
			otherParent := transfer(0, 11)
			otherParent.Parent[3]++
			// Block 1 is not stored, slot 200 not registered.
			if _, err := reader.Load(t.Context(), loads(loadOf("x", transfer(0, 8, 9, 200)), loadOf("y", otherProof), loadOf("z", otherParent))); err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, l := range poll(t, reader, 3) {
				slices.Sort(l.FailedBlocks)
				got[l.Request] = fmt.Sprint(l.FailedBlocks)
			}
			for request, want := range map[string]string{"x": "[9 200]", "y": "[10]", "z": "[11]"} {
				if got[request] != want {
					t.Errorf("load %s: blocks %s failed, want %s", request, got[request], want)
				}
			}
			if !m.holds(8, 7) {
				t.Error("the good block did not arrive")
			}
			for _, slot := range []int{9, 10, 11} {
				if !m.holds(slot, 1) {
					t.Errorf("slot %d was written though its block failed", slot)
				}
			}
		})
	}
}

// A block after the last would lie in the next layer's first, inside of the region.
func TestBlocksOutsideOfTheLayoutAreNeitherReadNorWritten(t *testing.T) {
	m := newEngineMemory(t)
	if err := m.f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	w := newWorker(t, openStore(t), nil)
	register(t, w, m)
	m.fill(0, 7)
	mustSave(t, w, transfer(0, 0))
	for slot := range blocks {
		m.fill(slot, 1)
	}
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, blocks)))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 1 || !m.holds(0, 1) {
		t.Errorf("%+v of a block that does not exist, or another was written", l)
	}
	if r, err := w.Save(t.Context(), saves(transfer(5, blocks))); err != nil || r.Dropped != 1 {
		t.Errorf("Save = %+v, %v; want the block dropped", r, err)
	}
}

func TestMemoryIsNeededAndMetadataChecked(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 1)))); !errors.Is(err, connector.ErrNotRegistered) {
		t.Errorf("Load = %v, want ErrNotRegistered", err)
	}
	if _, err := w.Save(t.Context(), saves(transfer(0, 1))); !errors.Is(err, connector.ErrNotRegistered) {
		t.Errorf("Save = %v, want ErrNotRegistered", err)
	}
	register(t, w, newEngineMemory(t))
	other := (&connector.Plan{Namespace: connector.NamespaceDigest{1}}).Append(nil)
	for name, meta := range map[string][]byte{"garbage": []byte("garbage"), "empty": nil, "other namespace": other} {
		if _, err := w.Load(t.Context(), meta); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("Load of %s = %v, want ErrBadRequest", name, err)
		}
		if _, err := w.Save(t.Context(), meta); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("Save of %s = %v, want ErrBadRequest", name, err)
		}
	}
}

func TestLayoutThatDoesNotFitIsRefused(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	for name, change := range map[string]func(*connector.Layout){
		"beyond the descriptor": func(l *connector.Layout) { l.Groups[0].Blocks++ },
		"a group too many":      func(l *connector.Layout) { l.Groups = append(l.Groups, l.Groups[0]) },
		"no bytes":              func(l *connector.Layout) { l.Groups[0] = connector.GroupLayout{} },
	} {
		l := testLayout()
		change(&l)
		_, f, err := fence.New()
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), f)
		if !errors.Is(err, connector.ErrLayout) || !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrLayout", name, err)
		}
	}
	l := testLayout()
	if _, err := w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), os.Stdin); !errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("no fence page: %v, want ErrBadRequest", err)
	}
}

func TestSavesThatFindNoRoomAreDropped(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, func(_ *Options, a *host.AccountOptions) {
		a.SaveBytes = 4 * int64(store.PayloadBufferSize(layers*pieceBytes))
	})
	register(t, w, m)
	r, err := w.Save(t.Context(), saves(transfer(0, 0, 1, 2, 3, 4, 5, 6)))
	if err != nil || r.Taken != 4 || r.Dropped != 3 {
		t.Errorf("Save = %+v, %v; want 4 taken and 3 dropped", r, err)
	}
	if n := w.opts.Cache.Stats().RefusedSaves; n != 1 {
		t.Errorf("%d refused saves are counted of one", n)
	}
	slow.refuse = true
	close(slow.release)
	settle(t, w)
	r, err = w.Save(t.Context(), saves(transfer(0, 0, 1)))
	if err != nil || r.Taken != 0 || r.Dropped != 2 {
		t.Errorf("Save with a busy store = %+v, %v; want 2 dropped", r, err)
	}
	if n := w.opts.Cache.Stats().RefusedSaves; n != 1 {
		t.Errorf("%d refused saves are counted of one: that the store is busy is no lack of memory", n)
	}
}

func TestEmptyLoadEndsAtOnce(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("r"))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 0 {
		t.Errorf("%+v", l)
	}
}

// A load of more than the rank's share of the host tier goes on as memory comes free.
func TestLoadLargerThanItsShareArrivesWhole(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, nil)
	register(t, w, m)
	for slot := range blocks {
		m.fill(slot, slot)
	}
	mustSave(t, w, transfer(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
	small := newWorker(t, s, func(_ *Options, a *host.AccountOptions) { a.LoadBytes = 1 })
	register(t, small, m)
	for slot := range blocks {
		m.fill(slot, 99)
	}
	if _, err := small.Load(t.Context(), loads(loadOf("r", transfer(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, small, 1); len(l[0].FailedBlocks) != 0 {
		t.Errorf("blocks %v failed", l[0].FailedBlocks)
	}
	for slot := range blocks {
		if !m.holds(slot, slot) {
			t.Errorf("slot %d is wrong", slot)
		}
	}
}

// The copies of loads are what the speed of the host tier is known by.
func TestLoadsAreMeasured(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	register(t, w, newEngineMemory(t))
	all := transfer(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	mustSave(t, w, all)
	for end := time.Now().Add(testWait); w.opts.Cache.Speed().BytesPerS == 0; {
		if _, err := w.Load(t.Context(), loads(loadOf("r", all))); err != nil {
			t.Fatal(err)
		}
		if poll(t, w, 1); time.Now().After(end) {
			t.Fatal("no speed is known")
		}
	}
}
