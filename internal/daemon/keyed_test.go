package daemon

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// keyedManifest is of an engine of two ranks that brings its own keys.
func keyedManifest() *connector.Manifest {
	m := residencyManifest()
	m.KeyScheme, m.TensorParallel = connector.KeySchemeEngine, 2
	return m
}

// keyedBlocks are n blocks in slots 0 to n.
func keyedBlocks(n int) []connector.KeyedPart {
	p := connector.KeyedPart{Hashes: make([]connector.Proof, n), Slots: make([]uint32, n)}
	for i := range n {
		p.Hashes[i], p.Slots[i] = connector.Proof{byte(i), 1}, uint32(i)
	}
	return []connector.KeyedPart{p}
}

// openKeyed opens a rank's session, with memory.
func openKeyed(t *testing.T, b *backend, engine string, rank int) server.Worker {
	t.Helper()
	w, err := b.OpenWorker(t.Context(), server.Peer{Engine: engine}, keyedManifest(), rank)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	return w
}

// present returns the bitmap of a request of three blocks.
func present(t *testing.T, w server.Worker, request string) byte {
	t.Helper()
	groups, err := w.Present(t.Context(), &connector.PresentRequest{Request: request, Hashes: keyedBlocks(3)[0].Hashes}, nil)
	if err != nil || len(groups) != 1 || len(groups[0]) != 1 {
		t.Fatalf("%v, %v", groups, err)
	}
	return groups[0][0]
}

// putBlocks saves three blocks of a rank.
func putBlocks(t *testing.T, w server.Worker) {
	t.Helper()
	if err := w.Put(t.Context(), &connector.KeyedMove{ID: "p", Parts: keyedBlocks(3)}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the save is reported", func() bool {
		p, err := w.Poll(t.Context())
		return err == nil && len(p.Stored) == 1 && p.Stored[0].Taken == 3
	})
}

// The ranks of an engine are one engine: its requests are counted once, by rank 0.
func TestEngineThatBringsItsOwnKeysIsOneEngine(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	for i, w := range ranks {
		if got := present(t, w, "r"); got != 0 {
			t.Errorf("%b is offered, which %d ranks have", got, i)
		}
		putBlocks(t, w)
	}
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, ranks[0], "later") == 7 })
	if got := present(t, ranks[1], "later"); got != 7 {
		t.Errorf("%b is offered to rank 1", got)
	}
	check := func(name string, engines int, queried uint64) {
		t.Helper()
		es, rs, models := b.status(time.Now())
		if len(es) != engines || len(rs) != 2*engines || len(models) != 1 || models[0].Engines != engines || models[0].Sum.Leader.QueriedTokens != queried {
			t.Errorf("%s: %d engines, %d ranks, %+v", name, len(es), len(rs), models)
		}
	}
	queried := uint64(2 * 3 * keyedManifest().BlockSize)
	check("connected", 1, queried)
	es, _, _ := b.status(time.Now())
	if e := es[0]; e.Engine != "e" || e.RanksNeeded != 2 || e.NotReady != "" || e.Requests.SaveBlocks != 3 || e.Requests.Requests != 2 {
		t.Errorf("%+v", e)
	}
	for _, w := range ranks {
		w.Close()
	}
	check("gone", 0, queried)
}

// An engine with a rank that cannot load is offered nothing, by any of its ranks.
func TestRankWithoutMemoryStopsOffersByKey(t *testing.T) {
	d := new(failingDriver)
	b, _ := newTestBackend(t, func(o *Options) { o.Driver = d })
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	other := openKeyed(t, b, "f", 0)
	for _, w := range append(ranks, other) {
		defer w.Close()
	}
	putBlocks(t, ranks[0])
	putBlocks(t, ranks[1])
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, ranks[0], "r") == 7 })
	r := registration(t)
	r.Layout.Groups[0].Blocks = 1 << 30
	if _, err := ranks[1].Register(t.Context(), r); err == nil {
		t.Fatal("memory that is too small is taken")
	}
	if e, f := present(t, ranks[0], "r"), present(t, other, "r"); e != 0 || f != 7 {
		t.Errorf("%b is offered to an engine with a refused rank, %b to another", e, f)
	}
	if es, _, _ := b.status(time.Now()); len(es) != 2 || es[0].NotReady == "" || es[1].NotReady != "" || es[0].Requests.NotReady != 1 {
		t.Errorf("%+v", es)
	}
	if _, err := ranks[1].Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	if got := present(t, ranks[0], "r"); got != 7 {
		t.Errorf("%b is offered once the rank has memory again", got)
	}
}

// What ends loads without a report ends them for the leader too: no lease outlasts them.
func TestLoadsThatAreNotReportedLeaveNoLease(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	w := ranks[0]
	for _, w := range ranks {
		defer w.Close()
		putBlocks(t, w)
	}
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, w, "r") == 7 })
	for name, end := range map[string]func() error{
		"cancel":     func() error { return w.Cancel(t.Context(), "load") },
		"unregister": func() error { return w.Unregister(t.Context()) },
		"register":   func() error { _, err := w.Register(t.Context(), registration(t)); return err },
	} {
		if _, err := w.Register(t.Context(), registration(t)); err != nil {
			t.Fatal(err)
		}
		if err := w.Fetch(t.Context(), &connector.KeyedMove{ID: "load", Request: "r", Parts: keyedBlocks(3)}); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if got := present(t, w, "r"); got != 7 {
			t.Errorf("%b is offered after %s: a load that was given up has not failed", got, name)
		}
		if err := w.Touch(t.Context(), &connector.TouchRequest{Request: "r"}); err != nil {
			t.Fatal(err)
		}
		if s := w.(keyedSession).keyed.Stats(); s.Requests != 0 || s.FailedLoads != 0 {
			t.Errorf("after %s: %+v", name, s)
		}
	}
}

// A load that a call waited for is over for the leader too, and one that failed is remembered.
func TestCallsThatWaitAreToldToTheLeader(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	for _, w := range ranks {
		defer w.Close()
		put := &connector.KeyedMove{ID: "p", Parts: keyedBlocks(3), Wait: time.Minute}
		if r, err := w.PutWait(t.Context(), put); err != nil || r.Taken != 3 || r.Done[0][0] != 7 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	w := ranks[0]
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, w, "r") == 7 })
	fetch := &connector.KeyedMove{ID: "load", Request: "r", Parts: keyedBlocks(3), Wait: time.Minute}
	if r, err := w.FetchWait(t.Context(), fetch); err != nil || r.Done[0][0] != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := present(t, w, "r"); got != 7 {
		t.Errorf("%b is offered after a load of all", got)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	fetch.Parts = keyedBlocks(4) // the last is not stored
	if _, err := w.FetchWait(gone, fetch); err != nil {
		t.Error(err)
	}
	if got := present(t, w, "r"); got != 7 {
		t.Errorf("%b is offered after a load whose caller has gone", got)
	}
	if r, err := w.FetchWait(t.Context(), fetch); err != nil || r.Done[0][0] != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := present(t, w, "r"); got != 0 {
		t.Errorf("%b is offered after a load that failed in part", got)
	}
	if s := w.(keyedSession).keyed.Stats(); s.FailedLoads != 1 || s.SaveBlocks != 3 {
		t.Errorf("%+v", s)
	}
}

// The threads of an engine ask, load and save at the same time.
func TestCallsByKeyFromSeveralConnections(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	for _, w := range ranks {
		defer w.Close()
		putBlocks(t, w)
	}
	w := ranks[0]
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, w, "r") == 7 })
	var g sync.WaitGroup
	for n := range 4 {
		g.Go(func() {
			var bits [][]byte
			id := fmt.Sprint(n)
			for range 200 {
				asked := &connector.PresentRequest{Request: id, Hashes: keyedBlocks(3)[0].Hashes}
				var err error
				if bits, err = w.Present(t.Context(), asked, bits); err != nil || bits[0][0] != 7 {
					t.Errorf("%v, %v", bits, err)
				}
				move := &connector.KeyedMove{ID: id, Request: id, Parts: keyedBlocks(3), Wait: time.Minute}
				if r, err := w.FetchWait(t.Context(), move); err != nil || r.Done[0][0] != 7 {
					t.Errorf("%+v, %v", r, err)
				}
				if r, err := w.PutWait(t.Context(), move); err != nil || r.Present != 3 {
					t.Errorf("%+v, %v", r, err)
				}
				if err := w.Fetch(t.Context(), &connector.KeyedMove{ID: "quick " + id, Request: id, Parts: keyedBlocks(1)}); err != nil {
					t.Error(err)
				}
				for done := false; !done; {
					_, _ = w.Poll(t.Context())
					done = w.(keyedSession).Worker.Stats().LoadsInFlight == 0 || n > 0
				}
				_ = w.Cancel(t.Context(), "quick "+id)
				_ = w.Touch(t.Context(), &connector.TouchRequest{Request: id})
			}
		})
	}
	g.Wait()
	if s := w.(keyedSession).keyed.Stats(); s.FailedLoads != 0 {
		t.Errorf("%+v", s)
	}
}

// A load that a channel starts on memory that is registered, but whose registration was not answered yet, is one of the
// new memory: the leader does not take it for one that ended with the memory before.
func TestLoadsBesideARegistrationAreNotForgotten(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	ranks := []server.Worker{openKeyed(t, b, "e", 0), openKeyed(t, b, "e", 1)}
	for _, w := range ranks {
		defer w.Close()
		putBlocks(t, w)
	}
	w := ranks[0].(keyedSession)
	wait.For(t, "all ranks' shards are written", func() bool { return present(t, w, "r") == 7 })
	if err := w.Worker.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock() // the registration takes it once the memory is there
	answered := make(chan error, 1)
	r := registration(t)
	go func() {
		_, err := w.Register(context.Background(), r)
		answered <- err
	}()
	for w.Worker.BlockBytes() == nil {
		time.Sleep(time.Millisecond)
	}
	err := w.Fetch(t.Context(), &connector.KeyedMove{ID: "load", Request: "r", Parts: keyedBlocks(4)}) // the last is not stored
	b.mu.Unlock()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the load is reported", func() bool {
		p, err := w.Poll(t.Context())
		return err == nil && len(p.Finished) == 1 && len(p.Finished[0].FailedBlocks) == 1
	})
	if got := present(t, w, "r"); got != 0 {
		t.Errorf("%b is offered after a load that failed", got)
	}
}
