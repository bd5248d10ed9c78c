package integration

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
)

// hangTimeout is the load timeout of daemons whose disk hangs.
const hangTimeout = 300 * time.Millisecond

// slowRead is what a read from a slow disk takes.
const slowRead = 20 * time.Millisecond

// onDisk starts a daemon in this process, on a disk that does as it is told.
func onDisk(t *testing.T, change func(*daemon.Options)) (*node, *storetest.Disk, func()) {
	t.Helper()
	n := newMemoryNode(t)
	d := new(storetest.Disk)
	start := func() {
		n.serve(func(o *daemon.Options) {
			o.Store = d.Under
			if change != nil {
				change(o)
			}
		})
	}
	start()
	return n, d, func() { n.stop(); start() }
}

// Whatever the disk does, every answer is right and comes in time; and when it works again,
// so does the cache.
func TestFaultyDiskCostsHitsAndNothingElse(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	for i, fault := range []struct {
		name string
		// hook is the disk's behaviour; hung is closed when a disk that hangs wakes up.
		hook func(op storetest.Op, hung <-chan struct{}) error
		// reads says that no read can succeed.
		reads bool
	}{
		{"reads fail", func(op storetest.Op, _ <-chan struct{}) error {
			if op.Kind == storetest.Read {
				return syscall.EIO
			}
			return nil
		}, true},
		{"some reads fail", func(op storetest.Op, _ <-chan struct{}) error {
			if op.Kind == storetest.Read && op.Bytes%3 == 0 {
				return syscall.EIO
			}
			return nil
		}, false},
		{"writes fail", func(op storetest.Op, _ <-chan struct{}) error {
			if op.Kind != storetest.Read {
				return syscall.EIO
			}
			return nil
		}, false},
		{"no space", func(op storetest.Op, _ <-chan struct{}) error {
			if op.Kind == storetest.Write || op.Kind == storetest.Allocate {
				return syscall.ENOSPC
			}
			return nil
		}, false},
		{"reads hang", func(op storetest.Op, hung <-chan struct{}) error {
			if op.Kind == storetest.Read {
				<-hung
			}
			return nil
		}, true},
		{"writes hang", func(op storetest.Op, hung <-chan struct{}) error {
			if op.Kind == storetest.Write || op.Kind == storetest.Sync {
				<-hung
			}
			return nil
		}, false},
		{"everything hangs", func(op storetest.Op, hung <-chan struct{}) error {
			<-hung
			return syscall.EIO
		}, true},
	} {
		for k, v := range []variant{{"vLLM", func(*engine.Options) {}}, {"TensorRT-LLM", tensorRT}} {
			t.Run(fault.name+", "+v.name, func(t *testing.T) {
				if !long() && (i+i/2)%2 != k {
					t.Skip("KVCONN_TEST_LONG=1 runs it")
				}
				known, fresh := prompts(80, 3), prompts(80+1+random.IntN(10), 3)
				want, wantFresh := reference(t, v.change, known), reference(t, v.change, fresh)
				n, d, restart := onDisk(t, func(o *daemon.Options) {
					o.LoadTimeout, o.StageTimeout = hangTimeout, hangTimeout/10
				})
				e := newInstance(t, n, v.change)
				same(t, "before", e.run("before", known), want)
				n.saved()
				restart() // else the host tier has everything
				hung := make(chan struct{})
				before := n.status().Store.Reads
				d.Hook(func(op storetest.Op) error { return fault.hook(op, hung) })
				same(t, "faulty", e.run("faulty", known), want)
				// What the first prompt shares with the others may be in memory again by then.
				if read := n.status().Store.Reads - before; fault.reads && read > 0 {
					t.Errorf("%d records came from a disk that gives none", read)
				}
				same(t, "faulty, new prompts", e.run("faulty-new", fresh), wantFresh)
				d.Hook(nil)
				close(hung)
				n.wait("hits to come back", func() bool {
					got := e.run(fmt.Sprintf("after-%d", time.Now().UnixNano()), known)
					same(t, "after", got, want)
					return cached(got) > 0
				})
				same(t, "after, new prompts", e.run("after-new", fresh), wantFresh)
				e.close()
				n.waitLetGo()
			})
		}
	}
}

// A disk whose reads take longer than computing is not read from: the decision can be seen
// with its inputs, and is taken back when a probe finds the disk fast again.
func TestSlowTierIsRefusedUntilItIsFastAgain(t *testing.T) {
	const prefillTokensPerS, blockSize = 4000, 8
	n, d, restart := onDisk(t, func(o *daemon.Options) { o.PrefillTokensPerS = prefillTokensPerS })
	cold := make([][][]uint32, 4)
	want := make([][]engine.Result, len(cold))
	e := newInstance(t, n, nil)
	for k := range cold {
		cold[k] = prompts(90+k, 3)
		want[k] = reference(t, nil, cold[k])
		same(t, "first run", e.run(fmt.Sprint("first", k), cold[k]), want[k])
	}
	n.saved()
	restart() // nothing is in memory any more
	run := func(name string, k int) []engine.Result {
		t.Helper()
		got := e.run(name, cold[k])
		same(t, name, got, want[k])
		return got
	}
	if cached(run("fast", 0)) == 0 {
		t.Fatalf("nothing is loaded from a fast disk: %+v", n.status().Engines)
	}
	var reads atomic.Int64
	var throttle sync.Mutex
	d.Hook(func(op storetest.Op) error {
		if op.Kind == storetest.Read {
			reads.Add(1)
			throttle.Lock()
			defer throttle.Unlock()
			time.Sleep(slowRead / 2)
		}
		return nil
	})
	run("finds out", 1) // the last load that anybody waits for
	run("knows", 2)
	before, began := reads.Load(), time.Now()
	if got := run("refused", 3); cached(got) > 0 {
		t.Errorf("%d tokens were loaded from a disk that is slower than computing", cached(got))
	}
	// Of the daemon's own probes there is one a second at most, which reads for 50 ms.
	const readsOfAProbe = 50*time.Millisecond/(slowRead/2) + 1
	most := int64(readsOfAProbe * (2 + time.Since(began)/time.Second))
	if c := reads.Load() - before; c > most {
		t.Errorf("%d reads of a disk that nothing was offered from, want %d probes' at most", c, most)
	}
	s := n.status()
	st := s.Engines[0].Requests
	if st.DecisionsRefused < 2 {
		t.Errorf("%d decisions not to load: %+v", st.DecisionsRefused, st)
	}
	if !st.TierRefused || st.PrefillTokensPerS != prefillTokensPerS {
		t.Errorf("the decision's inputs are not to be seen: %+v", st)
	}
	loadS := st.LoadLatencyS + float64(s.Ranks[0].BlockBytes[0])/st.LoadBytesPerS["disk"]
	if prefillS := blockSize / float64(prefillTokensPerS); st.LoadBytesPerS["disk"] == 0 || loadS <= prefillS {
		t.Errorf("refused though a block loads in %g s and computes in %g", loadS, prefillS)
	}
	d.Hook(nil)
	n.wait("offers to come back, and the tier not to be refused any more", func() bool {
		return cached(run(fmt.Sprintf("back %d", time.Now().UnixNano()), 3)) > 0 && !n.status().Engines[0].Requests.TierRefused
	})
}
