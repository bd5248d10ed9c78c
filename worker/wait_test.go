package worker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/store/host"
)

// waiting is a move whose caller waits that long.
func waiting(wait time.Duration, id string, parts ...connector.KeyedPart) *connector.KeyedMove {
	m := keyedMove(id, parts...)
	m.Wait = wait
	return m
}

func fetchWait(ctx context.Context, w *Worker, m *connector.KeyedMove) (connector.FetchResult, error) {
	f, err := w.StartFetch(m)
	if err != nil {
		return connector.FetchResult{}, err
	}
	defer f.Close()
	return f.Wait(ctx), nil
}

func TestCallsThatWaitAnswerForEachBlock(t *testing.T) {
	w, m, _ := newKeyedWorker(t, nil)
	for slot := range 3 {
		m.fill(slot, 30+slot)
	}
	put, err := w.PutWait(t.Context(), waiting(time.Minute, "p", part(1, 0, 1), connector.KeyedPart{}))
	if want := (connector.SaveResult{Taken: 2}); err != nil || !reflect.DeepEqual(put.Done, [][]byte{{3}, {}}) || put.SaveResult != want {
		t.Errorf("%+v, %v", put, err)
	}
	settle(t, w)
	// Nothing is saved after a block that cannot be.
	beyond := connector.KeyedPart{Hashes: []connector.Proof{{1}, {20}, {2}, {21}}, Slots: []uint32{0, blocks, 1, 2}}
	put, err = w.PutWait(t.Context(), waiting(time.Minute, "p", beyond))
	if want := (connector.SaveResult{Dropped: 2, Present: 2}); err != nil || !reflect.DeepEqual(put.Done, [][]byte{{1 | 4}}) || put.SaveResult != want {
		t.Errorf("%+v, %v", put, err)
	}
	settle(t, w)
	got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", part(2, 11), part(1, 10), part(3, 12)))
	if err != nil || !reflect.DeepEqual(got.Done, [][]byte{{1}, {1}, {0}}) || len(got.Tiers) != 1 || got.Tiers[0].Blocks != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if !m.holds(10, 30) || !m.holds(11, 31) {
		t.Error("what is said to be loaded is not there")
	}
	if p, _ := w.Poll(t.Context()); len(p.Finished)+len(p.Stored) > 0 {
		t.Errorf("%+v is reported twice", p)
	}
	if got, err := fetchWait(t.Context(), w, waiting(time.Minute, "none")); err != nil || len(got.Done) != 0 {
		t.Errorf("%+v, %v of a load without blocks", got, err)
	}
	if put, err := w.PutWait(t.Context(), waiting(time.Minute, "none")); err != nil || len(put.Done) != 0 {
		t.Errorf("%+v, %v of a save without blocks", put, err)
	}
}

// After the answer nothing is written, however late a read ends.
func TestLoadThatIsWaitedForEndsInTime(t *testing.T) {
	for name, end := range map[string]func(cancel func(), w *Worker){
		"its time is over":         nil,
		"its caller goes":          func(cancel func(), _ *Worker) { cancel() },
		"it is cancelled":          func(_ func(), w *Worker) { _ = w.Cancel(context.Background(), "f") },
		"its memory is given back": func(_ func(), w *Worker) { _ = w.Unregister(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &slowStore{release: make(chan struct{})}
			w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
			m := newEngineMemory(t)
			register(t, w, m)
			m.fill(5, 66)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			move := waiting(20*time.Millisecond, "f", part(1, 5))
			if end != nil {
				move.Wait = time.Hour
			}
			f, err := w.StartFetch(move)
			if err != nil {
				t.Fatal(err)
			}
			if end != nil {
				go end(cancel, w)
			}
			if got := f.Wait(ctx); !reflect.DeepEqual(got.Done, [][]byte{{0}}) || f.Failed() != (end == nil) {
				t.Errorf("%+v", got)
			}
			close(s.release)
			settle(t, w)
			if !m.holds(5, 66) {
				t.Error("a slot was written to after the answer")
			}
			// Its id is taken until whoever waited for it says so.
			if w.memory() == nil {
				register(t, w, m)
			}
			if _, err := w.StartFetch(move); !errors.Is(err, connector.ErrBadRequest) {
				t.Errorf("%v: another load of an id whose end was not told", err)
			}
			if err := w.Fetch(t.Context(), move); !errors.Is(err, connector.ErrBadRequest) {
				t.Errorf("%v: another load to poll of an id whose end was not told", err)
			}
			f.Close()
			// Then it is free again, and a load that is in time writes.
			if got, err := fetchWait(t.Context(), w, waiting(time.Minute, "f", part(1, 5))); err != nil || got.Done[0][0] != 1 || m.holds(5, 66) {
				t.Errorf("%+v, %v afterwards", got, err)
			}
		})
	}
}

// A save that waits for another ends in time, and leaves the other alone.
func TestSaveThatIsWaitedForEndsInTime(t *testing.T) {
	for name, end := range map[string]func(cancel func(), w *Worker){
		"its time is over":         nil,
		"its caller goes":          func(cancel func(), _ *Worker) { cancel() },
		"its memory is given back": func(_ func(), w *Worker) { go func() { _ = w.Unregister(context.Background()) }() },
	} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{}, 100)
			change, release := heldSaves(t, began)
			w, _, _ := newKeyedWorker(t, change)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := w.Put(ctx, keyedMove("first", part(1, 0))); err != nil {
				t.Fatal(err)
			}
			<-began
			move := waiting(20*time.Millisecond, "second", part(2, 1, 2))
			if end != nil {
				move.Wait = time.Hour
				go func() {
					for queued := false; !queued; time.Sleep(time.Millisecond) {
						w.mu.Lock()
						queued = len(w.puts.waiting) > 0
						w.mu.Unlock()
					}
					end(cancel, w)
				}()
			}
			got, err := w.PutWait(ctx, move)
			if err != nil || !reflect.DeepEqual(got.Done, [][]byte{{0}}) || got.Dropped != 2 {
				t.Errorf("%+v, %v", got, err)
			}
			release()
			if end == nil {
				if r := stored(t, w, 1); r[0].ID != "first" || r[0].Taken != 1 {
					t.Errorf("%+v", r)
				}
			}
			settle(t, w)
		})
	}
}

// On a disk that is slow for one block, the answer comes in time with the others.
func TestLoadThatIsWaitedForFromASlowDisk(t *testing.T) {
	var d storetest.Disk
	s := openStoreOn(t, &d, 0)
	keyed := func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() }
	saver, m := newWorker(t, s, keyed), newEngineMemory(t)
	register(t, saver, m)
	m.fill(0, 30)
	m.fill(1, 31)
	mustPut(t, saver, keyedMove("p", part(1, 0, 1)))

	wake := make(chan struct{})
	wakeUp := sync.OnceFunc(func() { close(wake) })
	t.Cleanup(wakeUp)
	var reads atomic.Int32
	d.Hook(func(op storetest.Op) error {
		if op.Kind == storetest.Read && reads.Add(1) > 1 {
			<-wake
		}
		return nil
	})
	w := newWorker(t, s, keyed) // with a host tier of its own
	t.Cleanup(wakeUp)
	register(t, w, m)
	m.fill(10, 66)
	m.fill(11, 66)
	// Two parts: what one has is of use without the other.
	got, err := fetchWait(t.Context(), w, waiting(time.Second, "f", part(1, 10), part(2, 11)))
	if err != nil || len(got.Done) != 2 || got.Done[0][0]+got.Done[1][0] != 1 {
		t.Errorf("%+v, %v, want one of two blocks", got, err)
	}
	wakeUp()
	settle(t, w)
	for i := range 2 {
		if want := []int{66, 30 + i}[got.Done[i][0]]; !m.holds(10+i, want) {
			t.Errorf("slot %d does not hold %d", 10+i, want)
		}
	}
}

// A store that takes nothing fails the blocks, not the call.
func TestSaveThatIsWaitedForInAFullStore(t *testing.T) {
	w := newWorker(t, &slowStore{refuse: true}, func(o *Options, _ *host.AccountOptions) { o.Manifest = engineKeys() })
	register(t, w, newEngineMemory(t))
	if got, err := w.PutWait(t.Context(), waiting(time.Minute, "p", part(1, 0, 1))); err != nil || !reflect.DeepEqual(got.Done, [][]byte{{0}}) || got.Dropped != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The connections of a session call at the same time.
func TestCallsByKeyAtTheSameTime(t *testing.T) {
	w, m, _ := newKeyedWorker(t, nil)
	var g sync.WaitGroup
	for n := range 4 {
		g.Go(func() {
			for i := range 50 {
				id := fmt.Sprintf("%d-%d", n, i)
				p := part(1+4*n, uint32(4*n), uint32(4*n+1))
				if n%2 == 0 {
					if _, err := w.PutWait(t.Context(), waiting(time.Minute, id, p)); err != nil && !errors.Is(err, connector.ErrNotRegistered) {
						t.Error(err)
					}
				} else if err := w.Put(t.Context(), keyedMove(id, p)); err != nil && !errors.Is(err, connector.ErrNotRegistered) {
					t.Error(err)
				}
				p.Slots = []uint32{uint32(4*n + 2), uint32(4*n + 3)}
				if _, err := fetchWait(t.Context(), w, waiting(time.Minute, id, p)); err != nil && !errors.Is(err, connector.ErrNotRegistered) {
					t.Error(err)
				}
				_ = w.Cancel(t.Context(), fmt.Sprintf("%d-%d", (n+1)%4, i))
				_, _ = w.Poll(t.Context())
			}
		})
	}
	for range 10 {
		_ = w.Unregister(t.Context())
		register(t, w, m)
	}
	g.Wait()
	settle(t, w)
}
