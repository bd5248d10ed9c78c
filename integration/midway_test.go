package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
)

// heldDaemon says what a daemon's process serves, and at what its disk stands still.
type heldDaemon struct {
	Dir, Socket string
	At          storetest.Kind
	// Ready and Held are files that appear once the disk is so, and once it stands still.
	Ready, Held string
}

// serve is a daemon whose disk never ends an operation of that kind once it serves.
func (h *heldDaemon) serve(ctx context.Context) error {
	d := new(storetest.Disk)
	var once sync.Once
	return daemon.Run(ctx, daemon.Options{
		Dir: h.Dir, Socket: h.Socket, HTTP: "127.0.0.1:0", MaxBytes: 192 << 20, HostBytes: 64 << 20, Store: d.Under,
		Ready: func(daemon.Info) {
			d.Hook(func(op storetest.Op) error {
				if op.Kind != h.At {
					return nil
				}
				once.Do(func() { _ = os.WriteFile(h.Held, nil, 0o600) })
				select {}
			})
			_ = os.WriteFile(h.Ready, nil, 0o600)
		},
	})
}

// startHeld starts a daemon whose disk stands still at the first operation of a kind, and
// returns a function that waits until it does.
func (n *node) startHeld(at storetest.Kind) (wait func()) {
	n.t.Helper()
	h := heldDaemon{n.dir, n.socket, at, n.socket + ".ready", n.socket + ".held"}
	for _, path := range []string{h.Ready, h.Held} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.t.Fatal(err)
		}
	}
	b, err := json.Marshal(&h)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(slices.Clone(os.Environ()), daemonVariable+"="+string(b))
	n.launch(cmd)
	there := func(path string) func() bool { return func() bool { _, err := os.Stat(path); return err == nil } }
	n.wait("the daemon to be ready", there(h.Ready))
	return func() { n.wait("the disk to stand still", there(h.Held)) }
}

// A daemon that is killed while reads or writes are under way has brought nothing that
// counts: what was asked of it is computed.
func TestDaemonKilledInTheMiddleOfAReadOrAWriteChangesNoToken(t *testing.T) {
	t.Parallel()
	for i, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			if !long() && testing.Short() && i > 1 {
				t.Skip("KVCONN_TEST_LONG=1 runs it")
			}
			known := prompts(150, 2)
			want := reference(t, v.change, known)
			n := newMemoryNode(t)
			n.start()
			var tr trigger
			e := newInstanceWith(t, n, setup{engine: v.change, at: tr.at})
			same(t, "first run", e.run("first", known), want)
			for k, at := range []storetest.Kind{storetest.Read, storetest.Read, storetest.Write, storetest.Write} {
				name := fmt.Sprintf("kind %d, comes back: %d", at, k%2)
				n.stop()
				held := n.startHeld(at)
				fresh := prompts(151+k, 1)
				wantFresh := reference(t, v.change, fresh)
				point, asked, wanted := atSaving, fresh, wantFresh
				if at == storetest.Read {
					point, asked, wanted = atLoading, known, want
					// Ranks connect again, without which there are no offers to some engines.
					same(t, name+", new prompts", e.run(name+", new", fresh), wantFresh)
				}
				if o := engineOptions(v.change); o.Order == engine.TensorRTLLM && at == storetest.Read {
					point = atPoll // what is not read is not offered: there is no load to be in the middle of
				}
				tr.arm(point, func() {
					held()
					n.kill()
					if k%2 == 1 {
						n.start()
					}
				})
				got := e.run(name, asked)
				same(t, name, got, wanted)
				if tr.point != "" {
					t.Errorf("%s: the point was not reached", name)
				}
				if n.cmd == nil {
					if cached(got) > 0 {
						t.Errorf("%s: %d tokens came from a daemon that brought nothing", name, cached(got))
					}
					n.start()
				}
				if failed := recomputed(got) > 0; failed != (point == atLoading) {
					t.Errorf("%s: %d tokens recomputed", name, recomputed(got))
				}
				same(t, name+", new prompts again", e.run(name+", new again", fresh), wantFresh)
				got = e.run(name+", again", known)
				same(t, name+", again", got, want)
				if cached(got) == 0 {
					t.Errorf("%s: the cache is of no use afterwards", name)
				}
			}
			e.close()
			n.waitLetGo()
		})
	}
}

// An engine that dies while the daemon waits for a disk is let go of at once: its memory, its
// leases and its descriptors do not wait for the disk.
func TestEngineKilledInTheMiddleOfAReadOrAWriteIsLetGoAtOnce(t *testing.T) {
	for _, p := range []processOptions{
		{Order: engine.VLLM, TensorParallel: 1},
		{Order: engine.TensorRTLLM, TensorParallel: 2, Hybrid: true},
	} {
		for _, at := range []storetest.Kind{storetest.Read, storetest.Write} {
			t.Run(fmt.Sprintf("order %d, kind %d", p.Order, at), func(t *testing.T) {
				change := func(o *engine.Options) { *o = p.engine() }
				known, fresh := prompts(151, 2), prompts(152, 2)
				want, wantFresh := reference(t, change, known), reference(t, change, fresh)
				n, d, restart := onDisk(t, func(o *daemon.Options) { o.StageTimeout = slowRead })
				first := newInstance(t, n, change)
				same(t, "first run", first.run("first", known), want)
				first.close()
				n.saved()
				restart() // what is read comes from the disk
				n.wait("the first engine to be gone", func() bool { return len(n.status().Ranks) == 0 })
				before, beforeFDs := mappings(t), descriptors(t, os.Getpid())

				held, release := holdAll(d, at)
				defer release()
				p.Socket, p.At = n.socket, atSaving
				asked := fresh
				if at == storetest.Read {
					if asked = known; p.Order == engine.VLLM {
						p.At = atLoading
					} else {
						p.At = atPoll // nothing was offered: it computes
					}
				}
				process := startEngineProcess(t, p)
				process.submit(requestsOf("killed", asked))
				if a := process.answer(); !a.Reached {
					t.Fatalf("answer %+v", a)
				}
				select {
				case <-held:
				case <-time.After(waitLimit):
					t.Fatal("nothing was asked of the disk")
				}
				if mappings(t) <= before {
					t.Error("the engine's memory is not mapped: the test sees nothing")
				}
				process.kill()
				n.wait("the dead engine to be let go of", func() bool {
					s, fds := n.status(), descriptors(t, os.Getpid())
					return len(s.Engines)+len(s.Ranks)+s.Store.Leases+s.Queues.LoadsInFlight == 0 && mappings(t) <= before &&
						fds["memfd"] <= beforeFDs["memfd"] && fds["pidfd"] <= beforeFDs["pidfd"]
				})
				release()
				n.saved()
				e := newInstance(t, n, change)
				for k, q := range [][][]uint32{asked, known, fresh} {
					w := [][]engine.Result{want, want, wantFresh}[k]
					if k == 0 && at == storetest.Write {
						w = wantFresh
					}
					got := e.run(fmt.Sprint("after", k), q)
					same(t, fmt.Sprint("after ", k), got, w)
					// Of several ranks one may have died before its save; and what is not read in
					// time is not offered.
					if k == 0 && p.TensorParallel == 1 && cached(got) == 0 {
						t.Error("nothing of what was stored serves another engine")
					}
				}
				round := 0
				n.wait("hits", func() bool {
					round++
					got := e.run(fmt.Sprint("last", round), known)
					same(t, "last", got, want)
					return cached(got) > 0
				})
				e.close()
				n.waitLetGo()
			})
		}
	}
}

// holdAll keeps the disk's operations of a kind from ending until release is called. held is
// closed once there is one.
func holdAll(d *storetest.Disk, kind storetest.Kind) (held <-chan struct{}, release func()) {
	began, wake := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.Hook(func(op storetest.Op) error {
		if op.Kind == kind {
			once.Do(func() { close(began) })
			<-wake
		}
		return nil
	})
	return began, sync.OnceFunc(func() { d.Hook(nil); close(wake) })
}
