package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
)

// unevenStore is a store that takes its time now and then.
type unevenStore struct {
	*disk.Store
	rand *lockedRand
}

// lockedRand is a generator that several goroutines use.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) n(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.IntN(n)
}

func (s unevenStore) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	if s.rand.n(3) == 0 {
		time.Sleep(time.Duration(s.rand.n(3000)) * time.Microsecond)
	}
	s.Store.Read(ctx, ops, done)
}

// owned are the slots that one request of the engine's has, and what must be in them.
type owned struct {
	slots    []uint32
	loading  bool
	first    int  // block of the chain in the first slot
	expected bool // the slots were filled with mark, and must stay so
	mark     int
}

// engineModel is an engine that loads, gives up and takes back in any order.
type engineModel struct {
	*engineMemory
	w     *Worker
	rand  *lockedRand
	page  *fence.Page
	reqs  map[string]*owned
	marks int
}

// forget ends a load that will not be reported: the slots are the engine's, who uses them.
func (e *engineModel) forget(o *owned) {
	o.loading, o.expected = false, true
	e.marks++
	o.mark = 100 + e.marks%100
	for _, s := range o.slots {
		e.fill(int(s), o.mark)
	}
}

func (e *engineModel) check(o *owned) {
	e.t.Helper()
	if !o.expected {
		return
	}
	for _, s := range o.slots {
		if !e.holds(int(s), o.mark) {
			e.t.Fatalf("slot %d was written though the engine had taken it back", s)
		}
	}
}

func (e *engineModel) load(request string, o *owned) {
	e.t.Helper()
	e.check(o)
	if o.loading && e.rand.n(2) == 0 {
		return // the other half replaces the load
	}
	o.first, o.loading, o.expected = e.rand.n(blocks-len(o.slots)), true, false
	if _, err := e.w.Load(e.t.Context(), loads(loadOf(request, transfer(o.first, o.slots...)))); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engineModel) poll() {
	e.t.Helper()
	done, _ := e.w.Poll(e.t.Context())
	for _, l := range done.Finished {
		o := e.reqs[l.Request]
		if !o.loading {
			e.t.Fatalf("load %s is reported and was not expected", l.Request)
		}
		for i, s := range o.slots {
			if !slices.Contains(l.FailedBlocks, s) && !e.holds(int(s), o.first+i) {
				e.t.Fatalf("load %s is reported, and slot %d is wrong", l.Request, s)
			}
		}
		e.forget(o)
	}
}

// takeBack ends everything, by a call or by the fence alone.
func (e *engineModel) takeBack() {
	e.t.Helper()
	if e.rand.n(2) == 0 {
		e.page.Fence()
		for !e.page.Idle() {
			time.Sleep(10 * time.Microsecond)
		}
	} else if err := e.w.Unregister(e.t.Context()); err != nil {
		e.t.Fatal(err)
	}
	for _, o := range e.reqs {
		if o.loading {
			e.forget(o)
		}
	}
	e.page = register(e.t, e.w, e.engineMemory)
}

// Whatever the order in which an engine loads, replaces, cancels, unregisters and fences,
// and however late the disk is: what is reported as loaded is there, and what was taken back
// is not written.
func TestNoInterleavingWritesAWrongByte(t *testing.T) {
	ops := 1500
	if os.Getenv("KVCONN_TEST_LONG") != "" {
		ops = 50_000
	}
	s := openStore(t)
	m := newEngineMemory(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	for slot := range blocks {
		m.fill(slot, slot)
	}
	mustSave(t, saver, transfer(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
	e := &engineModel{engineMemory: m, rand: &lockedRand{r: seed.Random(t, 0)}, reqs: map[string]*owned{}}
	e.w = newWorker(t, unevenStore{s, e.rand}, func(o *Options, a *host.AccountOptions) {
		o.LoadTimeout = 4 * time.Millisecond
		o.Driver = &hookDriver{before: func(gpu.Direction) { // a copy that is held up in the middle
			time.Sleep(time.Duration(e.rand.n(500)) * time.Microsecond)
		}}
		a.LoadBytes = 3 * int64(store.PayloadBufferSize(layers*pieceBytes))
	})
	e.page = register(t, e.w, m)
	for i := range 4 {
		o := &owned{}
		for k := range 4 {
			o.slots = append(o.slots, uint32(4*i+k))
		}
		e.reqs[fmt.Sprint(i)] = o
	}
	for range ops {
		request := fmt.Sprint(e.rand.n(len(e.reqs)))
		o := e.reqs[request]
		switch e.rand.n(12) {
		case 0, 1, 2, 3:
			e.load(request, o)
		case 4, 5:
			if err := e.w.Cancel(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			if o.loading {
				e.forget(o)
			}
		case 6:
			e.takeBack()
		case 7:
			time.Sleep(time.Duration(e.rand.n(2000)) * time.Microsecond)
		default:
			e.poll()
		}
	}
	for deadline := time.Now().Add(testWait); e.w.Stats().LoadsInFlight > 0; time.Sleep(time.Millisecond) {
		if e.poll(); time.Now().After(deadline) {
			t.Fatal("a load does not end")
		}
	}
	e.poll()
	for request, o := range e.reqs {
		if e.check(o); o.loading {
			t.Errorf("load %s was never reported", request)
		}
	}
}
