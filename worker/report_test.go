package worker

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// nothingReported waits for the worker and shows that Poll has nothing to say.
func nothingReported(t *testing.T, w *Worker) {
	t.Helper()
	settle(t, w)
	if done, _ := w.Poll(t.Context()); len(done.Finished) != 0 {
		t.Errorf("reported: %+v", done)
	}
	if st := w.Stats(); st.LoadsInFlight != 0 {
		t.Errorf("%d loads are in flight", st.LoadsInFlight)
	}
}

// A report of a load that ended before must not pass for that of the new one: its
// blocks are not there yet.
func TestReportOfAnEarlierLoadIsNotThatOfALaterOne(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	w := newWorker(t, slow, nil)
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("r"))); err != nil { // ends at once
		t.Fatal(err)
	}
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4)))); err != nil {
		t.Fatal(err)
	}
	if done, _ := w.Poll(t.Context()); len(done.Finished) != 0 {
		t.Errorf("reported while its block is being read: %+v", done)
	}
	close(slow.release)
	poll(t, w, 1)
	nothingReported(t, w)
}

// An engine takes what it has not heard of as failed by itself, and may load the same
// requests into its next memory.
func TestMemoryGivenBackTakesItsReportsAlong(t *testing.T) {
	for name, giveBack := range map[string]func(*Worker, *engineMemory){
		"unregistered":     func(w *Worker, _ *engineMemory) { _ = w.Unregister(t.Context()) },
		"registered again": func(w *Worker, m *engineMemory) { register(t, w, m) },
	} {
		t.Run(name, func(t *testing.T) {
			w, slow, m := hang(t, nil)
			if _, err := w.Load(t.Context(), loads(loadOf("ended"))); err != nil {
				t.Fatal(err)
			}
			giveBack(w, m)
			close(slow.release)
			nothingReported(t, w)
		})
	}
}

func TestRegistrationThatIsRefusedGivesBackTheFormerMemory(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	register(t, w, newEngineMemory(t))
	l := testLayout()
	l.Groups[0].Blocks++
	_, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), f); err == nil {
		t.Fatal("accepted")
	}
	if w.BlockBytes() != nil {
		t.Error("the former memory is registered")
	}
	notMapped(t)
}

func TestPlansThatNoLeaderMakesAreRefusedWhole(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	w := newWorker(t, slow, nil)
	register(t, w, newEngineMemory(t))
	for name, plan := range map[string][]byte{
		"a request twice":   loads(loadOf("a", transfer(0, 1)), loadOf("r", transfer(0, 2)), loadOf("r", transfer(1, 3))),
		"an endless id":     loads(loadOf("a", transfer(0, 1)), loadOf(strings.Repeat("x", connector.MaxIDBytes+1), transfer(0, 2))),
		"too many requests": manyLoads(maxLoads + 1),
	} {
		if _, err := w.Load(t.Context(), plan); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrBadRequest", name, err)
		}
	}
	close(slow.release)
	nothingReported(t, w)
}

func manyLoads(n int) []byte {
	p := connector.Plan{Namespace: testNamespace(), Loads: make([]connector.RequestLoad, n)}
	for i := range p.Loads {
		p.Loads[i].Request = fmt.Sprint(i)
	}
	return p.Append(nil)
}

// An engine that never polls costs the daemon a bounded amount of memory, and goes on once
// it has polled.
func TestLoadsThatNobodyPollsAreBounded(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), manyLoads(maxLoads)); err != nil {
		t.Fatal(err)
	}
	another := loads(loadOf("another", transfer(0, 1)))
	if _, err := w.Load(t.Context(), another); !errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("a load more than there may be: %v", err)
	}
	poll(t, w, maxLoads)
	if _, err := w.Load(t.Context(), another); err != nil {
		t.Error(err)
	}
	poll(t, w, 1)
}

func TestBlocksOfLoadsAreBoundedUntilTheyAreReported(t *testing.T) {
	loads := newLoadTable()
	half := &load{request: "half", done: make([]bool, maxLoadBlocks/2)}
	loads.put(half)
	other := &load{request: "other", done: half.done, failed: make([]uint32, maxLoadBlocks/2)}
	loads.put(other)
	full := func(when string) {
		t.Helper()
		if err := loads.admits(1, 1); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrBadRequest", when, err)
		}
	}
	full("both are running")
	if loads.finish(other, 0); loads.blocks != maxLoadBlocks {
		t.Errorf("%d blocks", loads.blocks)
	}
	full("one has failed")
	if loads.poll(); loads.blocks != maxLoadBlocks/2 {
		t.Errorf("%d blocks after the report", loads.blocks)
	}
	if err := loads.admits(1, maxLoadBlocks/2); err != nil {
		t.Error(err)
	}
	loads.put(&load{request: "half", done: half.done[:1]})
	if loads.finish(half, 0) {
		t.Error("a load that was replaced is reported")
	}
	loads.take("half")
	if loads.take("half"); loads.blocks != 0 {
		t.Errorf("%d blocks of nothing", loads.blocks)
	}
}

// What a save costs is bounded by the memory that it gets, not by what it asks for.
func TestSaveThatFindsNoRoomTakesNoMemoryForItself(t *testing.T) {
	w := newWorker(t, &slowStore{}, func(_ *Options, a *host.AccountOptions) { a.SaveBytes = 1 })
	register(t, w, newEngineMemory(t))
	var full host.Slot
	if !w.opts.Account.ReserveSave(&full, layers*pieceBytes) {
		t.Fatal("no memory")
	}
	defer full.Release()
	many := make([]connector.PlanBlock, 50_000)
	var b saveBatch
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	taken, _ := w.gather(&b, stretch{group: w.memory().group(0), blocks: many})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes for blocks that are not saved", got)
	}
	if taken != 0 {
		t.Errorf("%d blocks are saved without memory", taken)
	}
}

// Another gives up the read of a record that this load waits for: it reads for itself.
func TestBlockIsReadWhereAnotherGivesItsReadUp(t *testing.T) {
	m := newEngineMemory(t)
	s := openStore(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	m.fill(0, 7)
	mustSave(t, saver, transfer(0, 0))
	w := newWorker(t, s, nil)
	register(t, w, m)
	block := transfer(0, 3)
	var another host.Slot
	record := store.Record{ID: store.RecordID{Namespace: testNamespace(), Key: block.Blocks[0].Key}, Parent: block.Parent, Proof: block.Blocks[0].Proof}
	if o, err := w.opts.Account.Acquire(t.Context(), &another, record, layers*pieceBytes, false); o != host.Fill {
		t.Fatal(o, err)
	}
	if _, err := w.Load(t.Context(), loads(loadOf("r", block))); err != nil {
		t.Fatal(err)
	}
	for w.opts.Cache.Stats().Joined == 0 { // until it waits, too
		runtime.Gosched()
	}
	another.Release()
	if l := poll(t, w, 1); len(l[0].FailedBlocks) > 0 || !m.holds(3, 7) {
		t.Errorf("%+v", l)
	}
}
