package worker

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

func keyedMove(id string, parts ...connector.KeyedPart) *connector.KeyedMove {
	return &connector.KeyedMove{ID: id, Parts: parts}
}

// part moves blocks of a chain by these slots; block n has the hash {n}.
func part(first int, slots ...uint32) connector.KeyedPart {
	p := connector.KeyedPart{Parent: connector.Proof{byte(first - 1)}, Slots: slots}
	for i := range slots {
		p.Hashes = append(p.Hashes, connector.Proof{byte(first + i)})
	}
	return p
}

// newKeyedWorker is a worker whose engine brings its own keys, with memory of its own.
func newKeyedWorker(t *testing.T, change func(*Options, *host.AccountOptions)) (*Worker, *engineMemory, *fence.Page) {
	t.Helper()
	w := newWorker(t, openStore(t), func(o *Options, a *host.AccountOptions) {
		o.Manifest = engineKeys()
		if change != nil {
			change(o, a)
		}
	})
	m := newEngineMemory(t)
	return w, m, register(t, w, m)
}

// mustPut saves and returns what became of it.
func mustPut(t *testing.T, w *Worker, m *connector.KeyedMove) connector.SaveResult {
	t.Helper()
	if err := w.Put(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r := stored(t, w, 1)
	if len(r) != 1 || r[0].ID != m.ID {
		t.Fatalf("%+v, want the save %q", r, m.ID)
	}
	settle(t, w)
	return r[0].SaveResult
}

func TestBlocksAreSavedAndLoadedByTheEnginesOwnKeys(t *testing.T) {
	w, m, _ := newKeyedWorker(t, nil)
	for slot := range 3 {
		m.fill(slot, 30+slot)
	}
	if r := mustPut(t, w, keyedMove("a", part(1, 0))); r.Taken != 1 {
		t.Fatalf("%+v", r)
	}
	// What is there is not written over.
	m.fill(0, 66)
	if r := mustPut(t, w, keyedMove("b", part(1, 0, 1, 2))); r.Taken != 2 || r.Present != 1 {
		t.Errorf("%+v, want 2 taken, 1 present", r)
	}
	// Several stretches are one load.
	if err := w.Fetch(t.Context(), keyedMove("f", part(1, 10, 11), part(3, 12))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); l[0].Request != "f" || len(l[0].FailedBlocks) != 0 {
		t.Errorf("%+v", l)
	}
	for i := range 3 {
		if !m.holds(10+i, 30+i) {
			t.Errorf("slot %d is wrong", 10+i)
		}
	}
	// Same key, other hash: the proof is compared.
	other := part(1, 10, 11, 12)
	other.Hashes[2][31]++
	if err := w.Fetch(t.Context(), keyedMove("f", other)); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); !slices.Equal(l[0].FailedBlocks, []uint32{12}) {
		t.Errorf("%+v, want block 12 failed", l)
	}
	// Nothing is saved after a block that cannot be.
	gap := connector.KeyedPart{Hashes: []connector.Proof{{1}, {20}, {2}, {21}}, Slots: []uint32{0, blocks, 1, 2}}
	if r := mustPut(t, w, keyedMove("c", gap)); r.Taken != 0 || r.Dropped != 2 || r.Present != 2 {
		t.Errorf("%+v, want 2 dropped, 2 present", r)
	}
	if r := mustPut(t, w, keyedMove("empty")); r != (connector.SaveResult{}) {
		t.Errorf("%+v of nothing", r)
	}
}

// The engine may not know the block before those that it asks for. Their own hashes prove them.
func TestBlocksAreLoadedWithoutTheirParent(t *testing.T) {
	for name, fresh := range map[string]bool{"from memory": false, "from disk": true} {
		t.Run(name, func(t *testing.T) {
			w, m, _ := newKeyedWorker(t, nil)
			for slot := range 3 {
				m.fill(slot, 30+slot)
			}
			mustPut(t, w, keyedMove("a", part(1, 0, 1, 2)))
			if fresh { // nothing is in the memory of another cache
				w = newWorker(t, w.opts.Cache.Tier(), func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
				register(t, w, m)
			}
			free := part(2, 11, 12)
			free.Parent, free.AnyParent = connector.Proof{}, true
			got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", free))
			if err != nil || !reflect.DeepEqual(got.Done, [][]byte{{3}}) || !m.holds(11, 31) || !m.holds(12, 32) {
				t.Errorf("%+v, %v", got, err)
			}
			// No parent is not the root, and what was read for any is found by the right one alone.
			root := part(2, 13, 14)
			root.Parent = connector.Proof{}
			if got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", part(2, 9, 10))); err != nil || !reflect.DeepEqual(got.Done, [][]byte{{3}}) {
				t.Errorf("%+v, %v with the parent", got, err)
			}
			other := free
			other.Hashes = slices.Clone(free.Hashes)
			other.Hashes[0][31]++
			if got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", other)); err != nil || got.Done[0][0]&1 != 0 {
				t.Errorf("%+v, %v of another proof", got, err)
			}
			if got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", root)); err != nil || got.Done[0][0]&1 != 0 {
				t.Errorf("%+v, %v at the root", got, err)
			}
			if err := w.Put(t.Context(), keyedMove("p", free)); !errors.Is(err, connector.ErrBadRequest) {
				t.Errorf("a save without a parent: %v", err)
			}
		})
	}
}

func TestCallsByKeyThatCannotBeAreRefused(t *testing.T) {
	w, m, _ := newKeyedWorker(t, nil)
	plain := newWorker(t, openStore(t), nil)
	register(t, plain, m)
	bare := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
	for name, tc := range map[string]struct {
		w    *Worker
		part connector.KeyedPart
		want error
	}{
		"another key scheme": {plain, part(1, 0), connector.ErrBadRequest},
		"no memory":          {bare, part(1, 0), connector.ErrNotRegistered},
		"no such group":      {w, connector.KeyedPart{Group: 1}, connector.ErrBadRequest},
		"a slot twice":       {w, part(1, 3, 4, 3), connector.ErrBadRequest},
	} {
		if err := tc.w.Fetch(t.Context(), keyedMove("f", tc.part)); !errors.Is(err, tc.want) {
			t.Errorf("fetch with %s: %v, want %v", name, err, tc.want)
		}
		if err := tc.w.Put(t.Context(), keyedMove("p", tc.part)); !errors.Is(err, tc.want) {
			t.Errorf("put with %s: %v, want %v", name, err, tc.want)
		}
	}
	m.fill(0, 1)
	mustPut(t, w, keyedMove("p", part(1, 0)))
	if err := w.Fetch(t.Context(), keyedMove("f", part(1, 5))); err != nil {
		t.Fatal(err)
	}
	if err := w.Fetch(t.Context(), keyedMove("f", part(1, 6))); !errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("a second load of one id: %v", err)
	}
	poll(t, w, 1)
}

// heldSaves is a driver whose copies out of engine memory wait.
func heldSaves(t *testing.T, began chan<- struct{}) (change func(*Options, *host.AccountOptions), release func()) {
	wake := make(chan struct{})
	release = func() {
		select {
		case <-wake:
		default:
			close(wake)
		}
	}
	t.Cleanup(release)
	d := &hookDriver{before: func(d gpu.Direction) {
		if d == gpu.Save {
			began <- struct{}{}
			<-wake
		}
	}}
	return func(o *Options, _ *host.AccountOptions) { o.Driver = d }, release
}

// A save that waits holds no call up, and each is reported once, in order.
func TestSavesByKeyAreCopiedAfterTheirCalls(t *testing.T) {
	began := make(chan struct{}, 100)
	change, release := heldSaves(t, began)
	w, m, _ := newKeyedWorker(t, change)
	for i := range 10 {
		m.fill(i, i)
		if err := w.Put(t.Context(), keyedMove(fmt.Sprint(i), part(i+1, uint32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	<-began
	if p, err := w.Poll(t.Context()); err != nil || len(p.Stored) > 0 || len(began) > 0 {
		t.Errorf("%+v, %v while the first copy is under way, %d others", p, err, len(began))
	}
	release()
	for i, s := range stored(t, w, 10) {
		if s.ID != fmt.Sprint(i) || s.Taken != 1 {
			t.Errorf("save %d: %+v", i, s)
		}
	}
	settle(t, w)
	if p, _ := w.Poll(t.Context()); len(p.Stored) > 0 {
		t.Errorf("%+v is reported again", p)
	}
}

// Memory that is given back is not copied from, and saves from it are not reported.
func TestGivenUpMemoryEndsSavesByKey(t *testing.T) {
	began := make(chan struct{}, 100)
	change, release := heldSaves(t, began)
	w, m, _ := newKeyedWorker(t, change)
	for i := range 3 {
		if err := w.Put(t.Context(), keyedMove(fmt.Sprint(i), part(i+1, uint32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	<-began
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Unregister(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for w.memory() != nil {
		time.Sleep(time.Millisecond)
	}
	release()
	<-done
	settle(t, w)
	if p, _ := w.Poll(t.Context()); len(p.Stored) > 0 || len(began) > 0 {
		t.Errorf("%+v, %d copies after the memory was given back", p, len(began))
	}
	register(t, w, m)
	if r := mustPut(t, w, keyedMove("again", part(9, 0))); r.Taken != 1 {
		t.Errorf("%+v after the next registration", r)
	}
}

func TestFencedMemoryIsNotCopiedFrom(t *testing.T) {
	w, _, page := newKeyedWorker(t, nil)
	page.Fence()
	if r := mustPut(t, w, keyedMove("p", part(1, 0, 1))); r.Dropped != 2 || r.Taken != 0 {
		t.Errorf("%+v, want 2 dropped", r)
	}
	if n := pinned(w); n != 0 {
		t.Errorf("%d bytes of the host tier stay pinned", n)
	}
}

// A save ends with the load timeout, whatever it waits for.
func TestSavesByKeyEndInTime(t *testing.T) {
	s := &slowStore{release: make(chan struct{})}
	w := newWorker(t, s, func(o *Options, a *host.AccountOptions) {
		o.Manifest, o.LoadTimeout = engineKeys(), 20e6
		a.SaveBytes = 2 * layers * pieceBytes
	})
	register(t, w, newEngineMemory(t))
	if err := w.Put(t.Context(), keyedMove("p", part(1, 0, 1, 2, 3, 4, 5, 6, 7))); err != nil {
		t.Fatal(err)
	}
	if r := stored(t, w, 1)[0]; r.Taken == 0 || r.Taken+r.Dropped != 8 {
		t.Errorf("%+v, want some taken and the rest dropped", r)
	}
	if n := w.opts.Cache.Stats().RefusedSaves; n != 1 {
		t.Errorf("%d refused saves are counted of one that waited for memory and got none", n)
	}
	close(s.release)
	settle(t, w)
}

// Where memory for saves is short, a save waits for those before it.
func TestSavesByKeyWaitForMemory(t *testing.T) {
	w, m, _ := newKeyedWorker(t, func(_ *Options, a *host.AccountOptions) { a.SaveBytes = 2 * layers * pieceBytes })
	var slots []uint32
	for i := range blocks {
		m.fill(i, i)
		slots = append(slots, uint32(i))
	}
	if r := mustPut(t, w, keyedMove("p", part(1, slots...))); r.Taken != blocks {
		t.Errorf("%+v, want all of %d taken", r, blocks)
	}
	if n := w.opts.Cache.Stats().RefusedSaves; n != 0 {
		t.Errorf("%d refused saves are counted of one that waited for memory and got it", n)
	}
}

// What the queue has no room for is dropped, and reports that nobody polls are bounded.
func TestSavesByKeyAreBounded(t *testing.T) {
	began := make(chan struct{}, 1<<20)
	change, release := heldSaves(t, began)
	w, _, _ := newKeyedWorker(t, change)
	put := func(id string, p connector.KeyedPart) error { return w.Put(t.Context(), keyedMove(id, p)) }
	if err := put("running", part(1, 0)); err != nil {
		t.Fatal(err)
	}
	<-began
	large := connector.KeyedPart{Hashes: make([]connector.Proof, connector.MaxKeyedBlocks), Slots: make([]uint32, connector.MaxKeyedBlocks)}
	for i := range large.Slots {
		large.Slots[i] = uint32(i)
	}
	for i := range 3 {
		if err := put(fmt.Sprint(i), large); err != nil {
			t.Fatal(err)
		}
	}
	if r := stored(t, w, 1); r[0].ID != "2" || r[0].Dropped != connector.MaxKeyedBlocks {
		t.Errorf("%+v, want the third dropped", r)
	}
	refused := 0
	for range maxPuts {
		if err := put("small", part(1, 1)); errors.Is(err, connector.ErrBadRequest) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("saves that nobody polls are taken without end")
	}
	release()
	if err := w.Unregister(t.Context()); err != nil {
		t.Error(err)
	}
}

// refusingTier refuses a number of writes, and writes the others at once.
type refusingTier struct {
	slowStore
	refusals int
	writes   int
}

func (s *refusingTier) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	if s.writes++; s.writes <= s.refusals {
		return 0, store.ErrBusy
	}
	for _, op := range ops {
		done(op)
	}
	return len(ops), nil
}

// A part without blocks takes no memory: there may be thousands of them in each of thousands of calls.
func TestPartsWithoutBlocksAreNotKept(t *testing.T) {
	w, m, _ := newKeyedWorker(t, nil)
	m.fill(0, 1)
	parts := slices.Insert(make([]connector.KeyedPart, connector.MaxKeyedParts-1), 5, part(1, 0))
	if stretches, err := w.keyed(w.memory(), keyedMove("p", parts...)); err != nil || len(stretches) != 1 {
		t.Errorf("%d stretches, %v", len(stretches), err)
	}
	if r := mustPut(t, w, keyedMove("p", parts...)); r.Taken != 1 {
		t.Errorf("%+v", r)
	}
	if err := w.Fetch(t.Context(), keyedMove("f", parts...)); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 0 || !m.holds(0, 1) {
		t.Errorf("%+v", l)
	}
}

// A block that the store refuses ends its part, where the copies of a part are several, too.
func TestNothingIsSavedAfterARefusedBlock(t *testing.T) {
	s := &refusingTier{refusals: 1}
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) {
		o.Manifest = engineKeys()
		o.Driver = &shapedDriver{hookDriver{before: func(gpu.Direction) {}}, gpu.Shape{Calls: 1, BatchBytes: 1}}
	})
	register(t, w, newEngineMemory(t))
	r := mustPut(t, w, keyedMove("p", part(1, 0, 1, 2, 3), part(20, 7)))
	if r.Taken != 1 || r.Dropped != 4 || s.writes != 2 {
		t.Errorf("%+v in %d writes, want the part without a refusal taken alone", r, s.writes)
	}
}

// Saves that end between an attempt to get memory and the wait for it have left memory: that is not
// the time to drop blocks.
func TestSavesByKeyMissNoMemoryThatComesFree(t *testing.T) {
	w, _, _ := newKeyedWorker(t, nil)
	if !w.awaitSave(t.Context(), 1) {
		t.Error("a save that was under way has ended, and its memory is not asked for")
	}
	if w.awaitSave(t.Context(), 0) {
		t.Error("memory is waited for that no save holds")
	}
}
