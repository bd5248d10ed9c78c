package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvconn/kvconn/connector/client"
	"github.com/kvconn/kvconn/internal/engine"
)

// newInstanceAcross starts an engine whose scheduler and first rank are on the first node,
// and each other rank on its own: they share nothing but what the engine broadcasts.
func newInstanceAcross(t *testing.T, change func(*engine.Options), nodes ...*node) *instance {
	t.Helper()
	return newInstanceAcrossWith(t, setup{engine: change}, nodes...)
}

func newInstanceAcrossWith(t *testing.T, s setup, nodes ...*node) *instance {
	t.Helper()
	i := newInstanceWith(t, nil, s)
	o := engineOptions(s.engine)
	options := func(n *node) client.Options {
		co := clientOptions(n.socket, fmt.Sprintf("%s-%p", t.Name(), i.Engine), i.Engine, &o)
		if s.client != nil {
			s.client(&co)
		}
		return co
	}
	scheduler, err := client.NewScheduler(options(nodes[0]))
	if err != nil {
		t.Fatal(err)
	}
	i.closers = append(i.closers, scheduler.Close)
	var workers []engine.WorkerConnector
	for rank, n := range nodes {
		w, err := client.NewWorker(options(n), rank, i.Layout(rank), []*os.File{i.File(rank)})
		if err != nil {
			t.Fatal(err)
		}
		i.closers = append(i.closers, w.Close)
		workers = append(workers, &watchedWorker{w, i.calls, rank})
	}
	i.Attach(&watchedScheduler{scheduler, i.calls}, workers...)
	return i
}

// The leader's metadata is all that a rank on another node needs: its own node's daemon,
// which has never heard of the requests, loads its shards by it, and saves them. What that
// node does not have fails there, and is recomputed by all ranks.
func TestRankOnAnotherNodeIsServedByTheMetadataAlone(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{
		{"two tensor-parallel ranks", func(o *engine.Options) { o.TensorParallel = 2 }},
		{"two stages of a hybrid model", func(o *engine.Options) { hybrid(o); o.PipelineParallel = 2 }},
	} {
		t.Run(v.name, func(t *testing.T) {
			ps := prompts(140, 3)
			want := reference(t, v.change, ps)
			here, there := newMemoryNode(t), newMemoryNode(t)
			here.start()
			there.start()
			// The leader offers what its own node's store has of every rank.
			e := newInstance(t, here, v.change)
			same(t, "all ranks here", e.run("here", ps), want)
			e.close()
			here.saved()

			e = newInstanceAcross(t, v.change, here, there)
			got := e.run("across", ps)
			same(t, "a rank there, its store empty", got, want)
			if recomputed(got) == 0 {
				t.Errorf("%d tokens cached, none recomputed: what came from an empty store?", cached(got))
			}
			there.saved()
			got = e.run("again", ps)
			same(t, "a rank there, its store filled", got, want)
			if cached(got) == 0 || recomputed(got) > 0 {
				t.Errorf("%d tokens cached, %d recomputed: the other node's store is of no use", cached(got), recomputed(got))
			}
			if s := there.status(); len(s.Engines) != 0 || len(s.Ranks) != 1 || s.Ranks[0].Transfers.LoadedBytes == 0 {
				t.Errorf("%d engines, ranks %+v there; want one rank that has loaded", len(s.Engines), s.Ranks)
			}
			e.close()
			here.waitLetGo()
			there.waitLetGo()
		})
	}
}

// An engine that cannot report a failed load is offered nothing while one of its ranks is
// on another node, where this node's staging memory is not: it would fail there, and with
// it the engine.
func TestEngineThatCannotFailIsOfferedNothingWithARankOnAnotherNode(t *testing.T) {
	t.Parallel()
	change := func(o *engine.Options) { tensorRT(o); o.TensorParallel = 2 }
	ps := prompts(141, 3)
	want := reference(t, change, ps)
	here, there := newMemoryNode(t), newMemoryNode(t)
	here.start()
	there.start()
	e := newInstance(t, here, change)
	same(t, "all ranks here", e.run("here", ps), want)
	here.saved()
	e.Reset(t.Context())
	got := e.run("again", ps)
	same(t, "all ranks here, from the cache", got, want)
	if cached(got) == 0 {
		t.Error("nothing is offered with all ranks here")
	}
	e.close()

	e = newInstanceAcross(t, change, here, there)
	for _, again := range []string{"across", "across again"} {
		got = e.run(again, ps)
		same(t, again, got, want)
		if cached(got) > 0 {
			t.Errorf("%s: %d tokens offered that the other node's rank cannot reach", again, cached(got))
		}
		there.saved()
		e.Reset(t.Context())
	}
	e.close()
	here.waitLetGo()
	there.waitLetGo()
}
