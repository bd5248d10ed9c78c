package integration

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/engine"
)

// fairness is what the hits of one engine cost another that computes everything.
type fairness struct {
	t *testing.T
	// computes never loads; hits, in a process of its own, has nothing but hits.
	computes *instance
	hits     *engineProcess
	ps, hit  [][]uint32
	want     []engine.Result
	runs     int
}

// compute serves the prompts without loads, and returns the processor time that this took
// and the time that the engine waited in calls of its connector.
func (f *fairness) compute() time.Duration {
	f.t.Helper()
	f.runs++
	requests := requestsOf(fmt.Sprint("compute", f.runs), f.ps)
	for k := range requests {
		requests[k].NoLoad = true
	}
	cpu, waited := processorTime(f.t), f.computes.calls.waited()
	got := f.computes.serve(requests...)
	took := processorTime(f.t) - cpu + f.computes.calls.waited() - waited
	same(f.t, "computed", got, f.want)
	if cached(got) > 0 {
		f.t.Fatal("the engine that computes has loaded")
	}
	return took
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// besideHits is compute while the other engine's hits go on, one after the other.
func (f *fairness) besideHits() (took time.Duration, hits int) {
	f.t.Helper()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			var a processAnswer
			err := f.hits.enc.Encode(requestsOf(fmt.Sprint("hit", f.runs, "-", hits), f.hit))
			if err == nil {
				err = f.hits.dec.Decode(&a)
			}
			if err != nil {
				stopped <- err
				return
			}
			if cached(a.Results) > 0 {
				hits++
			}
		}
	}()
	took = f.compute()
	close(stop)
	if err := <-stopped; err != nil {
		f.t.Fatal(err)
	}
	return took, hits
}

// The hits of one engine must not slow down what another computes. Both engines of this
// test compute on the same processors, which engines with GPUs do not, so that the time on
// the clock would show how a machine shares its processors. What is compared is the time
// that the computing engine uses itself and that it waits for kvconn: the smallest of
// several runs with and without hits, taken in turn, since whatever else the machine does
// only adds to it. What is left is noise of some percent (caches and a busy machine's
// scheduler), so that the bound is a wide one. The figure is in the log.
func TestFairnessHitsOfOneEngineDoNotSlowDownAnother(t *testing.T) {
	if !long() {
		t.Skip("a measurement: KVCONN_TEST_LONG=1 runs it")
	}
	n := newNode(t)
	n.start()
	f := &fairness{t: t, ps: prompts(140, 4), hit: prompts(141, 2)}
	for k := range f.ps {
		f.ps[k] = slices.Repeat(f.ps[k], 2)
	}
	change := func(o *engine.Options) { o.Blocks = 1024 }
	f.want = reference(t, change, f.ps)
	f.computes = newInstance(t, n, change)
	f.hits = startEngineProcess(t, processOptions{Socket: n.socket, TensorParallel: 1})
	f.hits.submit(requestsOf("first", f.hit))
	f.hits.answer()
	f.compute()
	n.saved()
	alone, beside, hits := time.Duration(1<<62), time.Duration(1<<62), 0
	for round := range 20 {
		if (round+round/2)%2 == 0 { // in turn, neither always the second
			alone = min(alone, f.compute())
			continue
		}
		took, loaded := f.besideHits()
		beside, hits = min(beside, took), hits+loaded
	}
	ratio := float64(beside) / float64(alone)
	t.Logf("computing takes %s alone, %s beside hits (%d of them): ratio %.3f", alone, beside, hits, ratio)
	if hits == 0 {
		t.Error("there were no hits")
	}
	if ratio > 1.5 {
		t.Errorf("hits of one engine slow down another's computing %.2f times", ratio)
	}
}
