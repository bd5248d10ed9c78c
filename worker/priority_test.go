package worker

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/host"
)

// While a load is in the disk only a few saves are: a read waits for little.
func TestSavesStandBackWhileALoadIsInTheDisk(t *testing.T) {
	var d storetest.Disk
	const writers, few = 8, 2
	s := openStoreOn(t, &d, writers)
	m := newEngineMemory(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	mustSave(t, saver, transfer(0, 0))

	reading, wake := make(chan struct{}, 16), make(chan struct{})
	var writing, most atomic.Int32
	d.Hook(func(op storetest.Op) error {
		switch {
		case op.Kind == storetest.Read:
			reading <- struct{}{}
			<-wake
		case op.Kind == storetest.Write && op.Bytes > layers*pieceBytes: // no header of a new segment
			n := writing.Add(1)
			for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
			}
			time.Sleep(2 * time.Millisecond) // so that others would be beside it
			writing.Add(-1)
		}
		return nil
	})
	loader := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.LoadTimeout = time.Minute })
	wakeUp := sync.OnceFunc(func() { close(wake) })
	t.Cleanup(wakeUp) // before the worker's end is waited for
	register(t, loader, m)
	if _, err := loader.Load(t.Context(), loads(loadOf("r", transfer(0, 1)))); err != nil {
		t.Fatal(err)
	}
	<-reading
	for i := range 4 { // all of them are written: saves are not put off indefinitely
		mustSave(t, saver, transfer(20+16*i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
	}
	if n := most.Load(); n < 1 || n > few {
		t.Errorf("%d saves in the disk beside a load, want at most %d", n, few)
	}
	wakeUp()
	if l := poll(t, loader, 1); len(l[0].FailedBlocks) > 0 {
		t.Errorf("%+v", l)
	}
	d.Hook(nil)
}
