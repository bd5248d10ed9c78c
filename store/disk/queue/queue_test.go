package queue_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/kvconn/kvconn/store/disk/queue"
)

func TestQueueKeepsItsOrder(t *testing.T) {
	q := queue.New[int]()
	q.Push(1, 2, 3)
	if !q.TryPush(4) {
		t.Error("an open queue takes nothing")
	}
	q.Push(5)
	if v, ok := q.Pop(); v != 1 || !ok {
		t.Errorf("first %d, %v", v, ok)
	}
	buf, ok := q.PopAll([]int{0}, 2)
	if !slices.Equal(buf, []int{0, 2, 3}) || !ok {
		t.Errorf("%v, %v: want what the buffer had and two more", buf, ok)
	}
	q.Push(6)
	if buf, ok = q.PopAll(buf[:0], 10); !slices.Equal(buf, []int{4, 5, 6}) || !ok {
		t.Errorf("the rest: %v, %v", buf, ok)
	}
}

// Work that was accepted is done though the queue closes, and nothing is accepted afterwards by
// those that ask.
func TestClosedQueueHandsOutWhatItHas(t *testing.T) {
	for name, pop := range map[string]func(q *queue.Queue[int]) (int, bool){
		"Pop": (*queue.Queue[int]).Pop,
		"PopAll": func(q *queue.Queue[int]) (int, bool) {
			buf, ok := q.PopAll(nil, 1)
			return len(buf), ok
		},
	} {
		q := queue.New[int]()
		q.Push(1)
		q.Close()
		if q.TryPush(2) {
			t.Errorf("%s: a closed queue takes more", name)
		}
		q.Push(1) // by one that began before
		for range 2 {
			if v, ok := pop(q); v != 1 || !ok {
				t.Errorf("%s: %d, %v from a closed queue", name, v, ok)
			}
		}
		if v, ok := pop(q); v != 0 || ok {
			t.Errorf("%s: %d, %v from an empty queue", name, v, ok)
		}
	}
}

// Nobody sleeps while there is an item for it, and all end with the queue.
func TestEveryItemWakesSomeone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, busy := queue.New[int](), make(chan struct{})
		var taken atomic.Int64
		var takers sync.WaitGroup
		for i := range 8 {
			takers.Go(func() {
				ok := false
				if i%2 == 0 {
					_, ok = q.Pop()
				} else {
					_, ok = q.PopAll(nil, 1)
				}
				if ok { // takes no other one
					taken.Add(1)
					<-busy
				}
			})
		}
		synctest.Wait()
		for want, push := range []func(){0: func() {}, 1: func() { q.Push(1) }, 2: func() { q.TryPush(1) }, 5: func() { q.Push(1, 2, 3) }} {
			if push == nil {
				continue
			}
			push()
			if synctest.Wait(); int(taken.Load()) != want {
				t.Errorf("%d items were taken of %d, and others wait", taken.Load(), want)
			}
		}
		q.Close()
		close(busy)
		takers.Wait()
	})
}

// What was taken is garbage when its taker is done with it, though the queue goes on.
func TestItemsThatWereTakenAreLetGoOf(t *testing.T) {
	q := queue.New[*[64]int]()
	var taken []weak.Pointer[[64]int]
	for range 8 {
		item := new([64]int)
		taken = append(taken, weak.Make(item))
		q.Push(item)
	}
	q.Push(new([64]int))
	for range 4 {
		q.Pop()
	}
	q.PopAll(nil, 4)
	runtime.GC()
	for i, w := range taken {
		if w.Value() != nil {
			t.Errorf("item %d is still referred to", i)
		}
	}
	if _, ok := q.Pop(); !ok {
		t.Error("the last item is gone")
	}
}
