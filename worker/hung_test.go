package worker

import (
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store"
)

// The kernel writes to the memory of a read that hangs when the disk wakes up: nobody else
// may have it by then.
func TestMemoryOfAReadThatHangsIsKeptUntilTheKernelIsDone(t *testing.T) {
	var d storetest.Disk
	s := openStoreOn(t, &d, 0)
	m := newEngineMemory(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	m.fill(0, 7)
	mustSave(t, saver, transfer(0, 0, 1))

	wake := make(chan struct{})
	wakeUp := sync.OnceFunc(func() { close(wake) })
	t.Cleanup(wakeUp)
	asked := make(chan struct{}, 2)
	d.Hook(func(op storetest.Op) error {
		if op.Kind == storetest.Read {
			asked <- struct{}{}
			<-wake
		}
		return nil
	})
	w := newWorker(t, s, nil)
	t.Cleanup(wakeUp) // before the worker's end is waited for
	register(t, w, m)
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4, 5)))); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the disk has both reads
		<-asked
	}
	if err := w.Cancel(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	settle(t, w)
	held := 2 * int64(store.PayloadBufferSize(layers*pieceBytes))
	if n := pinned(w); n != held {
		t.Errorf("%d bytes are held, want %d: the kernel may write to them", n, held)
	}
	d.Hook(nil)
	wakeUp()
	for end := time.Now().Add(testWait); pinned(w) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("memory stays held")
		}
	}
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4)))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) > 0 || !m.holds(4, 7) {
		t.Errorf("%+v once the disk is awake", l)
	}
}
