package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// pollFor polls until something is reported.
func pollFor(t *testing.T, w *Worker) []connector.FinishedLoad {
	t.Helper()
	var got []connector.FinishedLoad
	wait.For(t, "a load is reported", func() bool {
		got = w.Poll(t.Context())
		return len(got) > 0
	})
	return got
}

func wantFailed(t *testing.T, got []connector.FinishedLoad, request string) {
	t.Helper()
	if len(got) != 1 || got[0].Request != request || len(got[0].FailedBlocks) != 1 || got[0].FailedBlocks[0] != 3 {
		t.Errorf("Poll = %+v, want the load %q of block 3 as failed", got, request)
	}
}

func wantNoReport(t *testing.T, w *Worker, when string) {
	t.Helper()
	for range 20 {
		if got := w.Poll(t.Context()); len(got) != 0 {
			t.Fatalf("Poll = %+v %s", got, when)
		}
		time.Sleep(time.Millisecond)
	}
}

func load3() []connector.PlannedLoad {
	return []connector.PlannedLoad{{Request: "load", Blocks: []uint32{3}}}
}

// copyingWorker has a load in flight whose copy has begun and does not end.
func copyingWorker(t *testing.T, change func(b *testBackend)) (*testBackend, *daemon, *Worker) {
	t.Helper()
	socket := socketPath(t)
	b := &testBackend{copying: true, silent: true, waiting: make(chan struct{}, 1), release: make(chan struct{})}
	if change != nil {
		change(b)
	}
	d := startDaemon(t, socket, b)
	w := newWorker(t, testOptions(socket))
	if err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	load := func() { w.Load(t.Context(), []byte("plan"), load3()) }
	if b.answering != nil {
		giveUp(b, w, load)
	} else {
		load()
	}
	return b, d, w
}

// giveUp makes a call whose deadline passes while the daemon waits in it, and not before.
func giveUp(b *testBackend, w *Worker, call func()) {
	w.mu.Lock()
	conn := w.link.conn
	w.mu.Unlock()
	go func() {
		<-b.waiting
		_ = conn.SetDeadline(time.Now())
	}()
	call()
}

// giveUpSave is a save that is given up.
func giveUpSave(t *testing.T, b *testBackend, w *Worker) {
	t.Helper()
	giveUp(b, w, func() { w.Save(t.Context(), []byte("plan")) })
}

// A daemon frozen elsewhere has nothing to write: its loads fail at the client's deadline.
func TestLoadsOfADaemonFrozenOutsideOfACopyFailAtOnce(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.copying = false })
	defer close(b.release)
	giveUpSave(t, b, w)
	wantFailed(t, w.Poll(t.Context()), "load")
	if w.Poll(t.Context()) != nil {
		t.Error("the load is reported twice")
	}
}

func TestLoadsOfADaemonFrozenInACopyAreReportedWhenItHasEnded(t *testing.T) {
	b, _, w := copyingWorker(t, nil)
	defer close(b.release)
	giveUpSave(t, b, w)
	wantNoReport(t, w, "while the daemon is in the middle of a copy")
	b.endCopies()
	wantFailed(t, pollFor(t, w), "load")
}

// The count of a daemon that was killed stays; the end of its socket says that it is gone.
func TestLoadsOfADaemonKilledInACopyAreReportedAtItsEnd(t *testing.T) {
	_, d, w := copyingWorker(t, nil)
	d.stop()
	wantFailed(t, pollFor(t, w), "load")
}

func TestLoadsOfAFrozenDaemonThatIsKilledAreReported(t *testing.T) {
	b, d, w := copyingWorker(t, nil)
	giveUpSave(t, b, w)
	wantNoReport(t, w, "while the daemon is frozen")
	close(b.release)
	d.stop()
	wantFailed(t, pollFor(t, w), "load")
}

// The daemon may be writing before it has answered the call that starts the load.
func TestLoadWhoseStartIsGivenUpIsHeldWhileItsCopyRuns(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.answering = make(chan struct{}) })
	defer close(b.answering)
	wantNoReport(t, w, "while the daemon is in the middle of a copy")
	b.endCopies()
	wantFailed(t, pollFor(t, w), "load")
}

func TestOverdueLoadIsTakenBack(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.copying = false })
	defer close(b.release)
	w.mu.Lock()
	w.inFlight[jobID{id: "load"}] = pendingJob{blocks: []uint32{3}, deadline: time.Now().Add(-time.Second)}
	w.mu.Unlock()
	wantFailed(t, pollFor(t, w), "load")
}

// While one registration is held, the next has a page of its own and works.
func TestNewRegistrationWorksWhileTheOldIsHeld(t *testing.T) {
	b, _, w := copyingWorker(t, nil)
	giveUpSave(t, b, w)
	close(b.release) // frozen no more, but for its copy
	b.mu.Lock()
	old := b.pages
	b.pages = nil
	b.mu.Unlock()
	b.copying, b.silent = false, false
	w.mu.Lock()
	w.link.retryAt = time.Time{}
	w.mu.Unlock()
	if err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Fetch(t.Context(), keyedMove("other", 5))
	if !b.called("fetch other of other") || b.registrations() != 2 {
		t.Errorf("%d registrations, calls %v", b.registrations(), b.calls)
	}
	for _, p := range old {
		if !p.Fenced() {
			t.Error("the former page is not fenced")
		}
		p.End()
	}
	wantFailed(t, pollFor(t, w), "load")
}

func TestRefusedLoadFailsAtOnce(t *testing.T) {
	_, _, w := copyingWorker(t, func(b *testBackend) {
		b.copying, b.loadErr = false, errors.New("no such shard")
	})
	wantFailed(t, w.Poll(t.Context()), "load")
	w.Fetch(t.Context(), keyedMove("fetch", 3))
	wantFailed(t, w.Poll(t.Context()), "fetch")
}

func TestCanceledLoadIsNeverReported(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.copying, b.silent = false, false })
	if err := w.Cancel(t.Context(), "load"); err != nil || !b.called("cancel load") {
		t.Errorf("Cancel = %v, calls %v", err, b.calls)
	}
	w.Load(t.Context(), nil, load3()) // fails at once
	if err := w.Cancel(t.Context(), "load"); err != nil {
		t.Error(err)
	}
	wantNoReport(t, w, "after Cancel")
}

func TestCancelWaitsForACopyUnderWay(t *testing.T) {
	b, _, w := copyingWorker(t, nil)
	defer close(b.release)
	giveUpSave(t, b, w)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Cancel(ctx, "load"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Cancel = %v while a copy is under way", err)
	}
	done := make(chan error)
	go func() { done <- w.Cancel(t.Context(), "load") }()
	b.endCopies()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantNoReport(t, w, "after Cancel")
}

func TestUnregisteredMemoryIsNotTouchedUntilConnect(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.copying, b.release = false, nil })
	page := w.page
	if err := w.Unregister(t.Context()); err != nil || !b.called("unregister") {
		t.Errorf("Unregister = %v, calls %v", err, b.calls)
	}
	if page == nil || w.page != nil {
		t.Error("the page is still in force")
	}
	wantFailed(t, w.Poll(t.Context()), "load")
	w.Load(t.Context(), []byte("plan"), load3())
	wantFailed(t, w.Poll(t.Context()), "load")
	if got := w.Save(t.Context(), []byte("plan")); got.Taken != 0 || b.registrations() != 1 {
		t.Errorf("Save = %+v with %d registrations", got, b.registrations())
	}
	if err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.Save(t.Context(), []byte("plan")); got.Taken != 1 {
		t.Errorf("Save after Connect = %+v", got)
	}
}

func TestUnregisterWaitsForACopyUnderWay(t *testing.T) {
	b, _, w := copyingWorker(t, func(b *testBackend) { b.release = nil })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Unregister(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Unregister = %v while a copy is under way", err)
	}
	b.endCopies()
	if err := w.Unregister(t.Context()); err != nil {
		t.Error(err)
	}
	wantFailed(t, pollFor(t, w), "load")
}
