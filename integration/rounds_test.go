package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// loaded is an engine that serves prompts again and again, until it is stopped.
type loaded struct {
	*instance
	name string
	// callTimeout is the deadline of its connector's calls.
	callTimeout time.Duration
	ps          [][]uint32
	want        []engine.Result
	// runs counts what was served, cached the tokens that came from kvconn.
	runs, cached int
	err          error
}

// serve runs the prompts, each time twice under a scope that nobody has saved yet, until
// stop is closed.
func (l *loaded) serve(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		requests := requestsOf(fmt.Sprint("run", l.runs), l.ps)
		for k := range requests {
			requests[k].Scope.Salt = fmt.Sprint(l.runs / 2)
		}
		within, cancel := context.WithTimeout(ctx, waitLimit)
		got, err := l.Run(within, requests)
		cancel()
		if err == nil {
			if d := difference(got, l.want); d != "" {
				err = fmt.Errorf("wrong answer: %s", d)
			}
		}
		if err != nil {
			l.err = fmt.Errorf("%s: run %d: %w", l.name, l.runs, err)
			return
		}
		l.runs++
		l.cached += cached(got)
	}
}

// mappings counts the shared memory that this process has mapped.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:")
}

// kills is a random choice of what happens to daemon and engine in a round.
type kills struct {
	n       *node
	random  *rand.Rand
	victim  *engineProcess
	options processOptions
	ps      [][]uint32
	want    []engine.Result
	counts  map[string]int
}

func (k *kills) pause() { time.Sleep(time.Duration(k.random.IntN(40_000)) * time.Microsecond) }

// round has something killed while everything is under load.
func (k *kills) round(round int) {
	if k.victim == nil {
		k.options.Order = engine.Order(k.random.IntN(2))
		k.options.Hybrid = k.random.IntN(2) == 0
		k.options.TensorParallel = 1 + k.random.IntN(2)
		k.victim = startEngineProcess(k.n.t, k.options)
		k.want = reference(k.n.t, func(o *engine.Options) { *o = k.options.engine() }, k.ps)
	}
	requests := requestsOf(fmt.Sprint("round", round), k.ps)
	for i := range requests {
		requests[i].Scope.Salt = fmt.Sprint(round / 2)
	}
	k.victim.submit(requests)
	k.pause()
	what := []string{"daemon", "engine", "both", "daemon, for a while", "daemon frozen"}[k.random.IntN(5)]
	k.counts[what]++
	switch what {
	case "daemon":
		k.n.kill()
		k.n.start()
	case "both":
		_ = k.n.cmd.Process.Kill()
		k.killVictim()
		k.n.kill()
		k.n.start()
	case "engine":
		k.killVictim()
	case "daemon, for a while":
		k.n.kill()
		k.pause()
		k.n.start()
	case "daemon frozen":
		_ = k.n.cmd.Process.Signal(syscall.SIGSTOP)
		k.pause()
		k.pause()
		_ = k.n.cmd.Process.Signal(syscall.SIGCONT)
	}
	if k.victim != nil {
		same(k.n.t, fmt.Sprintf("round %d: %s: engine process", round, what), k.victim.answer().Results, k.want)
	}
}

func (k *kills) killVictim() {
	k.victim.kill()
	k.victim = nil
}

// For round after round daemon and engines are killed under load: no answer changes,
// nothing hangs, nothing is left behind, and no call waits past its deadline.
func TestRandomKillsUnderLoadChangeNoTokenAndLeaveNothingBehind(t *testing.T) {
	randomKills(t, newMemoryNode(t), seed.Of(t), rounds(8, 200))
}

func randomKills(t *testing.T, n *node, seed uint64, rounds int) {
	t.Helper()
	before, beforeMaps := descriptors(t, os.Getpid()), mappings(t)
	n.start()
	var engines []*loaded
	for i, v := range []struct {
		variant
		callTimeout time.Duration
	}{
		{variant{"vLLM, impatient", nil}, 50 * time.Millisecond},
		{variant{"vLLM, hybrid, overlapping steps", func(o *engine.Options) { hybrid(o); o.Overlap, o.PrefixCaching = true, true }}, time.Second},
		{variant{"TensorRT-LLM, two ranks", func(o *engine.Options) { tensorRT(o); o.TensorParallel = 2 }}, 5 * time.Second},
	} {
		l := &loaded{name: v.name, callTimeout: v.callTimeout, ps: prompts(100+i, 3)}
		l.want = reference(t, v.change, l.ps)
		l.instance = newInstanceWith(t, n, setup{engine: v.change, client: func(o *client.Options) { o.CallTimeout = v.callTimeout }})
		engines = append(engines, l)
	}
	stop := make(chan struct{})
	var serving sync.WaitGroup
	for _, l := range engines {
		serving.Go(func() { l.serve(t.Context(), stop) })
	}
	end := sync.OnceFunc(func() { close(stop); serving.Wait() })
	t.Cleanup(end) // an engine must not be closed while it runs
	k := &kills{
		n: n, random: rand.New(rand.NewPCG(seed, 1)), options: processOptions{Socket: n.socket}, ps: prompts(110, 2), counts: make(map[string]int),
	}
	for round := range rounds {
		k.round(round)
	}
	end()
	if k.victim != nil {
		k.killVictim()
	}
	for _, l := range engines {
		slowest, which := l.calls.slowest()
		t.Logf("%s: %d runs, %d tokens from the cache, longest call %s (%s), deadline %s", l.name, l.runs, l.cached, slowest, which, l.callTimeout)
		if l.err != nil {
			t.Error(l.err)
			continue
		}
		// A call may connect, be repeated once, and connect again for that; the rest is for
		// a machine that has more to do.
		if limit := 10*l.callTimeout + 30*time.Second; slowest > limit {
			t.Errorf("%s: a call of %s took %s", l.name, which, slowest)
		}
		// One that was kept waiting leaves the daemon alone for a while.
		n.wait(l.name+": the cache to be of use again", func() bool {
			l.runs++
			l.Reset(t.Context()) // what it has itself does not count
			got := l.run(fmt.Sprint("last", l.runs), l.ps)
			same(t, l.name+": last run", got, l.want)
			return cached(got) > 0
		})
	}
	t.Logf("rounds: %v", k.counts)
	for _, l := range engines {
		l.close()
	}
	n.waitLetGo()
	after := descriptors(t, os.Getpid())
	if after["memfd"]+after["memfd:kvconn-host"] > before["memfd"]+before["memfd:kvconn-host"] || mappings(t) > beforeMaps {
		t.Errorf("left behind in the engines' process: descriptors %v, before %v; %d mappings, before %d", after, before, mappings(t), beforeMaps)
	}
}
