package worker

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// hang starts a load that the disk does not answer.
func hang(t *testing.T, change func(*Options, *host.AccountOptions)) (*Worker, *slowStore, *engineMemory) {
	t.Helper()
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, change)
	register(t, w, m)
	m.fill(4, 9)
	m.fill(5, 9)
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4, 5)))); err != nil {
		t.Fatal(err)
	}
	return w, slow, m
}

// wake lets the disk answer with other bytes and shows that they go nowhere.
func wake(t *testing.T, w *Worker, slow *slowStore, m *engineMemory) {
	t.Helper()
	close(slow.release)
	settle(t, w)
	if !m.holds(4, 9) || !m.holds(5, 9) {
		t.Error("engine memory was written after it was taken back")
	}
}

func TestLoadEndsAtItsDeadlineAndNothingIsWrittenAfterwards(t *testing.T) {
	w, slow, m := hang(t, func(o *Options, _ *host.AccountOptions) { o.LoadTimeout = 20 * time.Millisecond })
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 2 {
		t.Errorf("blocks %v failed, want both", l[0].FailedBlocks)
	}
	wake(t, w, slow, m)
}

func TestCancelledLoadIsNotReportedAndWritesNothing(t *testing.T) {
	w, slow, m := hang(t, nil)
	if err := w.Cancel(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	wake(t, w, slow, m)
	if done, _ := w.Poll(t.Context()); len(done.Finished) != 0 {
		t.Errorf("reported: %+v", done)
	}
	if err := w.Cancel(t.Context(), "never heard of"); err != nil {
		t.Errorf("Cancel of nothing: %v", err)
	}
}

// A load that has ended but was not polled is not reported either.
func TestCancelTakesBackAReport(t *testing.T) {
	s := openStore(t)
	w := newWorker(t, s, nil)
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(loadOf("r"), loadOf("other"))); err != nil {
		t.Fatal(err)
	}
	if err := w.Cancel(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	if done, _ := w.Poll(t.Context()); len(done.Finished) != 1 || done.Finished[0].Request != "other" {
		t.Errorf("reported: %+v", done)
	}
}

func TestUnregisterFencesWhatIsUnderWay(t *testing.T) {
	w, slow, m := hang(t, nil)
	if err := w.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	notMapped(t)
	wake(t, w, slow, m)
}

func TestCloseFencesWhatIsUnderWay(t *testing.T) {
	w, slow, m := hang(t, nil)
	w.Close()
	notMapped(t)
	wake(t, w, slow, m)
}

func notMapped(t *testing.T) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(maps, []byte("memfd:kv ")) {
		t.Error("engine memory is still mapped")
	}
}

// An engine that gives a save up goes on and overwrites the block: what was copied may be
// anything.
func TestSaveThatTheEngineGaveUpIsNotStored(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	var page *fence.Page
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) {
		o.Driver = &hookDriver{before: func(gpu.Direction) { m.fill(0, 99); page.Fence() }}
	})
	page = register(t, w, m)
	m.fill(0, 7)
	r, err := w.Save(t.Context(), saves(transfer(0, 0)))
	if err != nil || r.Taken != 0 || r.Dropped != 1 {
		t.Errorf("Save = %+v, %v; want the block dropped", r, err)
	}
	if storetest.Has(s, store.RecordID{Namespace: testNamespace(), Key: connector.Key{1}}) {
		t.Error("the block is stored")
	}
}

func TestNothingIsLoadedBehindTheEnginesFence(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	mustSave(t, saver, transfer(0, 0, 1, 2, 3, 4, 5, 6, 7))
	var copies atomic.Int32
	var page *fence.Page
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) {
		o.Driver = &hookDriver{before: func(gpu.Direction) { copies.Add(1) }}
	})
	page = register(t, w, m)
	page.Fence()
	if _, err := w.Load(t.Context(), loads(loadOf("a", transfer(0, 8, 9, 10, 11, 12, 13, 14, 15)))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 8 || copies.Load() != 0 {
		t.Errorf("%d copies, %d blocks failed, want none and all", copies.Load(), len(l[0].FailedBlocks))
	}
	if !page.Idle() {
		t.Error("a copy stays counted in")
	}
}

func TestEngineThatTruncatesItsMemoryCostsOnlyItsOwnBlocks(t *testing.T) {
	s := openStore(t)
	m, good := newEngineMemory(t), newEngineMemory(t)
	w, other := newWorker(t, s, nil), newWorker(t, s, nil)
	register(t, w, m)
	register(t, other, good)
	mustSave(t, w, transfer(0, 0, 1))
	if err := m.f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		w    *Worker
		want int
	}{{w, 2}, {other, 0}} {
		if _, err := tc.w.Load(t.Context(), loads(loadOf("r", transfer(0, 0, 1)))); err != nil {
			t.Fatal(err)
		}
		if l := poll(t, tc.w, 1); len(l[0].FailedBlocks) != tc.want {
			t.Errorf("blocks %v failed, want %d", l[0].FailedBlocks, tc.want)
		}
	}
	if r, err := w.Save(t.Context(), saves(transfer(5, 3))); err != nil || r.Dropped != 1 {
		t.Errorf("Save = %+v, %v; want the block dropped", r, err)
	}
}

func TestRepeatedLoadOfOneRequestIsReportedOnce(t *testing.T) {
	w, slow, _ := hang(t, nil)
	for range 3 {
		if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4)))); err != nil {
			t.Fatal(err)
		}
	}
	close(slow.release)
	poll(t, w, 1)
	settle(t, w)
	if more, _ := w.Poll(t.Context()); len(more.Finished) != 0 {
		t.Errorf("reported again: %+v", more)
	}
}

// A daemon that was suspended wakes up after the deadline: what has arrived by then is not
// copied, although nobody has ended the load yet.
func TestNothingIsCopiedAfterTheDeadline(t *testing.T) {
	var copies atomic.Int32
	w := newWorker(t, &slowStore{}, func(o *Options, _ *host.AccountOptions) {
		o.LoadTimeout = time.Millisecond
		o.Driver = &hookDriver{before: func(gpu.Direction) { copies.Add(1) }}
	})
	register(t, w, newEngineMemory(t))
	mem := w.memory()
	l := w.newLoad(mem, 1, "r", planned(mem, []connector.Transfer{transfer(0, 4)}), nil, w.opts.LoadTimeout)
	defer l.cancel()
	<-l.ctx.Done()
	for range 100 { // whether or not it gets a turn
		if err := l.copyIn([]blockCopy{{group: l.stretches[0].group, slot: 4, buf: make([]byte, layers*pieceBytes)}}); err == nil {
			t.Fatal("copied")
		}
	}
	if n := copies.Load(); n != 0 {
		t.Errorf("%d copies after the deadline", n)
	}
}

// The context of a load that is taken back goes on for another moment after the wait for its copies.
// None begins in that moment: nobody would wait for it.
func TestNothingIsCopiedOnceCopiesWereWaitedFor(t *testing.T) {
	var copies atomic.Int32
	w := newWorker(t, &slowStore{}, func(o *Options, _ *host.AccountOptions) {
		o.Driver = &hookDriver{before: func(gpu.Direction) { copies.Add(1) }}
	})
	register(t, w, newEngineMemory(t))
	mem := w.memory()
	l := w.newLoad(mem, 1, "r", planned(mem, []connector.Transfer{transfer(0, 4)}), nil, w.opts.LoadTimeout)
	defer l.cancel()
	l.mu.Lock() // where expire goes on after that
	var ended sync.WaitGroup
	ended.Go(l.expire)
	wait.For(t, "the load is fenced", func() bool {
		l.copying.RLock()
		defer l.copying.RUnlock()
		return l.fenced
	})
	err := l.copyIn([]blockCopy{{group: l.stretches[0].group, slot: 4, buf: make([]byte, layers*pieceBytes)}})
	if !errors.Is(err, errFenced) || copies.Load() != 0 || l.ctx.Err() != nil {
		t.Errorf("%v after %d copies, %v", err, copies.Load(), l.ctx.Err())
	}
	l.mu.Unlock()
	ended.Wait()
}
