package client

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// Whatever is called at the same time, and while daemons come and go: each load that was not
// cancelled is reported once.
func TestEveryLoadIsReportedOnceUnderConcurrentCalls(t *testing.T) {
	socket := socketPath(t)
	w := newWorker(t, testOptions(socket))
	const callers, each = 4, 60
	base := seed.Of(t)
	var mu sync.Mutex
	reports, canceled := make(map[string]int), make(map[string]bool)
	poll := func() {
		for _, l := range w.Poll(t.Context()) {
			mu.Lock()
			reports[l.Request]++
			mu.Unlock()
		}
	}
	stop, daemons := make(chan struct{}), new(sync.WaitGroup)
	daemons.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				startDaemon(t, socket, &testBackend{silent: true}).stop()
			}
		}
	})
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(base, uint64(c)))
			for i := range each {
				id := fmt.Sprint(c, "-", i)
				w.Load(t.Context(), []byte("plan"), []connector.PlannedLoad{{Request: id, Blocks: []uint32{3}}})
				switch r.IntN(6) {
				case 0:
					if err := w.Cancel(t.Context(), id); err != nil {
						t.Error(err)
					}
					mu.Lock()
					canceled[id] = reports[id] == 0
					mu.Unlock()
				case 1:
					if err := w.Unregister(t.Context()); err != nil {
						t.Error(err)
					}
				case 2:
					_ = w.Connect(t.Context())
				case 3:
					w.Save(t.Context(), []byte("plan"))
				default:
					poll()
				}
			}
		})
	}
	all.Wait()
	close(stop)
	daemons.Wait()
	_ = w.Unregister(t.Context())
	poll()
	for c := range callers {
		for i := range each {
			id := fmt.Sprint(c, "-", i)
			if n := reports[id]; n > 1 || n == 0 && !canceled[id] {
				t.Errorf("load %s was reported %d times, cancelled before: %t", id, n, canceled[id])
			}
		}
	}
}
